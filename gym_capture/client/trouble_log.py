"""What is said about capture's own troubles: said once, then counted, so that a bad hour does not flood a run's log."""

from __future__ import annotations

import logging

from gym_capture.model.clock import Clock

logger = logging.getLogger("gym_capture.client")

_EVERY_S = 60.0


class TroubleLog:
    """A log that says each kind of trouble at most once a minute.

    Args:
        clock: tells when a minute is over.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said: dict[str, float] = {}
        self._more: dict[str, int] = {}

    def warn(self, kind: str, message: str, *args: object) -> None:
        """Warn, or count.

        Args:
            kind: which troubles are alike.
            message, args: as for `logging`.
        """
        self._say(logging.WARNING, kind, message, args)

    def inform(self, kind: str, message: str, *args: object) -> None:
        """The same for what is no trouble."""
        self._say(logging.INFO, kind, message, args)

    def _say(self, level: int, kind: str, message: str, args: tuple[object, ...]) -> None:
        now = self._clock.monotonic()
        if now - self._said.get(kind, float("-inf")) < _EVERY_S:
            self._more[kind] = self._more.get(kind, 0) + 1
            return
        self._said[kind] = now
        more = self._more.pop(kind, 0)
        if more:
            message += f" ({more} more like it since the last such line)"
        logger.log(level, message, *args)
