"""The one decoder of segments: recovery, verify, the store and whatever exports read frames through it.

It reads heads and skips bodies, a window at a time, so memory is bounded by the largest head. After damage it goes on
at the next frame whose checksum fits. What is invalid up to the end is a tear: an append that never finished.

Looking for that next frame goes through payloads, which a model may have written. What is found there has to fit the
run's uuid, which no model sees, and this segment, and to be later than what was read: a payload can only repeat what
was before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from gym_capture.errors import DamagedLog, FormatError
from gym_capture.model.codec import (
    FRAME_HEAD_BYTES,
    FRAME_MAGIC,
    FrameFlag,
    FrameHead,
    FrameKind,
    FrameRef,
    SegmentHead,
    checksum,
    decode_rows,
    head_matches,
    parse_frame_head,
)
from gym_capture.model.rows import Row, SealRow
from gym_capture.storage.names import SegmentName
from gym_capture.storage.prefix_sums import STEP_BYTES, PrefixSums

ReadAt = Callable[[int, int], bytes]
"""(offset, length) → up to that many bytes of one segment."""

WINDOW_BYTES = 256 * 1024
PAGE_BYTES = 4096
_ZERO_RUN_BYTES = 32
_KINDS = frozenset(FrameKind)


class Frame(NamedTuple):
    """One frame without its body: the fixed head, its rows, and where its body lies."""

    head: FrameHead
    rows: list[Row]
    ref: FrameRef

    @property
    def offset(self) -> int:
        """Bytes from the start of the segment to the frame."""
        return self.ref.body_offset - self.head.head_bytes - FRAME_HEAD_BYTES

    @property
    def end(self) -> int:
        """Bytes from the start of the segment to what follows the frame."""
        return self.ref.body_offset + self.head.body_bytes


class Damage(NamedTuple):
    """Bytes that are no frame: `damage` has a good frame after it, a `tear` reaches to the end."""

    offset: int
    length: int
    kind: Literal["damage", "tear"]


def read_frames(
    read_at: ReadAt,
    start: int,
    end: int,
    segment: SegmentName,
    run: bytes | None,
    *,
    window_bytes: int = WINDOW_BYTES,
    last: FrameHead | None = None,
) -> Iterator[Frame | Damage]:
    """The frames between two offsets of a segment, in order, with the damage between them.

    Args:
        read_at: reads the segment.
        start: where the first frame begins (`SEGMENT_HEAD_BYTES`, or the end of a frame).
        end: nothing at or beyond it is read, and a frame that crosses it is torn.
        segment: which segment it is.
        run: the run's 16-byte uuid; None: nobody knows it any more, and so nothing is a frame.
        window_bytes: how much is read at a time (a longer head is read whole).
        last: the head of the last frame of this segment before `start`, if `start` is not its first.

    Raises:
        FormatError: a frame whose checksum fits cannot be decoded; a newer version wrote it.
        OSError: the file could not be read.
    """
    decoder = _Decoder(read_at, end, segment, run, window_bytes)
    at = start
    while at < end:
        frame = decoder.frame_at(at)
        if frame is not None:
            yield frame
            at = frame.end
            last = frame.head if frame.head.sequence else last
            continue
        found = decoder.next_frame(at, last)
        if found is None:
            yield Damage(at, end - at, "tear")
            return
        yield Damage(at, found - at, "damage")
        at = found


def never_written(read_at: ReadAt, damage: Damage) -> bool:
    """Whether damaged bytes look like pages that never reached the disk: zeros up to a page's border.

    Only where the last group may lie does that mean that nothing of it was acknowledged; synced pages that have
    become zeros are lost like any others.
    """
    at, end = damage.offset, damage.offset + damage.length
    while at < end:
        border = min(end, (at // PAGE_BYTES + 1) * PAGE_BYTES)
        piece = read_at(at, border - at)
        if len(piece) >= _ZERO_RUN_BYTES and not any(piece):
            return True
        at = border
    return False


class _Decoder:
    def __init__(self, read_at: ReadAt, end: int, segment: SegmentName, run: bytes | None, window_bytes: int) -> None:
        self._read_at = read_at
        self._end = end
        self._segment = segment
        self._key = SegmentHead(*segment, run).key if run is not None else None
        self._window_bytes = window_bytes
        self._window = b""
        self._window_start = 0
        self._sums: PrefixSums | None = None

    def frame_at(self, at: int) -> Frame | None:
        """The frame that begins at `at`, if a whole one does."""
        head = self._head_at(at)
        if head is None or at + head.total_bytes > self._end:
            return None
        try:
            rows = decode_rows(self._bytes(at + FRAME_HEAD_BYTES, head.head_bytes))
        except DamagedLog as error:
            raise self._format_error(at, str(error)) from error
        if len(rows) != head.rows or head.kind not in _KINDS:
            raise self._format_error(
                at,
                f"a frame of kind {head.kind} with {len(rows)} rows of {head.rows} is of another version. "
                "Nothing was changed; read the directory with the version that wrote it.",
            )
        body_offset = at + FRAME_HEAD_BYTES + head.head_bytes
        return Frame(head, rows, FrameRef(head.sequence, self._segment.epoch, self._segment.number, body_offset))

    def next_frame(self, at: int, last: FrameHead | None) -> int | None:
        """Where the first frame after the damaged one at `at` begins; `last`: the head of the frame before it."""
        damaged = parse_frame_head(self._bytes(at, FRAME_HEAD_BYTES))
        if damaged is not None and damaged.head_bytes + damaged.body_bytes:
            # The lengths are usually right, and then payloads need not be searched (they may hold anything).
            behind = at + damaged.total_bytes
            if behind == self._end or (behind > self._end and self._matches(at, damaged)):
                return None
            if behind < self._end and self._follows(behind, last):
                return behind
        at += 1
        if self._sums is None:
            self._sums = PrefixSums(self._read_at, at)
        while at + FRAME_HEAD_BYTES <= self._end:
            self._fill(at, FRAME_HEAD_BYTES)
            found = self._window.find(FRAME_MAGIC, at - self._window_start)
            if found < 0:
                # The magic may begin in the window's last bytes.
                at = max(at + 1, self._window_start + len(self._window) - len(FRAME_MAGIC) + 1)
                continue
            at = self._window_start + found
            if self._follows(at, last):
                return at
            at += 1
        return None

    def _follows(self, at: int, last: FrameHead | None) -> bool:
        """Whether a head stands at `at` that may come after `last`: (epoch, sequence) rise, copies before the rest.

        One that does not was written before, and has since been read from the log into a payload. So has a seal that
        stands where it does not belong.
        """
        head = self._head_at(at)
        if head is None:
            return False
        if head.sequence:
            return last is None or (head.epoch, head.sequence) > (last.epoch, last.sequence)
        return bool(head.flags & FrameFlag.FILLER) or self._sealed_at(at, head)

    def _sealed_at(self, at: int, head: FrameHead) -> bool:
        """Whether a frame is the segment's own seal, which says where it stands."""
        try:
            rows = decode_rows(self._bytes(at + FRAME_HEAD_BYTES, head.head_bytes))
        except DamagedLog:
            return False
        return any(type(row) is SealRow and row == SealRow(*self._segment, at) for row in rows)

    def _format_error(self, at: int, what: str) -> FormatError:
        return FormatError(f"{self._segment.file} at {at}: {what}", segment=self._segment, offset=at)

    def _head_at(self, at: int) -> FrameHead | None:
        """A head that could stand in this segment and fits its checksum."""
        head = parse_frame_head(self._bytes(at, FRAME_HEAD_BYTES))
        if head is None or at + FRAME_HEAD_BYTES + head.head_bytes > self._end:
            return None
        if head.flags & FrameFlag.COPIED:
            if head.epoch >= self._segment.epoch:
                return None
        elif head.epoch != self._segment.epoch:
            return None
        return head if self._matches(at, head) else None

    def _matches(self, at: int, head: FrameHead) -> bool:
        if self._key is None or at + FRAME_HEAD_BYTES + head.head_bytes > self._end:
            return False
        fixed = self._bytes(at, FRAME_HEAD_BYTES)
        if self._sums is not None and head.head_bytes > STEP_BYTES:
            start = at + FRAME_HEAD_BYTES
            crc = self._sums.continued(checksum(self._key + fixed[:-4]), start, start + head.head_bytes)
            return crc == int.from_bytes(fixed[-4:], "little")
        return head_matches(fixed, self._bytes(at + FRAME_HEAD_BYTES, head.head_bytes), self._key)

    def _bytes(self, at: int, length: int) -> bytes:
        """Bytes of the segment, fewer at the end of it."""
        length = min(length, self._end - at)
        self._fill(at, length)
        start = at - self._window_start
        return self._window[start : start + length]

    def _fill(self, at: int, length: int) -> None:
        if self._window_start <= at and at + length <= self._window_start + len(self._window):
            return
        self._window_start = at
        self._window = self._read_at(at, max(0, min(max(length, self._window_bytes), self._end - at)))
