"""Transports for httpx that capture the model calls passing through them.

`httpx.AsyncClient(transport=AsyncCaptureTransport(rollout))` is an HTTP client, an SDK's say, whose calls are captured
in this process. Requests and responses pass unchanged; what completes a response waits until the exchange is on disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gym_capture.errors import MissingExtra
from gym_capture.extras import how_to_install
from gym_capture.integrations.counted_sending import CountedSending
from gym_capture.integrations.observed_exchange import (
    AsyncObservedBody,
    ObservedBody,
    Observer,
    Rollouts,
    is_streamed,
    send_async,
    send_blocking,
)

try:
    import httpx
except ImportError as error:
    raise MissingExtra(
        f"httpx is not installed, so there are no transports for it; {how_to_install('httpx')}"
    ) from error


class AsyncCaptureTransport(httpx.AsyncBaseTransport):
    """Captures each POST to `…/chat/completions`, `…/responses` and `…/v1/messages`.

    A call is claimed before it is sent. One that an SDK tries again is another call; one that is redirected is none.
    Any other POST may have called a model: unless it answers 404 or 405, or is known to call none, the rollout is
    incomplete (`unobserved`). Other methods just pass.

    Args:
        rollout: whose calls these are: a handle, or a function that gives the handle of the moment (None: not
            captured; where it raises, the request passes uncaptured, and the log says so).
        inner: what sends; None: the library's own.
        model_ref: what the calls name as their model server, `{type, name}`.
        non_generating: further requests that call no model, as in `CaptureMiddleware`: `/v1/embeddings` say.
    """

    def __init__(
        self,
        rollout: Rollouts,
        inner: httpx.AsyncBaseTransport | None = None,
        *,
        model_ref: Mapping[str, str] | None = None,
        non_generating: Sequence[str] = (),
    ) -> None:
        self._observer = Observer(rollout, model_ref, non_generating)
        self._inner = inner if inner is not None else httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request."""
        call = self._observer.call_of(request)
        if call is None:
            return await self._inner.handle_async_request(request)
        response: httpx.Response = await send_async(call, request, self._inner.handle_async_request)
        if call.closed:
            return response
        body = _AsyncBody(response.stream, call, is_streamed(response))
        return httpx.Response(
            response.status_code, headers=response.headers.raw, stream=body, extensions=response.extensions
        )

    async def aclose(self) -> None:
        """Close what sends."""
        await self._inner.aclose()


class CaptureTransport(httpx.BaseTransport):
    """`AsyncCaptureTransport` for `httpx.Client`.

    Args:
        rollout, inner, model_ref, non_generating: as there; the handle may be a blocking one.
    """

    def __init__(
        self,
        rollout: Rollouts,
        inner: httpx.BaseTransport | None = None,
        *,
        model_ref: Mapping[str, str] | None = None,
        non_generating: Sequence[str] = (),
    ) -> None:
        self._observer = Observer(rollout, model_ref, non_generating)
        self._inner = inner if inner is not None else httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request."""
        call = self._observer.call_of(request)
        if call is None:
            return self._inner.handle_request(request)
        response: httpx.Response = send_blocking(call, request, self._inner.handle_request)
        if call.closed:
            return response
        body = _Body(response.stream, call, is_streamed(response))
        return httpx.Response(
            response.status_code, headers=response.headers.raw, stream=body, extensions=response.extensions
        )

    def close(self) -> None:
        """Close what sends."""
        self._inner.close()


class CountingTransport(CountedSending, httpx.AsyncBaseTransport):
    """Counts the calls that it sends to a capturing proxy; see `CountedSending`."""

    connect_error = httpx.ConnectError


class _AsyncBody(AsyncObservedBody, httpx.AsyncByteStream):
    pass


class _Body(ObservedBody, httpx.SyncByteStream):
    pass
