"""A proxy process and its end: what runs finishes or is committed as cancelled, and no claim stays open."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_capture.asgi.proxy_server import FLUSH_S, CapturingProxy, ProxyServer, listen
from gym_capture.config import ProxyConfig
from gym_capture.errors import ProxyUnavailable
from gym_capture.reach.disabled import DisabledClient
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.threaded_owner import ThreadedOwner
from tests.asgi.proxy_process import proxy_process
from tests.asgi.raw_http import Client, UpstreamConnection, client_of, raw_upstream

IN_FLIGHT = 20
FIRST = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"he"}}]}\n\n'
LAST = (
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"llo"},'
    b'"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
)


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[ThreadedOwner]:
    owner = ThreadedOwner(tmp_path / "captures")
    owner.start()
    yield owner
    owner.close()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def unchunked(data: bytes) -> bytes:
    """A chunked body that is whole."""
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            assert data == b"\r\n"
            return body
        body, data = body + data[:length], data[length + 2 :]


class Streams:
    """An upstream of chat streams: all begin, and those whose rollout is even end when they are let go on."""

    def __init__(self) -> None:
        self.begun = 0
        self.all_begun = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, connection: UpstreamConnection) -> None:
        head = await connection.head()
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        number = json.loads(await connection.reader.readexactly(length))["n"]
        await connection.say(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(FIRST)
        )
        self.begun += 1
        if self.begun == IN_FLIGHT:
            self.all_begun.set()
        await self.go_on.wait()
        if number % 2 == 0:
            await connection.say(chunk(LAST) + b"0\r\n\r\n")
        await connection.closed()


async def ask(client: Client, number: int) -> None:
    body = json.dumps({"n": number, "stream": True}).encode()
    await client.send(
        b"POST /ng-rollout/%d-0/v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
        b"Authorization: Bearer sk-not-to-be-stored-1\r\nContent-Length: %d\r\n\r\n%s" % (number, len(body), body)
    )
    assert (await client.head())[0] == 200
    assert await client.exactly(len(chunk(FIRST))) == chunk(FIRST)


async def refused(port: int) -> None:
    """Return once nothing listens there any more."""
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                return
            except ConnectionError:
                continue  # it was in the queue as the socket closed
            writer.transport.abort()


async def test_sigterm_lets_requests_finish_and_commits_the_rest_as_cancelled(
    owner: ThreadedOwner, tmp_path: Path
) -> None:
    streams = Streams()
    async with contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(raw_upstream(streams))
        proxy = await stack.enter_async_context(
            proxy_process(tmp_path, owner.directory, upstream.url, "proxy.drain_s=4")
        )
        clients = [await stack.enter_async_context(client_of(proxy.port)) for _ in range(IN_FLIGHT)]
        await asyncio.gather(*(ask(client, number) for number, client in enumerate(clients)))
        await streams.all_begun.wait()
        proxy.signal(signal.SIGTERM)
        await refused(proxy.port)
        streams.go_on.set()
        rest = await asyncio.gather(*(client.until_closed() for client in clients))
        assert await proxy.ended() == 0

    store = CaptureStore(owner.directory)
    for number, got in enumerate(rest):
        [exchange] = store.read(f"{number}-0")
        [choice] = exchange["response"]["choices"]
        if number % 2 == 0:
            assert unchunked(got) == LAST
            assert (exchange["error_category"], choice["finish_reason"]) == (None, "stop")
        else:
            assert got == b""
            assert (exchange["error_category"], choice.get("finish_reason")) == ("cancelled", None)
        assert choice["message"]["content"] == ("hello" if number % 2 == 0 else "he")
        assert (exchange["response_source"], exchange["upstream_status_code"]) == ("upstream", 200)
        assert not store.is_incomplete(f"{number}-0")
    assert owner.service.stats()["outstanding"] == 0
    log = b"".join(path.read_bytes() for path in owner.directory.iterdir() if path.is_file())
    assert b"sk-not-to-be-stored-1" not in log


async def test_a_second_signal_ends_at_once_and_still_commits_what_it_has(owner: ThreadedOwner, tmp_path: Path) -> None:
    streams = Streams()
    async with contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(raw_upstream(streams))
        proxy = await stack.enter_async_context(
            proxy_process(tmp_path, owner.directory, upstream.url, "proxy.drain_s=600")
        )
        clients = [await stack.enter_async_context(client_of(proxy.port)) for _ in range(IN_FLIGHT)]
        await asyncio.gather(*(ask(client, number) for number, client in enumerate(clients)))
        proxy.signal(signal.SIGINT)
        await refused(proxy.port)
        proxy.signal(signal.SIGTERM)
        assert await proxy.ended() == 0
    store = CaptureStore(owner.directory)
    categories = Counter(store.read(f"{number}-0")[0]["error_category"] for number in range(IN_FLIGHT))
    assert categories == {"cancelled": IN_FLIGHT}
    assert owner.service.stats()["outstanding"] == 0


class WatchedClient(DisabledClient):
    """A client whose last exchanges do, or do not, reach the disk."""

    def __init__(self, flushed: bool) -> None:
        super().__init__()
        self.flushed = flushed
        self.closed_within: list[float | None] = []

    async def close(self, timeout_s: float | None = None) -> bool:
        self.closed_within.append(timeout_s)
        return self.flushed


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("stops", [1, 2])
async def test_the_end_waits_for_the_disk_and_tells_what_did_not_reach_it(flushed: bool, stops: int) -> None:
    client = WatchedClient(flushed)
    proxy = CapturingProxy(ProxyConfig(upstream="http://127.0.0.1:1"), client)
    await proxy.start("127.0.0.1", 0)
    for _ in range(stops):
        proxy.stop()
    assert await proxy.ended() is flushed
    assert client.closed_within == [FLUSH_S]


class StuckClient(DisabledClient):
    """A client whose owner never takes its last exchanges."""

    def __init__(self) -> None:
        super().__init__()
        self.closing = asyncio.Event()

    async def close(self, timeout_s: float | None = None) -> bool:
        self.closing.set()
        await asyncio.get_running_loop().create_future()
        return True


async def test_a_second_stop_ends_a_flush_that_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_capture.asgi.proxy_server.FLUSH_AT_ONCE_S", 0.01)
    client = StuckClient()
    proxy = CapturingProxy(ProxyConfig(upstream="http://127.0.0.1:1"), client)
    await proxy.start("127.0.0.1", 0)
    proxy.stop()
    ending = asyncio.ensure_future(proxy.ended())
    await client.closing.wait()
    assert not ending.done()
    proxy.stop()
    assert await asyncio.wait_for(ending, 20.0) is False


async def test_a_request_that_has_no_answer_yet_is_told_that_the_proxy_stops() -> None:
    waiting = asyncio.Event()

    async def app(scope: object, receive: object, send: object) -> None:
        waiting.set()
        await asyncio.get_running_loop().create_future()

    server = ProxyServer(app, drain_s=0.0)
    await server.start("127.0.0.1", 0)
    async with client_of(server.address[1]) as client:
        await client.send(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        await waiting.wait()
        server.stop()
        status, headers = await client.head()
        body = await client.until_closed()
        await server.ended()
    assert status == 503
    assert (b"connection", b"close") in headers
    assert json.loads(body)["error"]["type"] == "api_error"


def test_a_port_that_is_taken_is_told_and_a_host_that_is_none_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ProxyUnavailable, match=rf"127\.0\.0\.1 port {port}"):
            listen("127.0.0.1", port)
    # Closed only just now, and free again all the same.
    listen("127.0.0.1", port).close()
    with pytest.raises(ProxyUnavailable, match=r"proxy\.host"):
        listen("no such host", 0)
