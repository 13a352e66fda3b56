"""Calls that may block for long (a hung file system, Ray's control store), away from the client's loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from gym_capture.client.blocking_mode import is_blocking

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """What `call` returns or raises, from a daemon thread of its own; for a caller that blocks, from the caller's.

    No pool: one that a parent process filled is dead in a forked child, and its threads would be waited for at exit.
    """
    if is_blocking():
        # A further thread would have an allocator's arena of its own, and what was read would go there: page by page
        # it is new memory each time.
        return call()
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = call()
        except BaseException as raised:  # noqa: BLE001 - whatever it is belongs to the waiting caller
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    threading.Thread(target=run, name="gym_capture-blocking", daemon=True).start()
    return await future
