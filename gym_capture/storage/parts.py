"""Reading the bodies of frames: parts by their place and checksum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gym_capture.errors import DamagedLog
from gym_capture.model.codec import FrameRef, checksum
from gym_capture.model.exchange import open_part
from gym_capture.model.rollout_state import Entry
from gym_capture.model.rows import Part, Row
from gym_capture.storage.files import Files
from gym_capture.storage.names import SegmentName


def parts_of(row: Row) -> Sequence[Part]:
    """The parts that a row points to."""
    parts: Sequence[Part] = getattr(row, "parts", ())
    return parts


def read_body(files: Files, ref: FrameRef, length: int, offset: int = 0) -> bytes:
    """Bytes of a frame's body; fewer when the file ends before."""
    return files.read_at(SegmentName(ref.epoch, ref.segment).file, ref.body_offset + offset, length)


def part_intact(body: memoryview, part: Part) -> bool:
    """Whether a part within a body has its length and checksum."""
    stored = body[part.offset : part.offset + part.length]
    return len(stored) == part.length and checksum(stored) == part.crc


def open_parts(
    files: Files, entry: Entry, wanted: Callable[[Part], bool] = lambda part: True
) -> list[tuple[Part, bytes]]:
    """Parts of one exchange with their bytes as they were before compression, read with one call.

    Raises:
        DamagedLog: one of them does not match its checksum, or is missing with its file.
    """
    parts = [part for part in entry.parts if wanted(part)]
    if not parts:
        return []
    start = min(part.offset for part in parts)
    length = max(part.offset + part.length for part in parts) - start
    data = _read(files, entry.ref, length, start)
    return [(part, open_part(part, data[part.offset - start : part.offset - start + part.length])) for part in parts]


def open_one_part(files: Files, ref: FrameRef, part: Part) -> bytes:
    """One part's bytes as they were before compression.

    Raises:
        DamagedLog: it does not match its checksum, or is missing with its file.
    """
    return open_part(part, _read(files, ref, part.length, part.offset))


def _read(files: Files, ref: FrameRef, length: int, offset: int) -> bytes:
    try:
        return read_body(files, ref, length, offset)
    except FileNotFoundError as error:
        name = SegmentName(ref.epoch, ref.segment).file
        raise DamagedLog(f"{name} is gone from {files.directory}") from error
