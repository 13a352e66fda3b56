"""One segment file as it is read: its bytes, and the run whose frames it has."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import cached_property

from gym_capture.errors import CaptureDirectoryError, DamagedLog, FormatError
from gym_capture.model.codec import SEGMENT_HEAD_BYTES, FrameHead, SegmentHead, parse_segment_head
from gym_capture.storage.files import Files
from gym_capture.storage.log_reader import WINDOW_BYTES, Damage, Frame, read_frames
from gym_capture.storage.names import SegmentName
from gym_capture.storage.run_marker import read_run, runs_in_headers


def named_head(data: bytes, name: SegmentName) -> SegmentHead:
    """The header at the start of a segment file of that name.

    Raises:
        DamagedLog: too short, or the checksum does not match.
        FormatError: written by another format version, or as another segment.
    """
    head = parse_segment_head(data)
    if (head.epoch, head.number) != name:
        raise FormatError(
            f"{name.file} says that it is segment {head.number} of epoch {head.epoch}: it was renamed. "
            "Nothing was changed; give it its name back.",
            segment=name,
        )
    return head


class SegmentSource:
    """A segment of a directory.

    Args:
        files: the capture directory.
        name: which segment.
    """

    def __init__(self, files: Files, name: SegmentName) -> None:
        self._files = files
        self.name = name

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset` on."""
        return self._files.read_at(self.name.file, offset, length)

    @cached_property
    def run(self) -> bytes | None:
        """The run's 16-byte uuid, without which no frame can be told from what a payload holds.

        The segment's header says it. Where that is damaged (or not on disk yet), `RUN` does; where that is gone too,
        the other segments. None: nothing says it, or they disagree.

        Raises:
            FormatError: the segment or `RUN` is of another version, or the segment was renamed.
            OSError: a file could not be read.
        """
        try:
            return named_head(self.read_at(0, SEGMENT_HEAD_BYTES), self.name).run
        except FormatError:
            raise
        except DamagedLog:
            pass
        try:
            return read_run(self._files).bytes
        except CaptureDirectoryError:
            runs = runs_in_headers(self._files)
            return uuid.UUID(hex=runs[0]).bytes if len(runs) == 1 else None

    def frames(
        self, start: int, end: int, *, window_bytes: int = WINDOW_BYTES, last: FrameHead | None = None
    ) -> Iterator[Frame | Damage]:
        """The frames between two offsets, with the damage between them. Arguments and errors: `read_frames`."""
        return read_frames(self.read_at, start, end, self.name, self.run, window_bytes=window_bytes, last=last)
