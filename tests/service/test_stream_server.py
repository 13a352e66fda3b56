"""The stream over real sockets and a real directory."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gym_capture.client.transport import Message
from gym_capture.errors import HandshakeRefused, OwnerUnavailable
from gym_capture.model.clock import SystemClock
from gym_capture.model.entropy import SystemEntropy
from gym_capture.model.messages import (
    MAX_HELLO_BYTES,
    PREFIX_BYTES,
    PROTOCOL_VERSION,
    Batch,
    Beat,
    Call,
    Hello,
    MessageSplitter,
    Quiesce,
    ReadParts,
    Refused,
    Stats,
    Stop,
    Welcome,
    decode_from_owner,
    encode_message,
)
from gym_capture.model.rows import ClaimRow, Outcome, Result
from gym_capture.service.capture_service import CaptureService
from gym_capture.service.executor import Done, ThreadExecutor
from gym_capture.service.settings import OwnerSettings
from gym_capture.service.stream_server import StreamServer
from gym_capture.storage.owner_file import read_owner
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_marker import create_or_adopt_run
from gym_capture.testing.threaded_owner import ThreadedOwner
from tests.service.harness import identity, merged_calls
from tests.service.raw_client import RawClient


class SocketLink:
    """A link over asyncio streams."""

    def __init__(self, stand: Stand, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.token = stand.service.token
        self.run = stand.service.run
        self._reader = reader
        self._writer = writer
        self._splitter = MessageSplitter(1 << 30)

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        self._writer.write(b"".join(buffers))

    async def receive(self) -> list[Message]:
        while True:
            try:
                data = await self._reader.read(1 << 16)
            except OSError:
                data = b""
            if not data:
                self.close()
                raise OwnerUnavailable("the connection ended")
            messages = self._splitter.feed(data)
            if messages:
                return list(messages)

    def close(self) -> None:
        self._writer.close()


class Stand:
    """A service that listens."""

    name = "socket"

    def __init__(self, directory: Path, settings: OwnerSettings) -> None:
        self.files = PosixFiles(directory)
        create_or_adopt_run(self.files)
        self.log = ThreadExecutor("test-log")
        self.readers = ThreadExecutor("test-read", 2)
        self.left: list[str] = []
        self.service = CaptureService(
            self.files,
            identity(),
            settings,
            clock=SystemClock(),
            executor=self.log,
            readers=self.readers,
            entropy=SystemEntropy(),
            on_leave=self.left.append,
        )
        self.server = StreamServer()
        self.port = 0
        self.clients: list[RawClient] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> SocketLink:
        try:
            reader, writer = await self.open()
        except OSError as error:
            raise OwnerUnavailable(str(error)) from error
        return SocketLink(self, reader, writer)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        await self.service.stop()
        await self.server.close()
        for writer in self.writers:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        self.log.close()
        self.readers.close()

    async def client(self, name: str = "client", *, steady: bool = True) -> RawClient:
        client = RawClient(self, name.encode().ljust(16, b"-"), steady=steady)
        self.clients.append(client)
        return await client.start()

    def hello(self, client: bytes = b"h" * 16, token: str | None = None) -> bytes:
        shown = self.service.token if token is None else token
        return b"".join(encode_message(Hello(PROTOCOL_VERSION, "test", shown, "", client, [], "a socket")))


@asynccontextmanager
async def standing(directory: Path, settings: OwnerSettings | None = None) -> AsyncIterator[Stand]:
    stand = Stand(directory, settings or OwnerSettings())
    stand.port = await stand.server.start(stand.service, "127.0.0.1")
    await stand.service.open(listening=("127.0.0.1", stand.port))
    try:
        yield stand
    finally:
        await stand.close()


async def test_a_claim_and_a_commit_over_a_socket(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        client = await stand.client()
        claim = await client.claim("r")
        asked = client.call(Quiesce("r", 30.0))
        assert await client.commit("r", "c1", claim, text="x" * 100_000) == [Result(Outcome.APPLIED, 0, 0)]
        assert (await asked)[0] is True
        assert merged_calls(await stand.service.merge("r")) == ["c1"]
        value, body = await client.call(ReadParts("r", 0, [0]))
        assert len(body) == sum(part[3] for part in value["entries"][0]["parts"])


async def test_the_owner_file_names_the_endpoint(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        owner = read_owner(stand.files)
        assert owner is not None
        assert owner.endpoint is not None
        assert (owner.endpoint.host, owner.endpoint.port) == ("127.0.0.1", stand.port)
        assert stand.service.endpoint.port == stand.port


async def test_many_clients_and_batches_in_flight(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        clients = [await stand.client(f"client-{number}") for number in range(8)]
        answers = [
            client.commit(f"r{turn % 5}", f"{number}-{turn}", text=f"{number}{turn}")
            for turn in range(50)
            for number, client in enumerate(clients)
        ]
        results = await asyncio.gather(*answers)
        assert {result[0].outcome for result in results if result} == {Outcome.APPLIED}
        calls = [call for rollout in range(5) for call in merged_calls(await stand.service.merge(f"r{rollout}"))]
        assert len(calls) == len(set(calls)) == 400
        counters = stand.service.tenure.counters
        assert counters.groups < counters.frames


async def test_a_stream_may_come_in_any_pieces(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        whole = (
            stand.hello() + b"".join(encode_message(Batch(1, 0, [ClaimRow("r", 1)]))) + b"".join(encode_message(Beat()))
        )
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, ("127.0.0.1", stand.port))
        for index in range(len(whole)):
            await loop.sock_sendall(sock, whole[index : index + 1])
            await asyncio.sleep(0)
        splitter = MessageSplitter(1 << 20)
        seen: list[str] = []
        while len(seen) < 3:
            seen += [
                type(decode_from_owner(head)).__name__ for head, _ in splitter.feed(await loop.sock_recv(sock, 999))
            ]
        assert sorted(seen) == ["Answers", "BeatReply", "Welcome"]
        sock.close()


async def test_a_connection_that_breaks_at_any_byte_applies_whole_batches_only(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        batch = b"".join(encode_message(Batch(1, 0, [ClaimRow("r", 1)])))
        for cut in range(len(batch)):
            client = cut.to_bytes(16, "big")
            reader, writer = await stand.open()
            writer.write(stand.hello(client) + batch[:cut])
            await writer.drain()
            assert await reader.read(1 << 16)
            writer.close()
            await writer.wait_closed()
        await until(lambda: not stand.server.connections)
        assert stand.service.ledger.counts["claims"] == 0
        assert stand.service.connections.counts["protocol_errors"] == 0
        whole = await stand.client()
        await whole.claim("r")
        assert stand.service.ledger.outstanding == 1


async def until(condition: Callable[[], bool]) -> None:
    """Until sockets and threads have made it so; the test's own timeout bounds it."""
    while not condition():  # noqa: ASYNC110  # many things at once may make it so, and none has an event
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
        b"\xff" * 64,
        b"\x05\x00\x00\x00\x00\x00\x00\x00hello",
        (MAX_HELLO_BYTES + 1).to_bytes(4, "little") + b"\x00" * 4,
        b"\x00" * PREFIX_BYTES,
    ],
    ids=["http", "tls", "ones", "words", "too long", "empty"],
)
async def test_garbage_is_closed_and_counted_and_hurts_nobody(tmp_path: Path, data: bytes) -> None:
    async with standing(tmp_path) as stand:
        client = await stand.client()
        reader, writer = await stand.open()
        writer.write(data)
        assert await reader.read(100) == b""
        writer.close()
        assert stand.service.connections.counts["protocol_errors"] == 1
        assert await client.commit("r", "c1") == [Result(Outcome.APPLIED, 0, 0)]


async def test_a_message_that_is_too_long_is_refused_at_its_announcement(tmp_path: Path) -> None:
    async with standing(tmp_path, OwnerSettings(max_exchange_bytes=1000, max_batch_bytes=1000)) as stand:
        reader, writer = await stand.open()
        writer.write(stand.hello())
        assert await reader.read(1 << 16)
        writer.write((10).to_bytes(4, "little") + (3 << 20).to_bytes(4, "little"))
        assert await reader.read(100) == b""
        writer.close()
        assert stand.service.connections.counts["protocol_errors"] == 1


async def test_a_wrong_token_is_told_why_and_closed(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        reader, writer = await stand.open()
        writer.write(stand.hello(token="guess") + b"".join(encode_message(Batch(1, 0, [ClaimRow("r", 1)]))))
        messages = MessageSplitter(1 << 20).feed(await reader.read())
        assert [type(decode_from_owner(head)) for head, _ in messages] == [Refused]
        writer.close()
        assert stand.service.ledger.outstanding == 0


async def test_batches_that_follow_the_hello_at_once_are_taken(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        reader, writer = await stand.open()
        many = b"".join(b"".join(encode_message(Batch(n, 0, [ClaimRow("r", n)]))) for n in range(1, 20))
        big = b"".join(encode_message(Batch(20, 0, [ClaimRow("r", 20, "x" * 4000)] * 2500)))
        assert len(big) > MAX_HELLO_BYTES
        writer.write(stand.hello() + many + big)
        splitter = MessageSplitter(1 << 20)
        seen: list[str] = []
        while len(seen) < 21:
            seen += [type(decode_from_owner(head)).__name__ for head, _ in splitter.feed(await reader.read(1 << 16))]
        assert seen.count("Answers") == 20
        assert stand.service.ledger.outstanding == 20
        writer.close()


async def test_whoever_says_no_hello_is_closed(tmp_path: Path) -> None:
    async with standing(tmp_path, OwnerSettings(hello_s=0.01)) as stand:
        reader, writer = await stand.open()
        writer.write(stand.hello()[:-1])
        assert await reader.read(100) == b""
        writer.close()
        assert stand.service.connections.counts["protocol_errors"] == 1
        client = await stand.client()
        await asyncio.wait_for(client.claim("r"), 30)


async def test_before_it_is_open_connections_are_refused_as_unavailable(tmp_path: Path) -> None:
    stand = Stand(tmp_path, OwnerSettings())
    stand.port = await stand.server.start(stand.service, "127.0.0.1")
    with pytest.raises(OwnerUnavailable, match="not open yet"):
        await stand.client(steady=False)
    await stand.service.open(listening=("127.0.0.1", stand.port))
    client = await stand.client("later")
    assert isinstance(client.welcomes[0], Welcome)
    await stand.close()


async def test_a_client_that_does_not_read_its_answers_is_not_read_either_and_then_dropped(tmp_path: Path) -> None:
    settings = OwnerSettings(send_buffer_bytes=1 << 16, lease_s=0.05, tick_s=0.02, beat_s=0.02)
    async with standing(tmp_path, settings) as stand:
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", stand.port))
        await loop.sock_sendall(sock, stand.hello())
        call = 0
        while not stand.service.connections.counts["dropped_connections"]:
            call += 1
            data = b"".join(encode_message(Call(call, Stats(None))))
            try:
                await asyncio.wait_for(loop.sock_sendall(sock, data), 0.5)
            except (OSError, TimeoutError):
                await asyncio.sleep(0)
        sock.close()
        assert stand.service.connections.counts["dropped_connections"] == 1
        # What piled up is bounded: far fewer calls were read than a client that reads could have asked.
        client = await stand.client()
        assert await client.commit("r", "c1") == [Result(Outcome.APPLIED, 0, 0)]


async def test_what_the_disk_does_not_take_is_not_read_from_the_socket(tmp_path: Path) -> None:
    settings = OwnerSettings(window_bytes=10_000)
    async with standing(tmp_path, settings) as stand:
        client = await stand.client()
        held: list[tuple[Callable[[], Any], Done]] = []
        start = stand.log.start
        stand.log.start = lambda fn, done: held.append((fn, done))  # type: ignore[method-assign]
        answers = [client.commit("r", f"c{number}", text=f"{number}" * 2000) for number in range(200)]
        session = stand.service.connections.sessions[client.id]
        await until(lambda: session.paused)
        received = session.unanswered
        for _ in range(200):
            await asyncio.sleep(0)
        assert session.unanswered == received
        stand.log.start = start  # type: ignore[method-assign]
        for fn, done in held:
            start(fn, done)
        results = await asyncio.gather(*answers)
        assert [result[0].call_index for result in results if result] == list(range(200))
        assert not session.paused


async def test_the_answers_of_one_group_leave_in_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with standing(tmp_path) as stand:
        client = await stand.client(steady=False)
        await client.commit("r", "c0")
        held: list[tuple[Callable[[], Any], Done]] = []
        start = stand.log.start
        monkeypatch.setattr(stand.log, "start", lambda fn, done: held.append((fn, done)))
        session = stand.service.connections.sessions[client.id]
        answers = [client.commit("r", f"c{number}") for number in range(1, 7)]
        await until(lambda: len(stand.service.commit._queue) == 5)
        writes: list[bytes] = []
        connection = next(found for found in stand.server._connections if found._session is session)
        write = connection._transport.write

        def noted(data: bytes) -> None:
            writes.append(bytes(data))
            write(data)

        monkeypatch.setattr(connection._transport, "write", noted)
        monkeypatch.setattr(stand.log, "start", start)
        start(*held[0])
        await asyncio.gather(*answers)
        splitter = MessageSplitter(1 << 30)
        assert [len(splitter.feed(data)) for data in writes] == [1, 5]


async def test_a_stop_over_the_stream_is_answered_before_the_connection_ends(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        client = await stand.client(steady=False)
        await client.commit("r", "c1")
        assert (await client.call(Stop()))[0] is True
        await until(lambda: not stand.service.connections.sessions and bool(stand.left))
        assert stand.left == ["stopped"]


async def test_a_real_failure_of_the_disk_is_survived_over_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with standing(tmp_path) as stand:
        client = await stand.client()
        await client.commit("r", "c0")
        log = stand.service.tenure.log
        assert log is not None

        def broken(*_: object) -> None:
            raise OSError(5, "planted")

        monkeypatch.setattr(log.writer, "sync", broken)
        assert await client.commit("r", "c1") == [Result(Outcome.APPLIED, 0, 1)]
        assert [welcome.epoch for welcome in client.welcomes] == [1, 2]
        assert merged_calls(await stand.service.merge("r")) == ["c0", "c1"]


async def test_a_refused_handshake_raises_in_the_client(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        client = RawClient(stand)

        async def wrong() -> SocketLink:
            link = SocketLink(stand, *await stand.open())
            link.token = "wrong"
            return link

        stand.connect = wrong  # type: ignore[method-assign]
        with pytest.raises(HandshakeRefused):
            await client.start()


def unclosed(work: Callable[[], None]) -> list[str]:
    """The sockets that are left open by what was done."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        work()
        gc.collect()
    return [str(each.message) for each in seen]


@pytest.mark.parametrize("turns", range(5))
def test_a_connection_that_is_accepted_as_the_server_closes_is_closed_with_it(tmp_path: Path, turns: int) -> None:
    async def scenario() -> None:
        stand = Stand(tmp_path, OwnerSettings())
        port = await stand.server.start(stand.service, "127.0.0.1")
        with socket.create_connection(("127.0.0.1", port)):
            for _ in range(turns):  # asyncio accepts in one turn and sets up in the next two
                await asyncio.sleep(0)
            await stand.server.close()
            assert stand.server.connections == 0
        stand.log.close()
        stand.readers.close()

    def run() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(scenario())
        loop.close()

    assert unclosed(run) == []


def test_a_connection_that_is_accepted_as_a_threaded_owner_is_killed_is_closed_with_it(tmp_path: Path) -> None:
    def run() -> None:
        owner = ThreadedOwner(tmp_path / "d")
        owner.start()
        incarnation = owner._incarnation
        assert incarnation is not None
        busy, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            busy.set()
            go_on.wait(30.0)

        incarnation.loop.call_soon_threadsafe(hold)
        assert busy.wait(30.0)
        with socket.create_connection(("127.0.0.1", incarnation.port)):
            # The loop's last turn accepts it.
            incarnation.loop.call_soon_threadsafe(incarnation.loop.stop)
            go_on.set()
            incarnation.thread.join(30.0)
        for executor in incarnation.executors:
            executor.close()
        owner._incarnation = None
        owner.close()

    assert unclosed(run) == []
