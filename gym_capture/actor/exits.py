"""How the actor's process ends, for every reason there is.

Ray restarts an actor whose process ends by `os._exit`, and only then: after `sys.exit` an async actor hangs with its
name kept, a constructor that raises or `exit_actor` ends it for good. Ending for good on purpose is `ray.kill` on
oneself without a restart, which also frees the name.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import ray

from gym_capture.errors import DirectoryHeld, RunSealed

logger = logging.getLogger(__name__)

RETRY_PAUSE_S = 1.0
"""Before a restarted actor that cannot serve here leaves, so that Ray tries again, perhaps on another node."""

ANSWER_S = 0.2
"""Between the answer to `stop` and the end, so that the answer gets out."""

_EXIT_CODE = 1


class Exits:
    """Decides how to leave.

    Args:
        actor: this actor's own handle.
        restarted: whether Ray has restarted the actor. The first start keeps its errors, `launch` deals with them.
        leave_now: ends the process so that Ray restarts it.
    """

    def __init__(self, actor: Any, *, restarted: bool, leave_now: Callable[[int], Any] = os._exit) -> None:
        self._actor = actor
        self._restarted = restarted
        self._leave_now = leave_now
        self._ending = threading.Lock()

    def leave(self, why: str) -> None:
        """The service's `on_leave`: `stopped` ends the actor for good, `superseded` the process at once."""
        if why == "stopped":
            self.end_soon()
        else:
            logger.error("capture owner leaves: %s", why)
            self._leave_now(_EXIT_CODE)

    def opened(self, opening: concurrent.futures.Future[Any]) -> None:
        """The owner has opened, or failed to; a restarted one that failed leaves."""
        error = None if opening.cancelled() else opening.exception()
        if error is None or not self._restarted:
            return
        logger.error("restarted capture owner cannot serve here: %s", error)
        if isinstance(error, DirectoryHeld | RunSealed):
            # Somebody took over, or sealed the run, while this actor was away: coming back again and again would help
            # nobody.
            self.end_soon(0.0)
        else:
            self._after(RETRY_PAUSE_S, lambda: self._leave_now(_EXIT_CODE))

    def end_soon(self, delay_s: float = ANSWER_S) -> None:
        """End the actor for good, name and all. Asking again changes nothing."""
        if self._ending.acquire(blocking=False):
            self._after(delay_s, self._end)

    def _end(self) -> None:
        try:
            ray.kill(self._actor, no_restart=True)
        except Exception:
            # Ray is going down with us or cannot be reached: then leaving is all that is left, a restart finds the
            # directory stopped and takes it anew.
            logger.exception("capture owner could not end its actor")
            self._leave_now(_EXIT_CODE)

    @staticmethod
    def _after(delay_s: float, then: Callable[[], Any]) -> None:
        timer = threading.Timer(delay_s, then)
        timer.daemon = True
        timer.start()
