"""Upstreams that send exactly the bytes a test wants, and a client that shows exactly what arrived."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gym_capture.asgi.proxy_app import ProxyApp
from gym_capture.asgi.proxy_server import ProxyServer
from gym_capture.config import ProxyConfig

WITHIN_S = 60.0


@dataclass
class RawUpstream:
    """A server whose every connection runs `script(connection)`.

    Attributes:
        port: where it listens, on the loopback.
        tls: what it shows to who connects; None: it speaks plain HTTP.
        connections: those that came, in order.
    """

    script: Callable[[UpstreamConnection], Awaitable[None]]
    port: int = 0
    tls: ssl.SSLContext | None = None
    connections: list[UpstreamConnection] = field(default_factory=list)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = UpstreamConnection(reader, writer)
        connection.task = asyncio.current_task()
        async with self.arrived:
            self.connections.append(connection)
            self.arrived.notify_all()
        try:
            await self.script(connection)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            connection.ended.set()
            writer.close()


class UpstreamConnection:
    """One connection of the proxy to an upstream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.ended = asyncio.Event()
        self.heads: list[bytes] = []
        self.task: asyncio.Task[Any] | None = None

    async def head(self) -> bytes:
        """The next request's line and headers."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        return head

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def closed(self) -> None:
        """Return once the other side has closed."""
        while await self.reader.read(1 << 16):
            pass

    def reset(self) -> None:
        """Break the connection without a goodbye."""
        found: Any = self.writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@asynccontextmanager
async def raw_upstream(
    script: Callable[[UpstreamConnection], Awaitable[None]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawUpstream]:
    """An upstream that speaks bytes."""
    upstream = RawUpstream(script, tls=tls)
    server = await asyncio.start_server(upstream._serve, "127.0.0.1", 0, limit=1 << 20, ssl=tls)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        for connection in upstream.connections:
            connection.writer.transport.abort()
            if connection.task is not None:
                connection.task.cancel()
            await connection.ended.wait()


def answering(*answers: bytes) -> Callable[[UpstreamConnection], Awaitable[None]]:
    """A script: the head of each request without a body is read, and these bytes are the answers."""

    async def script(connection: UpstreamConnection) -> None:
        for answer in answers:
            await connection.head()
            await connection.say(answer)
        await connection.closed()

    return script


@asynccontextmanager
async def running_proxy(upstream: str, **settings: Any) -> AsyncIterator[int]:
    """A proxy without capture, on its real server. Yields its port."""
    app = ProxyApp(upstream, ProxyConfig(upstream=upstream, **settings))
    server = ProxyServer(app, drain_s=0.0)
    await server.start("127.0.0.1", 0)
    try:
        yield server.address[1]
    finally:
        server.stop()
        await server.ended()
        await app.close()


class Client:
    """A raw HTTP client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """The next answer's status and headers."""
        async with asyncio.timeout(WITHIN_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines[1:-2])]
        return int(lines[0].split()[1]), headers

    async def until_closed(self) -> bytes:
        """All that still comes."""
        async with asyncio.timeout(WITHIN_S):
            return await self.reader.read(-1)

    async def exactly(self, size: int) -> bytes:
        async with asyncio.timeout(WITHIN_S):
            return await self.reader.readexactly(size)

    def close(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def client_of(port: int) -> AsyncIterator[Client]:
    """A connection to the loopback."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def roundtrip(port: int, request: bytes) -> bytes:
    """Everything that answers one request on a connection of its own; the request asks for it to be closed."""
    async with client_of(port) as client:
        await client.send(request)
        return await client.until_closed()
