"""Time, as everything here asks for it: tests bring their own clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def monotonic(self) -> float:
        """Seconds that never run backwards, from an arbitrary start; for measuring and deadlines."""

    def time(self) -> float:
        """Unix seconds (UTC); for showing and storing, never for measuring."""


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """`time.monotonic()`."""
        return time.monotonic()

    def time(self) -> float:
        """`time.time()`."""
        return time.time()
