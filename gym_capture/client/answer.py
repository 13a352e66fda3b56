"""The future that a caller awaits, which goes on with its task in the turn of the loop that brings the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any


class Answer(asyncio.Future[None]):
    """Awaited by one task; `settle` runs that task's next step at once instead of in a turn of its own.

    A step that runs at once runs as the loop's callback, where no other task is current.
    """

    __slots__ = ("_context", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._waiting: Callable[[Answer], object] | None = None
        self._context: Context | None = None

    def add_done_callback(self, fn: Callable[[Answer], object], /, *, context: Context | None = None) -> None:
        """Keep the first callback, the awaiting task's; any other is called as a future's always are."""
        if self._waiting is not None or context is None or self.done():
            super().add_done_callback(fn, context=context)
        else:
            self._waiting, self._context = fn, context

    def remove_done_callback(self, fn: Callable[[Answer], object], /) -> int:
        """Forget a callback."""
        if self._waiting is not None and self._waiting == fn:
            self._waiting = None
            return 1
        return super().remove_done_callback(fn)

    def cancel(self, msg: Any | None = None) -> bool:
        """Nobody waits for the answer any more; the task hears of that in the next turn."""
        if not super().cancel(msg):
            return False
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self.get_loop().call_soon(waiting, self, context=self._context)
        return True

    def settle(self) -> None:
        """The answer is there. From a callback of the loop only, not inside a task."""
        if self.done():
            return
        self.set_result(None)
        waiting, self._waiting = self._waiting, None
        context, self._context = self._context, None
        if waiting is not None and context is not None:
            context.run(waiting, self)
