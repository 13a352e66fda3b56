"""The server's side of an ASGI app, by hand: what it is sent is queued, what it says is listed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from gym_capture.asgi.messages import App, Message, Scope
from tests.recording.exchanges import REQUEST


def http_scope(
    path: str, headers: Sequence[tuple[bytes, bytes]] = (), method: str = "POST", **more: Any
) -> dict[str, Any]:
    """The scope of a request whose path needs no encoding."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"x=1",
        "root_path": "",
        "headers": [(b"host", b"server:8000"), *headers],
        "client": ("127.0.0.1", 1234),
        "server": ("127.0.0.1", 8000),
        **more,
    }


def request(body: bytes = REQUEST, *, more: bool = False) -> Message:
    """A piece of a request's body."""
    return {"type": "http.request", "body": body, "more_body": more}


def start(headers: Sequence[tuple[bytes, bytes]] = (), status: int = 200) -> Message:
    """A response's head."""
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes, *, more: bool = False) -> Message:
    """A piece of a response's body."""
    return {"type": "http.response.body", "body": data, "more_body": more}


DISCONNECT: Message = {"type": "http.disconnect"}


class Replaying:
    """An app that reads the whole request and then says what it was given.

    Args:
        messages: what it says; an exception is raised in its turn, an event awaited.
    """

    def __init__(self, *messages: Message | BaseException | asyncio.Event, reads: bool = True) -> None:
        self._messages = messages
        self._reads = reads
        self.scopes: list[Scope] = []
        self.seen: list[Message] = []

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serve one scope."""
        self.scopes.append(scope)
        while self._reads:
            self.seen.append(await receive())
            if not self.seen[-1].get("more_body"):
                break
        for message in self._messages:
            if isinstance(message, BaseException):
                raise message
            if isinstance(message, asyncio.Event):
                await message.wait()
            else:
                await send(message)


class ServerSide:
    """One request of a server.

    Attributes:
        sent: what the app said.
        broken: what `send` raises from now on.
    """

    def __init__(self, *incoming: Message) -> None:
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        for message in incoming or (request(),):
            self._incoming.put_nowait(message)
        self.sent: list[Message] = []
        self.broken: Exception | None = None

    def say(self, message: Message) -> None:
        """Another message for the app."""
        self._incoming.put_nowait(message)

    async def receive(self) -> Message:
        """The app's `receive`."""
        return await self._incoming.get()

    async def send(self, message: Message) -> None:
        """The app's `send`."""
        if self.broken is not None:
            raise self.broken
        self.sent.append(dict(message))

    async def run(self, app: App, scope: Scope) -> None:
        """Serve the request."""
        await app(scope, self.receive, self.send)

    @property
    def body(self) -> bytes:
        """The body so far."""
        return b"".join(message.get("body", b"") for message in self.sent)
