"""Answers on their way back to callers: one wake-up for each caller's loop and turn, not one for each answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gym_capture.client.operations import Operation
from gym_capture.errors import GymCaptureError


class Delivery:
    """Collects finished operations and wakes their callers.

    Args:
        undelivered: called with an operation whose caller's loop is closed.
    """

    def __init__(self, undelivered: Callable[[Operation], None]) -> None:
        self._undelivered = undelivered
        self._finished: dict[asyncio.AbstractEventLoop, list[Operation]] = {}

    def finish(self, operation: Operation, value: Any = None, error: GymCaptureError | None = None) -> None:
        """The operation has its answer; once only, later ones are ignored."""
        if operation.done:
            return
        operation.value = value
        operation.error = error
        operation.done = True
        loop = operation.loop
        if loop is not None:
            waiting = self._finished.get(loop)
            if waiting is None:
                self._finished[loop] = [operation]
            else:
                waiting.append(operation)
        elif operation.gate is not None:
            operation.gate.release()

    def flush(self) -> None:
        """Wake the callers of all that was finished since the last flush."""
        if not self._finished:
            return
        finished, self._finished = self._finished, {}
        for loop, operations in finished.items():
            try:
                loop.call_soon_threadsafe(_settle, operations)
            except RuntimeError:  # the caller's loop is closed
                for operation in operations:
                    self._undelivered(operation)


def _settle(operations: list[Operation]) -> None:
    """Runs in the callers' loop: their tasks go on, one after the other."""
    settled = 0
    try:
        for operation in operations:
            settled += 1
            if operation.answer is not None:
                operation.answer.settle()
    finally:
        # A task may end the loop (a KeyboardInterrupt passes through it). The others still have their answers.
        if settled < len(operations) and (loop := operations[0].loop) is not None:
            loop.call_soon(_settle, operations[settled:])
