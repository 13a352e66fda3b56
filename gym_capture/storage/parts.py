"""Reading the bodies of frames: parts by their place and checksum."""

from __future__ import annotations

from collections.abc import Sequence

from gym_capture.model.codec import FrameRef, checksum
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


def read_part(files: Files, ref: FrameRef, part: Part) -> bytes:
    """A part's stored bytes, unchecked (`exchange.open_part` checks them)."""
    return read_body(files, ref, part.length, part.offset)


def part_intact(body: memoryview, part: Part) -> bool:
    """Whether a part within a body has its length and checksum."""
    stored = body[part.offset : part.offset + part.length]
    return len(stored) == part.length and checksum(stored) == part.crc
