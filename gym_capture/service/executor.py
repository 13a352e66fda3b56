"""Where the owner's file I/O runs: an interface, and threads behind it."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


Done = Callable[[Any, BaseException | None], None]
"""Told what a function returned (or None), and what it raised (or None)."""


class Executor(ABC):
    """Runs blocking functions away from the loop, one after the other in the order of the calls."""

    @abstractmethod
    def start(self, fn: Callable[[], Any], done: Done) -> None:
        """Run `fn`, then call `done` in the loop that runs now, in a turn of its own."""

    @abstractmethod
    def close(self) -> None:
        """End once everything that was handed over has run."""

    async def run(self, fn: Callable[[], T]) -> T:
        """What `fn` returns or raises. Cancelling the wait does not stop `fn`."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def settle(result: T, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.start(fn, settle)
        return await future


class ThreadExecutor(Executor):
    """One or more daemon threads. With one thread everything runs in the order in which it was handed over.

    Args:
        name: what the threads are called.
        threads: how many.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self._queue: SimpleQueue[tuple[asyncio.AbstractEventLoop, Callable[[], Any], Done] | None] = SimpleQueue()
        self._threads = threads
        self._closed = False
        for number in range(threads):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    def start(self, fn: Callable[[], Any], done: Done) -> None:
        """Run `fn`, then call `done` in the loop that runs now."""
        if self._closed:
            raise RuntimeError("the executor is closed")
        self._queue.put((asyncio.get_running_loop(), fn, done))

    def close(self) -> None:
        """End once everything that was handed over has run."""
        if not self._closed:
            self._closed = True
            for _ in range(self._threads):
                self._queue.put(None)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            loop, fn, done = item
            result: Any = None
            error: BaseException | None = None
            try:
                result = fn()
            except BaseException as raised:  # noqa: BLE001  # whatever it is belongs to the waiting caller, not to this thread
                error = raised
            try:
                loop.call_soon_threadsafe(done, result, error)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more
            del item, loop, fn, done, result, error
