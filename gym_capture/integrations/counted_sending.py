"""Counts the model calls that a client sends to a capturing proxy, and tells the proxy which verifier makes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from gym_capture.client.verifier import current_verifier
from gym_capture.integrations.generating_paths import dialect_of
from gym_capture.model.verifiers import verifier_headers

_SENDING = ".send_request_headers.started"


class CountingRollout(Protocol):
    """What is asked of a rollout handle."""

    def count_issued_elsewhere(self, calls: int = 1) -> None:
        """Add model calls that others claim."""


class CountedSending:
    """Transport of a client whose calls a proxy captures; a base of the two libraries' own transport classes.

    A call counts from when its first byte is on the way: one that could not connect was never made, and one that
    was cut off may have been.

    Args:
        rollout: the handle to count at.
        inner: what sends.
    """

    connect_error: type[Exception]
    """What the library raises where a connection could not be made; set by its subclass."""

    def __init__(self, rollout: CountingRollout, inner: Any) -> None:
        self._rollout = rollout
        self._inner = inner

    async def handle_async_request(self, request: Any) -> Any:
        """Send one request."""
        if dialect_of(request.method, request.url.path) is not None:
            verifier = current_verifier()
            if verifier is not None:
                for name, value in verifier_headers(verifier).items():
                    request.headers.setdefault(name, value)
            counted = _Counted(self._rollout, request.extensions.get("trace"))
            request.extensions = {**request.extensions, "trace": counted.trace}
            try:
                return await self._inner.handle_async_request(request)
            except AttributeError as error:
                if counted.done:
                    raise
                # The socket is gone that AnyIO was about to ask for its peer: reset while it was being connected.
                raise self.connect_error("the connection broke as it was made") from error
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Close what sends."""
        await self._inner.aclose()


class _Counted:
    """Counts one request, once."""

    def __init__(self, rollout: CountingRollout, further: Callable[[str, Any], Awaitable[None]] | None) -> None:
        self._rollout = rollout
        self._further = further
        self.done = False

    async def trace(self, event: str, info: Any) -> None:
        if event.endswith(_SENDING) and not self.done:
            self.done = True
            self._rollout.count_issued_elsewhere()
        if self._further is not None:
            await self._further(event, info)
