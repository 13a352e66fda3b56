"""The clock that leases run on: it counts only time in which the owner was serving."""

from __future__ import annotations

from gym_capture.model.clock import Clock


class ServingClock:
    """Seconds of serving. An owner that was frozen or kept busy gains at most two ticks, however long that lasted.

    Args:
        clock: the machine's.
        tick_s: how often `tick` is meant to be called.
    """

    def __init__(self, clock: Clock, tick_s: float) -> None:
        self._clock = clock
        self._most = 2 * tick_s
        self._ticked_at = clock.monotonic()
        self._at_tick = 0.0

    def now(self) -> float:
        """Seconds served so far."""
        return self._at_tick + min(max(self._clock.monotonic() - self._ticked_at, 0.0), self._most)

    def tick(self) -> float:
        """Go on counting. Returns what the clock said at the previous tick.

        A lease that had ended by then has been given one more tick of reading in which its holder could be heard.
        """
        before = self._at_tick
        at = self._clock.monotonic()
        self._at_tick = before + min(max(at - self._ticked_at, 0.0), self._most)
        self._ticked_at = at
        return before
