"""Who waits for quiescence: of a rollout, or of the run.

An answer of True needs two things: nothing outstanding at the moment of the answer, and an ownership check that began
after the question (a frozen owner that thaws must not answer from what it remembers). Events drive it: a waiter costs
one small object and one entry in a heap of deadlines, and one timer of the loop serves them all.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from itertools import islice
from math import inf

from gym_capture.errors import GymCaptureError
from gym_capture.model.ledger import Settled

Answer = Callable[[bool | GymCaptureError], None]

_SLICE = 256
"""Answers given before other work gets its turn."""
_CHECK_GRACE_S = 1.0
"""How much longer than it asked for a waiter may wait for an ownership check that is under way."""
_LONGEST_TIMER_S = 3600.0


class Waiter:
    """One caller. `answer` is None once it was answered or cancelled."""

    __slots__ = ("answer", "asked", "checking", "deadline", "key")

    def __init__(self, key: str | None, deadline: float, asked: int, answer: Answer) -> None:
        self.key = key
        self.deadline = deadline
        self.asked = asked
        self.answer: Answer | None = answer
        self.checking = False


class Waiters:
    """All callers that wait for quiescence.

    Args:
        outstanding: what a rollout (None: the run) has outstanding now; above zero while that is not known.
        check: the ownership check. Once it has raised, the waiters stay as they are until `recheck` or `abandon`.
        groups_started: how many groups were handed to the disk so far.
    """

    def __init__(
        self,
        outstanding: Callable[[str | None], int],
        check: Callable[[], Awaitable[bool]],
        groups_started: Callable[[], int],
    ) -> None:
        self._outstanding = outstanding
        self._check = check
        self._groups_started = groups_started
        self._waiting: dict[str | None, dict[Waiter, None]] = {}
        self._unchecked: list[Waiter] = []
        self._checker: asyncio.Task[None] | None = None
        self._heap: list[tuple[float, int, Waiter]] = []
        self._pushed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._abandoned: GymCaptureError | None = None
        self.count = 0

    def add(self, key: str | None, timeout_s: float, answer: Answer) -> Waiter:
        """Wait for at most `timeout_s`; `answer` is told True, False (time is over) or an error, perhaps at once."""
        now = asyncio.get_running_loop().time()
        waiter = Waiter(key, now + max(timeout_s, 0.0), self._groups_started(), answer)
        self.count += 1
        if not self._outstanding(key):
            self._confirm([waiter])
        elif timeout_s <= 0:
            self._finish(waiter, False)
        else:
            self._park(waiter)
        if waiter.answer is not None and waiter.deadline != inf:
            self._push(waiter.deadline, waiter)
        return waiter

    def cancel(self, waiter: Waiter) -> None:
        """Nobody waits any more; nothing is told."""
        if waiter.answer is not None:
            waiter.answer = None
            self.count -= 1
            self._unpark(waiter)

    def settled(self, settled: Settled, group: int) -> None:
        """Group number `group` is durable, and with it these became quiescent."""
        if not self._waiting:
            return
        woken: list[Waiter] = []
        for rollout_id in settled.rollouts:
            woken += self._waiting.pop(rollout_id, ())
        if settled.run:
            woken += self._waiting.pop(None, ())
        # The group's ownership check answers those who asked before the group was handed over.
        fresh = [waiter for waiter in woken if waiter.asked >= group]
        if fresh:
            self._confirm(fresh)
            woken = [waiter for waiter in woken if waiter.asked < group]
        self._release(woken)

    def recheck(self) -> None:
        """The state was rebuilt: look at every waiter anew."""
        everyone = [waiter for waiters in self._waiting.values() for waiter in waiters]
        self._waiting.clear()
        self._confirm([waiter for waiter in everyone if not self._outstanding(waiter.key)])
        for waiter in everyone:
            if not waiter.checking:
                self._park(waiter)

    def abandon(self, error: GymCaptureError) -> None:
        """Tell everyone `error`, those who come later too."""
        self._abandoned = error
        everyone = [waiter for waiters in self._waiting.values() for waiter in waiters] + self._unchecked
        self._waiting.clear()
        self._unchecked = []
        for waiter in everyone:
            self._finish(waiter, error)

    def close(self) -> None:
        """Let go of the timer and the check that is under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._checker is not None:
            self._checker.cancel()

    # -- from quiescent to answered -----------------------------------------------------------------------------

    def _confirm(self, waiters: list[Waiter]) -> None:
        if not waiters:
            return
        for waiter in waiters:
            waiter.checking = True
        self._unchecked += waiters
        if self._checker is None:
            self._checker = asyncio.get_running_loop().create_task(self._check_all(), name="quiescence-check")

    async def _check_all(self) -> None:
        """One check answers everyone who asked before it began."""
        try:
            while self._unchecked:
                asked, self._unchecked = self._unchecked, []
                owned = False
                try:
                    owned = await self._check()
                finally:
                    if not owned:
                        self._unconfirmed(asked)
                if owned:
                    self._release(asked)
        finally:
            self._checker = None

    def _unconfirmed(self, asked: list[Waiter]) -> None:
        for waiter in asked:
            waiter.checking = False
            if waiter.answer is None:
                continue
            if self._outstanding(waiter.key):
                self._park(waiter)
            else:
                waiter.checking = True
                self._unchecked.append(waiter)

    def _release(self, waiters: list[Waiter]) -> None:
        """Answer those whose key is quiescent at this very moment; the others go on waiting."""
        now = asyncio.get_running_loop().time()
        for waiter in islice(waiters, _SLICE):
            waiter.checking = False
            if waiter.answer is None:
                continue
            if not self._outstanding(waiter.key):
                self._finish(waiter, True)
            elif waiter.deadline <= now:
                self._finish(waiter, False)
            else:
                self._park(waiter)
        if len(waiters) > _SLICE:
            asyncio.get_running_loop().call_soon(self._release, waiters[_SLICE:])

    def _finish(self, waiter: Waiter, result: bool | GymCaptureError) -> None:
        answer = waiter.answer
        if answer is not None:
            waiter.answer = None
            self.count -= 1
            answer(result)

    def _park(self, waiter: Waiter) -> None:
        if self._abandoned is not None:
            self._finish(waiter, self._abandoned)
            return
        self._waiting.setdefault(waiter.key, {})[waiter] = None

    def _unpark(self, waiter: Waiter) -> None:
        waiters = self._waiting.get(waiter.key)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiting[waiter.key]

    # -- deadlines ----------------------------------------------------------------------------------------------

    def _push(self, at: float, waiter: Waiter) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at, self._pushed, waiter))
        if len(self._heap) > 2 * self.count + 1024:
            self._heap = [entry for entry in self._heap if entry[2].answer is not None]
            heapq.heapify(self._heap)
        self._arm()

    def _arm(self) -> None:
        if not self._heap:
            return
        loop = asyncio.get_running_loop()
        at = min(self._heap[0][0], loop.time() + _LONGEST_TIMER_S)
        if self._timer is None or at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = loop.call_at(at, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for waiter in self._due(now):
            if waiter.checking and now < waiter.deadline + _CHECK_GRACE_S:
                self._push(waiter.deadline + _CHECK_GRACE_S, waiter)
            else:
                self._unpark(waiter)
                self._finish(waiter, False)
        self._arm()

    def _due(self, now: float) -> list[Waiter]:
        due: list[Waiter] = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][2].answer is None):
            waiter = heapq.heappop(self._heap)[2]
            if waiter.answer is not None:
                due.append(waiter)
        return due
