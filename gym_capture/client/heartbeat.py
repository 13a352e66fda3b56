"""A link's signs of life: something is said before the lease ends, and it is noticed when nothing is heard for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gym_capture.client.transport import Link, progress_of
from gym_capture.client.trouble_log import logger


class Heartbeat:
    """Watches one link at a time. Runs in the client's loop only.

    A link on which nothing is heard any more is closed a lease and a sixth of one after the last message; if that came
    in part only, up to another sixth later, for how far a part has come is only looked at every sixth.

    Args:
        lease_s: as configured, until the owner says another.
        beat: says something, where the owner is there.

    Attributes:
        lease_s: seconds of silence that end a lease.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, lease_s: float, beat: Callable[[], None]) -> None:
        self.lease_s = lease_s
        self._loop = loop
        self._beat = beat
        self._last_sent = self._last_heard = loop.time()
        self._link: Link | None = None
        self._progress = 0
        self._suspected = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, link: Link) -> None:
        """A link was opened."""
        self._link = link
        self.heard()
        self._look_again(self._loop.time())

    def end(self) -> None:
        """It is gone."""
        self._link = None
        if self._timer is not None:
            self._timer.cancel()

    def sent(self) -> None:
        """Something was said."""
        self._last_sent = self._loop.time()

    def heard(self) -> None:
        """Something was heard."""
        self._last_heard = self._loop.time()
        self._suspected = False
        if self._link is not None:
            # What moved until now is what was heard: the next look must not take it for news.
            self._progress = progress_of(self._link)

    def _look_again(self, now: float) -> None:
        at = now + self.lease_s / 6
        silent_at = self._last_heard + self.lease_s
        self._timer = self._loop.call_at(min(at, silent_at) if silent_at > now else at, self._tick)

    def _tick(self) -> None:
        link = self._link
        if link is None:
            return
        now = self._loop.time()
        progress = progress_of(link)
        if progress != self._progress:
            # A large message is on its way, in either direction.
            self._progress = progress
            self._last_heard = now
        if now >= self._last_heard + self.lease_s:
            if self._suspected:
                logger.info("nothing was heard of the capture owner for %.1f s: looking it up again", self.lease_s)
                link.close()
                return
            # This process itself may have slept: what has come meanwhile is read before the next tick.
            self._suspected = True
        self._look_again(now)
        if now - self._last_sent >= self.lease_s / 6 or now - self._last_heard >= self.lease_s / 3:
            self._beat()
