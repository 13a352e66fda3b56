"""Clients of streams over real sockets: each one sees exactly the bytes that came, and whether they came to an end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable

from tests.crash.model_streams import request_of

WITHIN_S = 120.0


class StreamClient:
    """One call on a connection of its own.

    Attributes:
        body: what has come of the response's body, without its chunking.
        whole: whether the body came to its end as HTTP wants it.
        began: set with the first piece of the body.
        status: the response's, once it has come.
    """

    def __init__(self, port: int, rollout: str, number: int) -> None:
        self.rollout = rollout
        self.number = number
        self.body = bytearray()
        self.whole = False
        self.status: int | None = None
        self.began = asyncio.Event()
        self._port = port

    def request(self) -> bytes:
        """The bytes that are sent."""
        body = request_of(self.number)
        head = f"POST /ng-rollout/{self.rollout}/v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
        return head.encode() + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)

    async def run(self) -> StreamClient:
        """Call, and read to the end, or to where the connection breaks."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        try:
            async with asyncio.timeout(WITHIN_S):
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    writer.write(self.request())
                    await self._read(reader)
        finally:
            self.began.set()
            writer.transport.abort()
        return self

    async def _read(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.status = int(head.split()[1])
        if b"chunked" not in head.lower():
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            self.body += await reader.readexactly(length)
            self.whole = True
            return
        while True:
            size = int(await reader.readuntil(b"\r\n"), 16)
            data = await reader.readexactly(size + 2)
            assert data.endswith(b"\r\n")
            if size == 0:
                self.whole = True
                return
            self.body += data[:-2]
            self.began.set()


class Streams:
    """Many calls at once.

    Args:
        port: the proxy's.
        calls: rollout and number of each.
    """

    def __init__(self, port: int, calls: Iterable[tuple[str, int]]) -> None:
        self.clients = [StreamClient(port, rollout, number) for rollout, number in calls]
        self._running = [asyncio.ensure_future(client.run()) for client in self.clients]

    async def all_began(self) -> None:
        """Return once the first piece of every body has come."""
        async with asyncio.timeout(WITHIN_S):
            for client in self.clients:
                await client.began.wait()

    async def ended(self) -> list[StreamClient]:
        """Return once every call is over."""
        return await asyncio.gather(*self._running)


def number_in(request: bytes | dict[str, object]) -> int:
    """Which stream a recorded request asked for."""
    found = json.loads(request) if isinstance(request, bytes) else request
    number = found["number"]
    assert isinstance(number, int)
    return number
