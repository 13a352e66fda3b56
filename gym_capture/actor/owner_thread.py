"""The thread and event loop that an owner has to itself inside the actor's process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from gym_capture.actor.niceness import rank_as_ordinary

T = TypeVar("T")


class OwnerThread:
    """A daemon thread that runs one event loop; every other thread's loop hands its work over.

    Args:
        name: the thread's name.
    """

    def __init__(self, name: str = "capture-owner") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        rank_as_ordinary()  # first: the threads that the owner starts take after this one
        self._loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine in the owner's loop. Cancelling the future cancels the coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns or raises in the owner's loop, awaited from another one."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def stop(self) -> None:
        """End the loop and the thread. From any other thread; what still runs in the loop is cancelled first."""
        self.submit(_cancel_others()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
