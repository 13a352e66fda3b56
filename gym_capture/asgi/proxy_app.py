"""A reverse proxy in front of one model server, as an ASGI application: bytes in, the same bytes out, nothing kept.

What it tells whoever captures around it goes into `scope[NOTES_KEY]`, a dictionary, where there is one.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from typing import Any

import aiohttp
from yarl import URL

from gym_capture.asgi.messages import Message, Receive, Scope, Send
from gym_capture.asgi.proxy_body import ClientGone, RequestBody, UploadStalled
from gym_capture.asgi.proxy_errors import LocalAnswer, UpstreamBroken, error_body
from gym_capture.asgi.proxy_headers import BodyLength, body_length, request_headers, response_headers
from gym_capture.asgi.proxy_upstream import parse_upstream
from gym_capture.asgi.routed_scope import NOTES_KEY
from gym_capture.config import ProxyConfig

logger = logging.getLogger(__name__)

IDLE_CONNECTION_S = 3.0
"""Model servers close idle connections after 5 s by default (uvicorn's); one that is used then fails a call that could
not be repeated, so this side is earlier."""

READ_BUFFER_BYTES = 64 << 10
"""Of each connection; reading stops at twice as much, so a slow client slows the upstream down."""

MAX_HEADER_BYTES = 64 << 10
SMALL_BODY_BYTES = 64 << 10

_TARGET = re.compile(rb"[!\"$-~]*")
"""Visible ASCII but for the fragment's sign."""

_ADDED_BY_AIOHTTP = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class ProxyApp:
    """Forwards every HTTP request to `upstream`. One instance serves one event loop.

    Args:
        upstream: the model server's base URL, without `/v1`.
        settings: timeouts; None: the defaults.

    Raises:
        ConfigError: the URL is none that can be forwarded to.
    """

    def __init__(self, upstream: str, settings: ProxyConfig | None = None) -> None:
        self.upstream = parse_upstream(upstream)
        self._settings = settings or ProxyConfig()
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope.

        Raises:
            UpstreamBroken: the upstream's answer broke off; the server has to break the client's connection.
        """
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1011, "reason": "this proxy forwards no websockets"})

    async def close(self) -> None:
        """Close every connection to the upstream."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S, ssl=_verified()),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_ADDED_BY_AIOHTTP,
                auto_decompress=False,
                read_bufsize=READ_BUFFER_BYTES,
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    connect=self._settings.connect_timeout_s,
                    sock_read=self._settings.idle_timeout_s,
                    ceil_threshold=60.0,  # shorter timeouts are kept to the moment, not rounded to a whole second
                ),
            )
        return self._session

    # -- one request --------------------------------------------------------------------------------------------

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _Answer(scope, send)
        try:
            url = self._url(scope)
            headers = request_headers(scope["headers"])
            length = body_length(scope["headers"])
            first = await receive()
            if first["type"] == "http.disconnect":
                return
            body = RequestBody(receive, first, self._settings.idle_timeout_s)
            await self._with_client(body, self._forward(scope, url, headers, length, first, body, answer))
        except LocalAnswer as local:
            await answer.local(local)
        except ClientGone:
            pass

    async def _with_client(self, body: RequestBody, work: Any) -> None:
        """Run the exchange as long as the client is there.

        Raises:
            ClientGone: it went; the call to the upstream was cancelled and its connection closed.
        """
        exchange = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(body.watch())
        try:
            await asyncio.wait((exchange, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (watch, exchange):
                if not task.done():
                    task.cancel()
            await asyncio.wait((exchange, watch))
        stalled = not watch.cancelled() and isinstance(watch.exception(), UploadStalled)
        if not exchange.cancelled():
            exchange.result()
            return
        if stalled:
            raise LocalAnswer(
                504,
                "upstream_timeout",
                f"the model server took nothing more of the request for {self._settings.idle_timeout_s:g} s",
                "timeout",
            )
        raise ClientGone

    async def _forward(
        self,
        scope: Scope,
        url: URL,
        headers: list[tuple[str, str]],
        length: BodyLength,
        first: Message,
        body: RequestBody,
        answer: _Answer,
    ) -> None:
        data: Any = None
        whole = not first.get("more_body", False)
        if whole and len(first.get("body", b"")) <= SMALL_BODY_BYTES:
            data = first.get("body", b"") or None
            if isinstance(length, int) and length != len(data or b""):
                raise LocalAnswer(400, "bad_framing", "the body has not the length that it names", attempted=False)
        else:
            data = body.chunks()
        if length == 0 or (isinstance(length, int) and data is not None):
            headers.append(("Content-Length", str(length)))
        response = await self._ask(scope["method"], url, headers, data, answer)
        try:
            await self._pass_on(scope["method"], response, answer)
        except BaseException:
            response.close()  # the connection, at once: nothing more of this answer is wanted
            raise
        response.release()

    async def _ask(
        self, method: str, url: URL, headers: list[tuple[str, str]], data: Any, answer: _Answer
    ) -> aiohttp.ClientResponse:
        """The head of the upstream's answer.

        Raises:
            LocalAnswer: there is none.
        """
        answer.note(upstream_attempted=True)
        at = f"the model server at {self.upstream.url}"
        try:
            response = await self._open().request(method, url, headers=headers, data=data, allow_redirects=False)
        except aiohttp.ConnectionTimeoutError:
            within = f"{self._settings.connect_timeout_s:g} s"
            raise LocalAnswer(
                504, "upstream_connect_timeout", f"{at} could not be connected to within {within}", "timeout"
            ) from None
        except TimeoutError:
            silent = f"{self._settings.idle_timeout_s:g} s"
            raise LocalAnswer(504, "upstream_timeout", f"{at} said nothing for {silent}", "timeout") from None
        except aiohttp.ClientConnectorError as error:
            raise LocalAnswer(502, "upstream_unreachable", f"{at} cannot be reached: {error}", "connection") from error
        except (aiohttp.ClientConnectionError, OSError) as error:
            raise LocalAnswer(
                502, "upstream_disconnected", f"{at} closed the connection before it answered ({error})", "connection"
            ) from error
        except aiohttp.ClientError as error:
            raise LocalAnswer(
                502, "upstream_bad_answer", f"{at} did not answer in HTTP ({type(error).__name__})", "upstream_error"
            ) from error
        if not 200 <= response.status <= 599:
            response.close()
            raise LocalAnswer(
                502, "upstream_bad_answer", f"{at} answered with the status {response.status}", "upstream_error"
            )
        return response

    async def _pass_on(self, method: str, response: aiohttp.ClientResponse, answer: _Answer) -> None:
        headers, length = response_headers(response.status, response.raw_headers)
        headers = [
            (name, self.upstream.local_location(value.decode("latin-1")).encode("latin-1"))
            if name.lower() == b"location"
            else (name, value)
            for name, value in headers
        ]
        connection = response.connection
        protocol = None if connection is None else connection.protocol
        await answer.begin(response.status, headers)
        left = 0 if method == "HEAD" or response.status in (204, 304) else length
        try:
            while left != 0:
                chunk = await response.content.readany()
                if not chunk and response.content.at_eof():
                    break
                if left is not None:
                    left -= len(chunk)
                last = left == 0 or (left is None and response.content.at_eof() and not _was_reset(protocol))
                await answer.more(chunk, last=last)
                if last:
                    return
        except TimeoutError as error:
            silent = f"said nothing for {self._settings.idle_timeout_s:g} s"
            raise UpstreamBroken(f"the model server {silent} within its answer", error_category="timeout") from error
        except aiohttp.ClientPayloadError as error:
            raise UpstreamBroken(
                "the model server ended its answer too early", error_category="stream_truncated"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamBroken(
                f"the connection to the model server broke ({error})", error_category="connection"
            ) from error
        if left is None and _was_reset(protocol):
            raise UpstreamBroken("the model server's connection was reset", error_category="connection")
        await answer.more(b"", last=True)

    def _url(self, scope: Scope) -> URL:
        raw = scope.get("raw_path")
        path = scope["path"].encode("utf-8") if raw is None else raw
        query: bytes = scope.get("query_string", b"")
        if raw is None:
            path = URL.build(path=scope["path"]).raw_path.encode("ascii")
        if not path.startswith(b"/") or not _is_target(path) or b"?" in path or not _is_target(query):
            raise LocalAnswer(400, "bad_path", "the request's path cannot be passed on", attempted=False)
        target = path.decode("ascii") + (f"?{query.decode('ascii')}" if query else "")
        return URL(self.upstream.url + target, encoded=True)


class _Answer:
    """What the client is sent, and what is noted about it."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._begun = False

    def note(self, **fields: Any) -> None:
        notes = self._scope.get(NOTES_KEY)
        if notes is not None:
            notes.update(fields)

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.note(response_source="upstream", upstream_status_code=status)
        self._begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def more(self, data: bytes, *, last: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def local(self, answer: LocalAnswer) -> None:
        """Answer in the upstream's place, or break off what has begun."""
        if self._begun:
            raise UpstreamBroken(answer.message, error_category=answer.error_category or "connection")
        self.note(response_source="local", local_response_reason=answer.reason, upstream_attempted=answer.attempted)
        if answer.error_category is not None:
            self.note(error_category=answer.error_category)
        logger.warning("%s %s: %d, %s", self._scope["method"], self._scope["path"], answer.status, answer.message)
        body = b"" if self._scope["method"] == "HEAD" else error_body(self._scope["path"], answer)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await self.more(body, last=True)


def _is_target(data: bytes) -> bool:
    """Whether these bytes can stand in a request line as they are."""
    return _TARGET.fullmatch(data) is not None


def _was_reset(protocol: Any) -> bool:
    """Whether the connection ended by a reset, which a body that only its end delimits does not tell."""
    return protocol is not None and isinstance(protocol.exception(), OSError)


def _verified() -> ssl.SSLContext:
    """How https upstreams are verified: by the system's authorities, or those that `SSL_CERT_FILE` names by now."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
