"""Who may ask: a request to this host by its own name, that reads, with the token in its path."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from http import HTTPStatus

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        # The browser itself refuses to make HTML of a string, so captured text cannot become any.
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",  # the address holds the token
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""On every answer."""


class Gate:
    """Lets requests through to `app`, their path without the token.

    The token is in the path and in no cookie: cookies are shared by all ports of a host, and a browser adds them to
    requests that other pages make.

    Args:
        app: what answers those that are let in.
        token: what the first part of the path has to be.
        hosts: what the Host header may say. A name of somebody else's that was made to lead here (DNS rebinding) is
            none of them.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Collection[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        _, given, slash, path = _split(scope["path"])
        hosts = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
        refused: tuple[HTTPStatus, str] | None = None
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            refused = HTTPStatus.FORBIDDEN, "this is not a host of the viewer"
        elif not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._token) or not slash:
            refused = HTTPStatus.FORBIDDEN, "open the address that gym-capture view printed, all of it"
        elif scope["method"] not in ("GET", "HEAD"):
            refused = HTTPStatus.METHOD_NOT_ALLOWED, "the viewer only reads"

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = {name.lower() for name, _ in message.get("headers", ())}
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                if b"cache-control" not in named:
                    added.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        if refused is not None:
            status, told = refused
            await PlainTextResponse(told + "\n", status)(scope, receive, sending)
            return
        inner = {**scope, "path": f"/{path}", "raw_path": f"/{path}".encode("utf-8", "surrogatepass")}
        await self._app(inner, receive, sending)


def _split(path: str) -> tuple[str, str, str, str]:
    """What stands before, the first part of a path, whether a slash follows, and the rest."""
    before, _, rest = path.partition("/")
    given, slash, rest = rest.partition("/")
    return before, given, slash, rest


__all__ = ["HEADERS", "Gate"]
