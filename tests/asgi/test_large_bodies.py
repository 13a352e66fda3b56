"""Bodies of 100 MB through a proxy process: byte for byte, in bounded memory, and told as too large in the record."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_capture.storage.store import CaptureStore
from gym_capture.testing.threaded_owner import ThreadedOwner
from tests.asgi.proxy_process import proxy_process
from tests.asgi.raw_http import Client, UpstreamConnection, client_of, raw_upstream
from tests.crash.process_limits import MB, forget_peak, memory_of

SIZE = 100 * MB
PIECE = bytes(range(32, 96)) * 1024
LARGE = SIZE // len(PIECE)
SMALL = b'{"model": "m", "messages": []}'

TOLD_BYTES = 12 * MB
"""What the proxy may grow by, where the body's length is told before it: nothing of it is kept then."""

UNTOLD_BYTES = 64 * MB + TOLD_BYTES
"""And where it is not: `max_exchange_bytes` of it are kept until it proves too large."""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[ThreadedOwner]:
    owner = ThreadedOwner(tmp_path / "captures")
    owner.start()
    yield owner
    owner.close()


def framed(piece: bytes, chunked: bool) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece


def length_header(chunked: bool) -> bytes:
    return b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % SIZE


async def pieces(reader: asyncio.StreamReader, head: bytes) -> tuple[str, int]:
    """Digest and size of a body that the head describes."""
    digest, size = hashlib.sha256(), 0
    if b"chunked" in head.lower():
        while length := int(await reader.readuntil(b"\r\n"), 16):
            digest.update(await reader.readexactly(length))
            size += length
            await reader.readexactly(2)
        await reader.readexactly(2)
    else:
        left = int(head.lower().partition(b"content-length: ")[2].split()[0])
        size = left
        while left:
            data = await reader.read(min(left, 1 << 18))
            assert data
            digest.update(data)
            left -= len(data)
    return digest.hexdigest(), size


def large_digest() -> str:
    digest = hashlib.sha256()
    for _ in range(LARGE):
        digest.update(PIECE)
    return digest.hexdigest()


async def send_large(send: Callable[[bytes], Any], chunked: bool) -> None:
    for _ in range(LARGE):
        await send(framed(PIECE, chunked))
    if chunked:
        await send(b"0\r\n\r\n")


@pytest.mark.parametrize(("chunked", "bound"), [(False, TOLD_BYTES), (True, UNTOLD_BYTES)], ids=["told", "chunked"])
async def test_100_megabytes_pass_both_ways_unchanged_in_bounded_memory_and_are_told_as_too_large(
    owner: ThreadedOwner, tmp_path: Path, chunked: bool, bound: int
) -> None:
    taken: list[tuple[str, int]] = []

    async def serve(connection: UpstreamConnection) -> None:
        """The first request's body is small and its answer large; then the other way round."""
        while True:
            head = await connection.head()
            taken.append(await pieces(connection.reader, head))
            await connection.say(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            if len(taken) % 2 == 0:
                await connection.say(length_header(chunked) + b"\r\n\r\n")
                await send_large(connection.say, chunked)
            else:
                await connection.say(b"Content-Length: %d\r\n\r\n%s" % (len(SMALL), SMALL))

    def ask(rollout: str, length: bytes) -> bytes:
        return b"POST /ng-rollout/%s/v1/chat/completions HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n" % (rollout.encode(), length)

    small = b"Content-Length: %d" % len(SMALL)
    async with raw_upstream(serve) as upstream, proxy_process(tmp_path, owner.directory, upstream.url) as proxy:
        pid = proxy.told["pid"]
        async with client_of(proxy.port) as client:
            resting = forget_peak(pid)
            await client.send(ask("request-0", length_header(chunked)))
            await send_large(client.send, chunked)
            assert await answer(client) == (hashlib.sha256(SMALL).hexdigest(), len(SMALL))
            assert memory_of(pid, "VmHWM") - resting < bound
            resting = forget_peak(pid)
            await client.send(ask("response-0", small) + SMALL)
            assert await answer(client) == (large_digest(), SIZE)
            assert memory_of(pid, "VmHWM") - resting < bound
    assert taken == [(large_digest(), SIZE), (hashlib.sha256(SMALL).hexdigest(), len(SMALL))]

    store = CaptureStore(owner.directory)
    [exchange] = store.read("request-0")
    assert (exchange["error_category"], exchange["request"], exchange["request_bytes"]) == (
        "capture_parse_error",
        None,
        SIZE,
    )
    assert exchange["response"] == {"model": "m", "messages": []}
    [exchange] = store.read("response-0")
    assert (exchange["error_category"], exchange["response"], exchange["response_bytes"]) == (
        "capture_parse_error",
        None,
        SIZE,
    )
    assert exchange["request"] == {"model": "m", "messages": []}


async def answer(client: Client) -> tuple[str, int]:
    """Digest and size of the next answer's body."""
    async with asyncio.timeout(60):
        return await pieces(client.reader, await client.reader.readuntil(b"\r\n\r\n"))
