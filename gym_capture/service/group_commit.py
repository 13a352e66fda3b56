"""Group commit: everything that queued up while the last sync ran goes to disk as one group.

The order is the promise: a group is appended, synced, then the ownership is checked, and only then, back on the loop,
its frames count as durable and their callers are told. Nothing is told earlier.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from gym_capture.errors import Superseded
from gym_capture.model.clock import Clock
from gym_capture.model.codec import FRAME_HEAD_BYTES, FrameRef, PendingFrame
from gym_capture.service.executor import Executor
from gym_capture.service.latency import Latency
from gym_capture.storage.segments import FramePlace

Done = Callable[[bool], None]
"""Told once: True when the frame is durable, False when it was dropped (its fate is then decided by a recovery)."""


class Staged(NamedTuple):
    """A frame in the queue, its bytes, and whom to tell."""

    frame: PendingFrame
    size: int
    done: Done | None


class LastFrame(NamedTuple):
    """The frame that was submitted last, its lengths, and where it lies once it is appended."""

    ref: FrameRef
    head_bytes: int
    body_bytes: int

    @property
    def place(self) -> FramePlace:
        """Where it lies; it has been appended."""
        start = self.ref.body_offset - self.head_bytes
        return FramePlace(self.ref.segment, start, self.ref.body_offset + self.body_bytes)


class CommitCounters:
    """What was committed so far. `latency` is that of the groups: between handing one over and having it back."""

    __slots__ = ("bytes", "frames", "groups", "latency")

    def __init__(self) -> None:
        self.groups = 0
        self.frames = 0
        self.bytes = 0
        self.latency = Latency()


class GroupCommit:
    """The queue of frames, for one epoch of the log: one group at most is on its way to disk.

    Args:
        commit: appends the frames, syncs, and checks the ownership; runs in `executor`, one call at a time.
        durable: told on the loop that all frames up to a sequence are on disk, with the group's number, before the
            frames' own callbacks.
        releasing, released: told before and after all those.
        failed: told that a group failed; every frame that was not durable is dropped.
        superseded: told that another owner has the directory; likewise.
        group_bytes: bound of one group (a single frame may be larger).
        counters: added to.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[PendingFrame]], None],
        executor: Executor,
        clock: Clock,
        *,
        durable: Callable[[int, int], None],
        releasing: Callable[[], None],
        released: Callable[[], None],
        failed: Callable[[Exception], None],
        superseded: Callable[[Superseded], None],
        group_bytes: int,
        counters: CommitCounters,
    ) -> None:
        self._commit = commit
        self._executor = executor
        self._clock = clock
        self._durable = durable
        self._releasing = releasing
        self._released = released
        self._failed = failed
        self._superseded = superseded
        self._group_bytes = group_bytes
        self._counters = counters
        self._queue: deque[Staged] = deque()
        self._in_flight: list[Staged] = []
        self._extra: dict[int, list[Done]] = {}
        self._ended = False
        self._busy = False
        self._before = 0.0
        self.started = 0
        self.last: LastFrame | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or on its way."""
        return not self._queue and not self._in_flight

    @property
    def waiting(self) -> int:
        """How many frames are queued or on their way."""
        return len(self._queue) + len(self._in_flight)

    def submit(self, frame: PendingFrame, done: Done | None = None) -> None:
        """Queue a frame. Sequences rise by the order of the calls. After `abort` it is dropped at once."""
        if self._ended:
            if done:
                done(False)
            return
        body_bytes = sum(map(len, frame.body))
        head_bytes = FRAME_HEAD_BYTES + len(frame.rows)
        self.last = LastFrame(frame.ref, head_bytes, body_bytes)
        size = head_bytes + body_bytes
        self._queue.append(Staged(frame, size, done))
        if not self._busy:
            self._begin()

    def when_durable(self, sequence: int, done: Done) -> None:
        """Also tell `done` about the frame `sequence`, which is queued or on its way."""
        self._extra.setdefault(sequence, []).append(done)

    async def flush(self) -> bool:
        """Wait until all that was submitted before is durable; False when it was dropped instead."""
        last = self._queue[-1] if self._queue else self._in_flight[-1] if self._in_flight else None
        if last is None:
            return not self._ended
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.when_durable(last.frame.ref.sequence, lambda ok: None if future.done() else future.set_result(ok))
        return await future

    def abort(self) -> None:
        """End: frames that are not durable are dropped, whoever waits for them is told so."""
        if self._ended:
            return
        self._ended = True
        dropped = [*self._in_flight, *self._queue]
        extra = [done for waiting in self._extra.values() for done in waiting]
        self._in_flight = []
        self._queue.clear()
        self._extra.clear()
        for staged in dropped:
            if staged.done:
                staged.done(False)
        for done in extra:
            done(False)

    def _begin(self) -> None:
        """Hand the next group over to the disk."""
        self._busy = True
        self._in_flight = group = self._take()
        self.started += 1
        self._before = self._clock.monotonic()
        self._executor.start(partial(self._commit, [staged.frame for staged in group]), self._handed_back)

    def _handed_back(self, _result: object, error: BaseException | None) -> None:
        if self._ended:
            return
        try:
            if error is not None:
                raise error
            self._counters.latency.add(self._clock.monotonic() - self._before)
            self._release(self._in_flight)
            self._busy = False
            if self._queue:
                self._begin()
        except Superseded as superseded:
            self._superseded(superseded)
        except Exception as failure:  # noqa: BLE001  # whatever it was, what is known may be wrong: recover
            self._failed(failure)

    def _take(self) -> list[Staged]:
        group: list[Staged] = []
        room = self._group_bytes
        queue = self._queue
        while queue and (not group or queue[0].size <= room):
            staged = queue.popleft()
            room -= staged.size
            group.append(staged)
        return group

    def _release(self, group: list[Staged]) -> None:
        """The group is on disk and was still ours after that."""
        self._in_flight = []
        self._releasing()
        try:
            self._tell(group)
        finally:
            self._released()

    def _tell(self, group: list[Staged]) -> None:
        counters = self._counters
        counters.groups += 1
        counters.frames += len(group)
        counters.bytes += sum(staged.size for staged in group)
        self._durable(group[-1].frame.ref.sequence, self.started)
        for staged in group:
            if staged.done:
                staged.done(True)
        if self._extra:
            last = group[-1].frame.ref.sequence
            for sequence in [number for number in self._extra if number <= last]:
                for done in self._extra.pop(sequence):
                    done(True)
