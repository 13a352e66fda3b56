"""A clock that stands still until it is told otherwise."""

from __future__ import annotations


class ManualClock:
    """A `Clock` for tests.

    Args:
        start: the first monotonic time, seconds.
        wall: the first Unix time, seconds.
    """

    def __init__(self, start: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._monotonic = start
        self._wall = wall

    def monotonic(self) -> float:
        """Monotonic seconds."""
        return self._monotonic

    def time(self) -> float:
        """Unix seconds."""
        return self._wall

    def advance(self, seconds: float) -> None:
        """Let time pass. Has the shape of a `Wait`."""
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self._monotonic += seconds
        self._wall += seconds

    def jump_wall(self, seconds: float) -> None:
        """Move the wall clock alone (it was set, or leapt)."""
        self._wall += seconds
