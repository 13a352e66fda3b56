"""Where the owner's file I/O runs: an interface, and threads behind it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Executor(Protocol):
    """Runs blocking functions away from the loop, one after the other in the order of the calls."""

    async def run(self, fn: Callable[[], T]) -> T:
        """What `fn` returns or raises. Cancelling the wait does not stop `fn`."""

    def close(self) -> None:
        """End once everything that was handed over has run."""


class ThreadExecutor:
    """One or more daemon threads. With one thread everything runs in the order in which it was handed over.

    Args:
        name: what the threads are called.
        threads: how many.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self._queue: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = threads
        self._closed = False
        for number in range(threads):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    async def run(self, fn: Callable[[], T]) -> T:
        """What `fn` returns or raises. Cancelling the wait does not stop `fn`."""
        if self._closed:
            raise RuntimeError("the executor is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put((future, fn))
        return await future

    def close(self) -> None:
        """End once everything that was handed over has run."""
        if not self._closed:
            self._closed = True
            for _ in range(self._threads):
                self._queue.put(None)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            future, fn = item
            result: Any = None
            error: BaseException | None = None
            try:
                result = fn()
            except BaseException as raised:  # noqa: BLE001  # whatever it is belongs to the waiting caller, not to this thread
                error = raised
            try:
                future.get_loop().call_soon_threadsafe(_resolve, future, result, error)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more
            del item, future, fn, result, error


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
