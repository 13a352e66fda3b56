"""One event loop for a whole cluster: virtual time, and every callback belongs to a simulated process.

Which process a callback belongs to is told by its context. What belongs to a dead process never runs again; what
belongs to a frozen one waits until it thaws. Nothing else decides the order but the seeded delays, so a seed replays
exactly.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import warnings
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

_PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("simulated_process")

EPOCH_UNIX_S = 1_700_000_000.0


class Process:
    """A simulated process.

    Attributes:
        name: for traces.
        alive, frozen: what runs of it.
        context: where its code runs.
        wall_offset_s: how wrong its host's clock is, seconds.
        monotonic_offset_s: what its host's other clock began with; no two hosts have the same.
        outages: when it was frozen or cut off, as (from, to) in loop seconds.
    """

    def __init__(self, loop: SimLoop, name: str, wall_offset_s: float = 0.0) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self.wall_offset_s = wall_offset_s
        self.monotonic_offset_s = 0.0
        self.outages: list[tuple[float, float]] = []
        self._silent: dict[str, float] = {}
        self.context = contextvars.copy_context()
        self.context.run(_PROCESS.set, self)
        self._loop = loop
        self._backlog: list[asyncio.Handle] = []
        loop.processes.append(self)

    # -- running ------------------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of this process."""
        task = self._loop.create_task(work, context=self.context)
        self._loop.kept.append(task)
        return task

    def call_later(self, delay_s: float, function: Callable[..., object], *args: Any) -> None:
        """A callback of this process."""
        self._loop.call_later(delay_s, function, *args, context=self.context)

    def take(self, callback: asyncio.Handle) -> bool:
        """Whether a callback may run now; while frozen it is kept."""
        if self.frozen and self.alive:
            self._backlog.append(callback)
        return self.alive and not self.frozen

    # -- what happens to it -------------------------------------------------------------------------------------

    def kill(self) -> None:
        """It is gone; whatever it was about to do does not happen."""
        self.alive = False
        self._backlog.clear()

    def freeze(self) -> None:
        """Stop it where it stands."""
        if self.alive and not self.frozen:
            self.frozen = True
            self.begin_outage("frozen")

    def thaw(self) -> None:
        """Let it go on: everything that came due meanwhile runs at once, in order."""
        if not self.frozen:
            return
        self.frozen = False
        self.end_outage("frozen")
        backlog, self._backlog = self._backlog, []
        self._loop.go_on_with(backlog)

    def begin_outage(self, cause: str) -> None:
        """Nobody hears of it from now on."""
        self._silent.setdefault(cause, self._loop.time())

    def end_outage(self, cause: str) -> None:
        """That cause is over."""
        start = self._silent.pop(cause, None)
        if start is not None:
            self.outages.append((start, self._loop.time()))

    def silent_for(self, start: float, end: float) -> float:
        """For how long it was silent in this interval or up to its beginning, all outages together, seconds."""
        outages = [*self.outages, *((since, end) for since in self._silent.values())]
        return sum(min(until, end) - since for since, until in outages if since <= end and until >= start)


class SimLoop(asyncio.BaseEventLoop):
    """For one thread, without sockets. It goes round as asyncio's does, but asks whose a callback is before it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[Process] = []
        self.kept: list[asyncio.Task[Any]] = []
        """Tasks of processes that may be dead, so that none is collected before `bury`."""
        self.turns = 0
        """How often the loop has gone round."""
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_set = 0

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    def call_at(  # type: ignore[override]  # the types of variadic callbacks are not checked here
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def _write_to_self(self) -> None:
        """Nothing to wake: what other threads would do here is done in this one."""

    def go_on_with(self, callbacks: Iterable[asyncio.Handle]) -> None:
        """Run these in order, as soon as it is their turn."""
        self._ready.extend(callbacks)  # type: ignore[attr-defined]  # BaseEventLoop's own queue

    def _run_once(self) -> None:
        timers, ready = self._timers, self._ready  # type: ignore[attr-defined]  # BaseEventLoop's own queue
        self.turns += 1
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise RuntimeError("deadlock: nothing can run and no timer is set")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_PROCESS)
            if process is None or process.take(handle):
                handle._run()

    def bury(self) -> None:
        """The end of a schedule: no process runs any more, and no task is left to complain of it."""
        for process in self.processes:
            process.kill()
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own switch for this
            coroutine = task.get_coro()
            try:
                if coroutine is not None:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", RuntimeWarning)  # its process died before its first step
                        coroutine.close()
            except (RuntimeError, ValueError):
                pass  # it is the one that runs, or it insists on an answer that nobody will give


class ProcessClock:
    """A process's clocks: the loop's time, and a wall clock that may be wrong and may jump."""

    def __init__(self, loop: SimLoop, process: Process) -> None:
        self._loop = loop
        self._process = process

    def monotonic(self) -> float:
        """Seconds since the host's own beginning."""
        return self._loop.time() + self._process.monotonic_offset_s

    def time(self) -> float:
        """What the host takes for Unix time."""
        return EPOCH_UNIX_S + self._loop.time() + self._process.wall_offset_s
