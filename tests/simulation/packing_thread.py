"""The thread in which a client packs large exchanges, simulated: one after the other, each done some time later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from random import Random
from typing import Any

from tests.simulation.loop import Process


class PackingThread(Executor):
    """A thread of a simulated process; it dies and freezes with it."""

    def __init__(self, process: Process, random: Random) -> None:
        self._process = process
        self._random = random
        self._queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run it later."""
        future: Future[Any] = Future()
        self._queue.append((future, lambda: fn(*args, **kwargs)))
        if len(self._queue) == 1:
            self._next()
        return future

    def _next(self) -> None:
        self._process.call_later(self._random.expovariate(1 / 0.01), self._run)

    def _run(self) -> None:
        future, work = self._queue.popleft()
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
            future.set_exception(error)
        else:
            future.set_result(result)
        if self._queue:
            self._next()
