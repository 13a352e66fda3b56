"""A client core on the loop that its callers run in: for simulations, and tests in one thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from gym_capture.client.answer import Answer
from gym_capture.client.core import ClientCore
from gym_capture.client.leftover import warn_of_leftovers
from gym_capture.client.operations import Flush, Operation
from gym_capture.client.options import ClientOptions
from gym_capture.client.transport import Transport
from gym_capture.model.clock import Clock
from gym_capture.model.entropy import Entropy

T = TypeVar("T")


class LoopHost:
    """A `Host` without a thread.

    Args:
        core: the core, made for the running loop.
        transport, options, clock, entropy: what the core was made of.
    """

    def __init__(self, core: ClientCore, transport: Transport, options: ClientOptions, clock: Clock, entropy: Entropy):
        self.options = options
        self.clock = clock
        self.entropy = entropy
        self.core = core
        self._transport = transport
        self._inbox: deque[Operation] = deque()
        self.task = core.loop.create_task(core.run())

    @property
    def transport_name(self) -> str:
        """`stream`, `ray` or `in-process`."""
        return self._transport.name

    @property
    def incarnation(self) -> object:
        """The one core."""
        return self.core

    async def perform(self, operation: Operation) -> Any:
        """Hand in an operation and wait for its value."""
        loop = operation.loop = asyncio.get_running_loop()
        answer = operation.answer = Answer(loop)
        self.post(operation)
        await answer
        if operation.error is not None:
            raise operation.error
        return operation.value

    def post(self, operation: Operation) -> None:
        """Hand in an operation without waiting."""
        self._inbox.append(operation)
        if len(self._inbox) == 1 and not self.core.loop.is_closed():
            self.core.loop.call_soon(self._drain)

    def _drain(self) -> None:
        operations = list(self._inbox)
        self._inbox.clear()
        self.core.handle(operations)

    async def foreign(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine."""
        return await work

    def core_stats(self) -> dict[str, Any]:
        """The core's counters."""
        return self.core.stats()

    async def close(self, timeout_s: float) -> bool:
        """Wait until all that was handed in is answered (at most `timeout_s`), then end."""
        flushed = bool(await self.perform(Flush(timeout_s)))
        self.core.close()
        await asyncio.wait([self.task])
        if self.core.leftover is not None:
            warn_of_leftovers([self.core.leftover])
        return flushed
