"""Where the middleware's client comes from: it was given, or the environment names its run."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from gym_capture.client.client import CaptureClient
from gym_capture.client.trouble_log import TroubleLog
from gym_capture.model.clock import Clock, SystemClock

logger = logging.getLogger("gym_capture.asgi")

RETRY_S = 5.0
"""How long a connection that failed is not tried again, seconds."""


class ClientSource:
    """Gives the client, connecting when the first request asks for it. Pickles as long as a given client does.

    Args:
        given: the client; None: one is opened with `connect`.
        connect: opens one; None: `gym_capture.connect`, by the environment. Called in a thread of its own.
        clock: tells when to try again.
    """

    def __init__(
        self,
        given: CaptureClient | None = None,
        *,
        connect: Callable[[], CaptureClient] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._given = given
        self._connect = connect
        self._clock = clock or SystemClock()
        self._log = TroubleLog(self._clock)
        self._lock = threading.Lock()
        self._attempt: Future[CaptureClient] | None = None
        self._failed_at: float | None = None

    async def client(self) -> CaptureClient | None:
        """The client; None while no owner can be found. Requests that come during an attempt share it."""
        if self._given is not None:
            return self._given
        attempt = self._current_attempt()
        if attempt is None:
            self._log.warn("uncaptured", "a request of a rollout passes UNCAPTURED: no capture owner has been found")
            return None
        try:
            # Shielded: one request that is cancelled does not end the attempt of the others.
            client = await asyncio.shield(asyncio.wrap_future(attempt))
        except Exception as error:  # noqa: BLE001 - whatever keeps capture away, the request goes on
            self._failed(attempt, error)
            return None
        self._given = client
        return client

    def _current_attempt(self) -> Future[CaptureClient] | None:
        with self._lock:
            if self._attempt is None:
                failed_at = self._failed_at
                if failed_at is not None and self._clock.monotonic() - failed_at < RETRY_S:
                    return None
                self._attempt = Future()
                threading.Thread(
                    target=self._open, args=(self._attempt,), name="gym_capture-connect", daemon=True
                ).start()
            return self._attempt

    def _open(self, attempt: Future[CaptureClient]) -> None:
        try:
            client = (self._connect or _by_environment)()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits for it
            attempt.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        else:
            attempt.set_result(client)

    def _failed(self, attempt: Future[CaptureClient], error: Exception) -> None:
        with self._lock:
            if self._attempt is not attempt:
                return
            self._attempt = None
            self._failed_at = self._clock.monotonic()
        self._log.warn("connect", "requests of rollouts pass UNCAPTURED, no capture owner can be used: %s", error)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_source, (self._given, self._connect))


def _source(given: CaptureClient | None, connect: Callable[[], CaptureClient] | None) -> ClientSource:
    return ClientSource(given, connect=connect)


def _by_environment() -> CaptureClient:
    from gym_capture.api import connect

    return connect()
