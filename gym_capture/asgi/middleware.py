"""Capture inside an ASGI app: requests under a rollout's prefix are recorded, all others pass untouched."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence

from gym_capture.asgi.client_source import ClientSource
from gym_capture.asgi.current_rollout import in_hand
from gym_capture.asgi.messages import App, Receive, Scope, Send
from gym_capture.asgi.observed_request import ObservedRequest
from gym_capture.asgi.redirect import Redirects
from gym_capture.asgi.routed_scope import NOTES_KEY, prefixed_root, route_of, without_prefix
from gym_capture.client.client import CaptureClient
from gym_capture.recording.captured_call import CapturedCall
from gym_capture.recording.recorder import RecordingPolicy
from gym_capture.recording.routes import InvalidPrefix, NonGenerating, Route

logger = logging.getLogger("gym_capture.asgi")


class CaptureMiddleware:
    """Records the model calls that an app answers under `/ng-rollout/<rollout id>[~<generation>]/`.

    What the client sees is what the app sends, byte for byte and as it comes, but for two things: a stream's terminal
    event (or the last chunk of a body) waits until the exchange is on disk, and redirects within the app keep the
    prefix. One object serves any number of requests and loops, and pickles as long as its client does.

    Args:
        app: the ASGI app.
        capture: the run's client; None: connects at the first request under a prefix, by the environment
            (`GYM_CAPTURE_DIR`, `GYM_CAPTURE_NAME`), and again when that failed. Until it has, requests pass uncaptured,
            and the log says so.
        model_ref: what the calls name as their model server, `{type, name}`.
        non_generating: further requests that call no model, as `/path` or `METHOD /path`; `*` matches anything.
        keep_raw_streams: keep each stream's bytes beside its reassembled response.
        max_body_bytes: the most that is kept of an exchange's request and response together; None: the client's
            `max_exchange_bytes`.
    """

    def __init__(
        self,
        app: App,
        capture: CaptureClient | None = None,
        *,
        model_ref: Mapping[str, str] | None = None,
        non_generating: Sequence[str] = (),
        keep_raw_streams: bool = False,
        max_body_bytes: int | None = None,
    ) -> None:
        if isinstance(non_generating, str):
            raise TypeError(f"non_generating takes several patterns: give a list, [{non_generating!r}]")
        self.app = app
        self._source = ClientSource(capture)
        self._model_ref = dict(model_ref) if model_ref is not None else None
        self._non_generating = NonGenerating(non_generating)
        self._keep_raw_streams = keep_raw_streams
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one scope."""
        route = _route(scope) if scope["type"] == "http" else None
        if route is None:
            await self.app(scope, receive, send)
        elif isinstance(route, InvalidPrefix):
            await _refuse(route, send)
        else:
            with in_hand(route.rollout_id):
                await self._observe(route, scope, receive, send)

    async def _observe(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        dialect = route.dialect(method)
        inner = without_prefix(scope, route)
        call: CapturedCall | None = None
        if dialect is not None or not self._non_generating.matches(method, route.path):
            client = await self._source.client()
            if client is not None and client.transport_name != "disabled":
                call = self._call(client, route, dialect, scope)
        if call is not None:
            inner[NOTES_KEY] = call.notes
        redirects = Redirects(scope.get("scheme", "http"), _host(scope), *prefixed_root(scope, route), route.rest)
        await ObservedRequest(call, dialect is not None, redirects, receive, send).run(self.app, inner)

    def _call(self, client: CaptureClient, route: Route, dialect: str | None, scope: Scope) -> CapturedCall | None:
        try:
            limit = self._max_body_bytes
            if limit is None:
                limit = client.host.options.max_exchange_bytes
            policy = RecordingPolicy(limit, self._keep_raw_streams)
            rollout = client.rollout(route.rollout_id, route.generation)
            return CapturedCall(rollout, dialect, policy, scope["headers"], model_ref=self._model_ref)
        except Exception:
            logger.exception("a request of rollout %s passes UNCAPTURED: capture has a fault", route.rollout_id)
            return None


def _route(scope: Scope) -> Route | InvalidPrefix | None:
    try:
        return route_of(scope)
    except Exception:
        logger.exception("a request passes UNCAPTURED: its path cannot be told")
        return None


def _host(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name.lower() == b"host":
            host: str = value.decode("latin-1")
            return host
    server = scope.get("server")
    if not server:
        return ""
    return server[0] if server[1] is None else f"{server[0]}:{server[1]}"


async def _refuse(route: InvalidPrefix, send: Send) -> None:
    """Answer a prefix that names no rollout: passing it on would lose evidence that nobody could miss."""
    text = (
        f"the path begins as a rollout's, /ng-rollout/<rollout id>[~<generation>]/, and names none: {route.message} "
        "No model was called."
    )
    body = json.dumps({"error": {"message": text, "type": "invalid_request_error", "code": "invalid_rollout"}})
    data = body.encode("utf-8")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode("ascii"))]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": data})
