"""What of a log a repair can mend, found without changing anything.

A mended segment has the same good frames at the same offsets. Where bytes were damaged stands a filler: a frame
without rows that says so. So every cut, seal and reference holds as before, and whoever folds the log is told of the
same damage as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gym_capture.errors import DamagedLog, FormatError
from gym_capture.model.codec import (
    FRAME_HEAD_BYTES,
    MAX_FRAME_BYTES,
    SEGMENT_HEAD_BYTES,
    FrameFlag,
    FrameKind,
    SegmentHead,
    encode_frame_head,
    encode_rows,
    encode_segment_head,
    parse_segment_head,
)
from gym_capture.storage.files import Files
from gym_capture.storage.log_plan import LogPlan
from gym_capture.storage.log_reader import Damage, never_written
from gym_capture.storage.names import SegmentName
from gym_capture.storage.segment_source import SegmentSource
from gym_capture.storage.segments import SEAL_SEQUENCE

_NO_ROWS = encode_rows([])
MIN_FILLER_BYTES = FRAME_HEAD_BYTES + len(_NO_ROWS)
"""A damaged place shorter than this never was a frame; it stays as it is."""
_PIECE_BYTES = 1 << 20


@dataclass(slots=True)
class Mend:
    """One segment that is written anew.

    Args:
        segment: which.
        absent: the file is gone.
        header: its header is damaged.
        fillers: (offset, length, group, whether what is gone may concern others) of each damaged place, ascending.
        end: its bytes afterwards; what is missing up to there and in no filler is a payload's, and becomes zeros.
    """

    segment: SegmentName
    absent: bool = False
    header: bool = False
    fillers: list[tuple[int, int, int, bool]] = field(default_factory=list)
    end: int = 0


def find_mends(files: Files, plan: LogPlan) -> Iterator[Mend]:
    """Every segment that should be written anew. Segments whose end is still open are passed over.

    Raises:
        FormatError: something is of another version.
        OSError: a file could not be read.
    """
    for epoch in plan.epochs:
        for number in plan.walk(epoch):
            name = SegmentName(epoch, number)
            last = number + 1 == plan.numbers(epoch).stop
            if name not in plan.sizes:
                end = max(plan.end(name), SEGMENT_HEAD_BYTES + MIN_FILLER_BYTES)
                filler = (SEGMENT_HEAD_BYTES, end - SEGMENT_HEAD_BYTES, 0, True)
                yield Mend(name, absent=True, header=True, fillers=[filler], end=end)
            elif not plan.is_open(name) and (mend := _mend_of(files, plan, name, last)) is not None:
                yield mend


def _mend_of(files: Files, plan: LogPlan, name: SegmentName, last: bool) -> Mend | None:
    size, end = plan.sizes[name], plan.end(name)
    source = SegmentSource(files, name)
    mend = Mend(name, header=_header_damaged(source.read_at(0, SEGMENT_HEAD_BYTES)), end=size)
    group = 0
    for item in source.frames(SEGMENT_HEAD_BYTES, end):
        if not isinstance(item, Damage):
            group = item.head.group
            mend.end = max(mend.end, item.end)
        elif item.length >= MIN_FILLER_BYTES:
            gone = item.kind == "tear" and last and (size < end or never_written(source.read_at, item))
            mend.fillers.append((item.offset, item.length, group, gone))
            mend.end = max(mend.end, item.offset + item.length)
    return mend if mend.header or mend.fillers or mend.end > size else None


def _header_damaged(data: bytes) -> bool:
    try:
        parse_segment_head(data)
    except FormatError:
        raise
    except DamagedLog:
        return True
    return False


def mended_bytes(files: Files, mend: Mend, run: bytes) -> Iterator[bytes]:
    """The segment's content as it will be, a piece at a time."""
    head = SegmentHead(mend.segment.epoch, mend.segment.number, run)
    yield encode_segment_head(head) if mend.header else files.read_at(mend.segment.file, 0, SEGMENT_HEAD_BYTES)
    at = SEGMENT_HEAD_BYTES
    for offset, length, group, gone in mend.fillers:
        yield from _kept(files, mend, at, offset)
        yield from _fillers(head, length, group, gone)
        at = offset + length
    yield from _kept(files, mend, at, mend.end)


def _kept(files: Files, mend: Mend, start: int, end: int) -> Iterator[bytes]:
    """The bytes that stay as they are; zeros where the file ends before."""
    while start < end:
        length = min(_PIECE_BYTES, end - start)
        piece = b"" if mend.absent else files.read_at(mend.segment.file, start, length)
        yield piece + bytes(length - len(piece))
        start += length


def _fillers(head: SegmentHead, length: int, group: int, gone: bool) -> Iterator[bytes]:
    while length:
        taken = min(length, MAX_FRAME_BYTES)
        if 0 < length - taken < MIN_FILLER_BYTES:
            taken -= MIN_FILLER_BYTES
        body = taken - MIN_FILLER_BYTES
        flags = FrameFlag.FILLER | (FrameFlag.GONE if gone else 0)
        yield encode_frame_head(
            _NO_ROWS,
            key=head.key,
            kind=FrameKind.OWNER,
            flags=flags,
            epoch=head.epoch,
            group=group,
            sequence=SEAL_SEQUENCE,
            row_count=0,
            body_bytes=body,
        )
        yield _NO_ROWS
        for start in range(0, body, _PIECE_BYTES):
            yield bytes(min(_PIECE_BYTES, body - start))
        length -= taken
