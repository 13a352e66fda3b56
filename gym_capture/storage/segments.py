"""Writing the log: groups of frames appended to segment files, one sync a group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from gym_capture.errors import OwnerUnavailable
from gym_capture.model.codec import (
    FRAME_HEAD_BYTES,
    MAX_FRAME_BYTES,
    FrameFlag,
    FrameKind,
    FrameRef,
    PendingFrame,
    SegmentHead,
    encode_frame_head,
    encode_rows,
    encode_segment_head,
)
from gym_capture.model.rows import CutRow, MembersRow, Row, SealRow, rollouts_of
from gym_capture.storage import fault_points
from gym_capture.storage.files import AppendFile, Files
from gym_capture.storage.names import SegmentName

SEGMENT_BYTES = 64 * 1024 * 1024
"""A segment that has grown this long is finished."""

SEAL_SEQUENCE = 0
"""Sequence of the writer's own seal frames: they say the same however often they are read, so none is a copy."""


class FramePlace(NamedTuple):
    """Where a frame lies: the segment's number in its epoch, and the frame's first byte and the one after its last."""

    segment: int
    start: int
    end: int


class SegmentWriter:
    """The one writer of an epoch's segments. Not safe for threads: one call at a time, in the owner's executor.

    What is appended between two syncs is one group, and only the last group can be on its way to disk: a segment is
    left for the next one only when all of it is synced. After an OSError nothing about the last group is known, so
    the writer refuses everything from then on; the owner takes the next epoch and recovers.

    Args:
        files: the capture directory.
        run: the run's 16-byte uuid.
        epoch: the writer's epoch.
        segment_bytes: a segment of this length is finished before the next group.

    Attributes:
        last: where the frame that was appended last lies.
    """

    def __init__(
        self,
        files: Files,
        run: bytes,
        epoch: int,
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._files = files
        self._run = run
        self.epoch = epoch
        self.last_sequence = 0
        self.last = FramePlace(0, 0, 0)
        self._segment_bytes = segment_bytes
        self._cuts: list[CutRow] = []
        self._file: AppendFile | None = None
        self._number = 0
        self._rollouts: set[str] = set()
        self._group = 1
        self._unsynced = False
        self._failure: OSError | None = None
        self._closed = False

    @property
    def segment(self) -> SegmentName:
        """The segment that is being written (or will be, before the first append)."""
        return SegmentName(self.epoch, self._number)

    @property
    def position(self) -> int:
        """Bytes of that segment so far."""
        return self._file.size if self._file else 0

    @property
    def failed(self) -> bool:
        """Whether an append or sync failed, so that everything is refused."""
        return self._failure is not None

    def append(self, group: Sequence[PendingFrame], point: str = fault_points.APPEND) -> None:
        """Append frames with one call; they are on disk once `sync` returns. Fills in each frame's `ref`.

        Args:
            group: frames with `ref.sequence` set; sequences never fall.
            point: the fault point's label.

        Raises:
            OSError: nothing is known of these frames; the writer is spent.
            OwnerUnavailable: the writer was spent before, or is closed.
        """
        self._write([(self.epoch, frame) for frame in group], point)

    def copy(self, frames: Sequence[tuple[int, PendingFrame]], point: str = fault_points.COPY_APPEND) -> None:
        """Append copies of earlier epochs' frames, each with its original epoch; sequence and rows stay the same."""
        self._write([(epoch, frame._replace(flags=frame.flags | FrameFlag.COPIED)) for epoch, frame in frames], point)

    def repeat(self, cuts: Iterable[CutRow]) -> None:
        """From now on each further segment begins with these cuts.

        Only once the opening that makes them is on disk: copies fill several segments when they are many, and a cut
        that stands at the start of one, before all copies are on disk, takes the rest of them away.
        """
        self._cuts = list(cuts)

    def sync(self, point: str = fault_points.SYNC) -> None:
        """Return once all that was appended is on disk: the group ends.

        Raises:
            OSError: nothing is known of the group; the writer is spent.
            OwnerUnavailable: the writer was spent before, or is closed.
        """
        self._check()
        if self._file is None or not self._unsynced:
            return
        with self._spent_by_failure():
            self._file.sync(point)
        self._unsynced = False
        self._group += 1

    def close(self) -> None:
        """End cleanly: sync, and seal the segment where it ends, so that nothing in it can pass for torn."""
        if self._closed:
            return
        if self._file is not None and not self.failed:
            self.sync()
            with self._spent_by_failure():
                seal = self._seal_frame(self._seal_rows())
                self._file.append(seal, fault_points.APPEND)
                self._file.sync(fault_points.SYNC)
        self.abandon()

    def abandon(self) -> None:
        """Give the file back without writing anything more."""
        self._closed = True
        if self._file is not None:
            self._file.close()

    def _write(self, frames: Sequence[tuple[int, PendingFrame]], point: str) -> None:
        self._check()
        if not frames:
            return
        sizes = [(frame, sum(map(len, frame.body))) for _, frame in frames]
        for frame, body_bytes in sizes:
            if FRAME_HEAD_BYTES + len(frame.rows) + body_bytes > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {len(frame.rows)} + {body_bytes} bytes is longer than {MAX_FRAME_BYTES}")
        with self._spent_by_failure():
            file, buffers = self._room()
            at = file.size + sum(map(len, buffers))
            for (epoch, frame), (_, body_bytes) in zip(frames, sizes, strict=True):
                head = encode_frame_head(
                    frame.rows,
                    key=self._head.key,
                    kind=frame.kind,
                    flags=frame.flags,
                    epoch=epoch,
                    group=self._group,
                    sequence=frame.ref.sequence,
                    row_count=frame.row_count,
                    body_bytes=body_bytes,
                )
                buffers += (head, frame.rows, *frame.body)
                frame.ref.epoch = self.epoch
                frame.ref.segment = self._number
                frame.ref.body_offset = at + FRAME_HEAD_BYTES + len(frame.rows)
                start, at = at, frame.ref.body_offset + body_bytes
                self.last = FramePlace(self._number, start, at)
                self.last_sequence = max(self.last_sequence, frame.ref.sequence)
                self._rollouts.update(frame.rollouts)
            self._unsynced = True
            file.append(buffers, point)

    def _room(self) -> tuple[AppendFile, list[bytes | memoryview]]:
        """The file for the next group, and what has to stand in it before the group."""
        if self._file is None:
            self._file = self._create()
            return self._file, [self._header()]
        if self._file.size < self._segment_bytes:
            return self._file, []
        # The seal says that every byte was synced, and it may reach the disk before anything else does.
        self.sync()
        sealed = self._seal_rows()
        self._file.close()
        self._number += 1
        self._rollouts.clear()
        self._file = self._create()
        return self._file, [self._header(), *self._seal_frame(sealed)]

    def _create(self) -> AppendFile:
        return self._files.create_append(self.segment.file, fault_points.SEGMENT)

    def _header(self) -> bytes:
        return encode_segment_head(self._head)

    @property
    def _head(self) -> SegmentHead:
        return SegmentHead(self.epoch, self._number, self._run)

    def _seal_rows(self) -> list[Row]:
        """What says that the present segment is finished."""
        return [
            SealRow(self.epoch, self._number, self.position),
            MembersRow(self.epoch, self._number, sorted(self._rollouts)),
            *self._cuts,
        ]

    def _seal_frame(self, rows: list[Row]) -> list[bytes | memoryview]:
        """A seal's frame, for the present segment."""
        encoded = encode_rows(rows)
        head = encode_frame_head(
            encoded,
            key=self._head.key,
            kind=FrameKind.OWNER,
            epoch=self.epoch,
            group=self._group,
            sequence=SEAL_SEQUENCE,
            row_count=len(rows),
            body_bytes=0,
        )
        return [head, encoded]

    def _check(self) -> None:
        if self._failure is not None:
            raise OwnerUnavailable(
                f"writing the log in {self._files.directory} failed ({self._failure}), so this epoch writes nothing "
                "more. What was acknowledged is safe; take the next epoch and recover."
            ) from self._failure
        if self._closed:
            raise OwnerUnavailable(f"the log writer of epoch {self.epoch} is closed; what it synced is safe.")

    @contextmanager
    def _spent_by_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._failure is None:
                self._failure = error
            raise


def owner_frame(rows: Sequence[Row], sequence: int, epoch: int) -> PendingFrame:
    """A frame of the owner's own rows, ready to be appended."""
    ref = FrameRef(sequence, epoch)
    return PendingFrame(FrameKind.OWNER, encode_rows(rows), len(rows), (), ref, rollouts=rollouts_of(rows))
