"""Asking a run to end early: first gently, then at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class StopRequest:
    """A stop that may be asked for from the run's event loop (a signal handler, say).

    Args:
        grace_s: how long rollouts that run may go on after the first request, seconds.
    """

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.requested = False
        self.expired = False
        self._listeners: list[Callable[[], object]] = []
        self._timer: asyncio.TimerHandle | None = None

    def on_change(self, listener: Callable[[], object]) -> None:
        """Call `listener` whenever `requested` or `expired` becomes true."""
        self._listeners.append(listener)

    def request(self) -> None:
        """Start nothing more; what runs has `grace_s`. Asked for again: it has none."""
        if self.requested:
            self.expire()
            return
        self.requested = True
        self._timer = asyncio.get_running_loop().call_later(self.grace_s, self.expire)
        self._tell()

    def expire(self) -> None:
        """What still runs is given up now."""
        self.requested = self.expired = True
        if self._timer is not None:
            self._timer.cancel()
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()
