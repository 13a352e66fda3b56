"""The owner's I/O thread, simulated: its function stops at every fault point and goes on some time later.

A greenlet is what makes that possible on one real thread: other processes run in between (a takeover between an
append and its sync, say), a killed process never comes back, and the order is the seed's alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

from gym_capture.service.executor import Done, Executor
from gym_capture.testing.faulty_files import FaultyDisk, FaultyFiles
from tests.simulation.loop import Process, SimLoop


class DiskThread(Executor):
    """An `Executor`: one function at a time, in order."""

    def __init__(self, loop: SimLoop, process: Process, random: Random) -> None:
        self._loop = loop
        self._process = process
        self._random = random
        self._queue: deque[tuple[Callable[[], Any], Done]] = deque()
        self._running: greenlet | None = None

    def start(self, fn: Callable[[], Any], done: Done) -> None:
        """Run `fn` some time later, then tell."""
        self._queue.append((fn, done))
        if self._running is None:
            self._next()

    def close(self) -> None:
        """Nothing to end."""

    def _next(self) -> None:
        if not self._queue:
            self._running = None
            return
        fn, done = self._queue.popleft()

        def body() -> None:
            result, error = None, None
            try:
                result = fn()
            except Exception as raised:  # noqa: BLE001 - it belongs to whoever waits
                error = raised
            self._loop.call_soon(done, result, error, context=self._process.context)

        self._running = greenlet(body)
        self._process.call_later(self._random.expovariate(1 / 0.0005), self._resume, self._running)

    def _resume(self, running: greenlet) -> None:
        delay_s = running.switch()
        if running.dead:
            self._next()
        else:
            self._process.call_later(delay_s, self._resume, running)


def pause(seconds: float) -> None:
    """Let other processes run for so long; in a `DiskThread` only (elsewhere it returns at once)."""
    parent = getcurrent().parent
    if parent is not None:
        parent.switch(seconds)


class SimFiles(FaultyFiles):
    """A view of the disk that takes time at fault points."""

    def __init__(self, disk: FaultyDisk, process: Process, random: Random, *, remote: bool) -> None:
        super().__init__(disk, remote=remote)
        self._process = process
        self._random = random
        self.slow_s = 0.0
        """Each sync takes this much longer."""

    def hang_at(self, point: str, for_s: float, number: int | None) -> None:
        """The next call that reaches this point returns only after so long, or fails then with that errno."""

        def hang() -> None:
            pause(for_s)
            if number is not None:
                raise self._error(number)

        self.run_at(point, hang)

    def reach(self, point: str) -> None:
        """A fault point: sometimes others run here."""
        roll = self._random.random()
        if roll < 0.3:
            pause(self._random.expovariate(1 / 0.002))
        if self.slow_s and "sync" in point:
            pause(self.slow_s)
        super().reach(point)
        if self._process.frozen or not self._process.alive:
            pause(0.0)  # stopped exactly here; it goes on, if ever, when the process does
