"""How long an epoch's log is known to have been: so that its end cannot be lost as if it had never been there."""

from __future__ import annotations

from collections.abc import Iterable

from gym_capture.errors import CaptureDirectoryError, DamagedLog
from gym_capture.model.codec import FRAME_HEAD_BYTES, SEGMENT_HEAD_BYTES
from gym_capture.storage import names
from gym_capture.storage.checkpoints import read_checkpoint
from gym_capture.storage.files import Files
from gym_capture.storage.owner_file import LogEnd, read_owner
from gym_capture.storage.run_marker import read_run

_OPENING = LogEnd(0, SEGMENT_HEAD_BYTES + FRAME_HEAD_BYTES)
"""An opening is in the first segment, and is at least one frame."""


def log_floor(files: Files, epoch: int, listed: Iterable[str]) -> LogEnd | None:
    """Up to where an epoch's log was on disk at least, by what was written only afterwards; None: nothing says it.

    Its newest sound checkpoint was written when all that it holds was durable; `OWNER` names the last
    epoch whose opening was. It is true of what is looked up after this returned.

    Args:
        files: the capture directory.
        epoch: which.
        listed: the names in the directory.
    """
    for name in reversed(names.checkpoints_in(listed)):
        if name.epoch == epoch:
            try:
                header = read_checkpoint(files, name).header
            except (DamagedLog, OSError):
                continue
            if header.run == _run(files, header.run):
                return LogEnd(header.segment, header.end)
    try:
        owner = read_owner(files)
    except CaptureDirectoryError:
        return None
    return _OPENING if owner is not None and owner.last_opened == epoch else None


def reaches(files: Files, epoch: int, floor: LogEnd) -> bool:
    """Whether the file is there up to that byte: asked by reading it, since a file system may remember older sizes."""
    try:
        return len(files.read_at(names.SegmentName(epoch, floor.segment).file, floor.length - 1, 1)) == 1
    except FileNotFoundError:
        return False


def _run(files: Files, otherwise: bytes) -> bytes:
    try:
        return read_run(files).bytes
    except CaptureDirectoryError:
        return otherwise
