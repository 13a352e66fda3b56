"""The stream's connection: pieces, garbage, ends, and who cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gym_capture.client.stream_transport import StreamLink, StreamTransport, client_ssl_context
from gym_capture.client.transport import Message, progress_of
from gym_capture.errors import HandshakeRefused, OwnerUnavailable
from gym_capture.model.endpoint import Endpoint
from gym_capture.model.messages import PREFIX_BYTES, Beat, BeatReply, encode_message

HERE = Endpoint("127.0.0.1", 1, "token", "run", 3)


class Found:
    """A locator that knows."""

    def __init__(self, endpoint: Endpoint = HERE) -> None:
        self.endpoint = endpoint

    async def locate(self) -> Endpoint:
        """The endpoint."""
        return self.endpoint


class Wire(asyncio.Transport):
    """A transport that keeps what is written; the network takes none of it until it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.taken = 0
        self.ended = ""

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Keep it."""
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        """What the network has not taken."""
        return len(self.written) - self.taken

    def close(self) -> None:
        """End in order."""
        self.ended = "closed"

    def abort(self) -> None:
        """End at once."""
        self.ended = "aborted"


class Connecting:
    """A connector that gives the protocol a wire, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.wire = Wire()
        self.protocol: asyncio.Protocol

    async def connect(self, endpoint: Endpoint, make: Callable[[], asyncio.Protocol]) -> None:
        """Connect or fail."""
        if self.error is not None:
            raise self.error
        self.protocol = make()
        self.protocol.connection_made(self.wire)


async def connected() -> tuple[StreamLink, Connecting]:
    """A link, and its other end."""
    connector = Connecting()
    return await StreamTransport(Found(), connector).connect(), connector


def reply(epoch: int) -> bytes:
    """A message of the owner."""
    return b"".join(encode_message(BeatReply(epoch)))


async def test_messages_arrive_whole_however_the_bytes_come() -> None:
    link, far = await connected()
    data = reply(1) + reply(2) + reply(3)
    for place in range(0, len(data), 3):
        far.protocol.data_received(data[place : place + 3])
    messages = await link.receive()
    assert messages == [(reply(number)[PREFIX_BYTES:], b"") for number in (1, 2, 3)]
    assert (link.token, link.run) == ("token", "run")


async def test_messages_are_pushed_to_whoever_takes_them_with_those_that_had_come_before() -> None:
    link, far = await connected()
    taken: list[Message] = []
    far.protocol.data_received(reply(1))
    link.push_to(taken.extend)
    assert taken == [(reply(1)[PREFIX_BYTES:], b"")]
    far.protocol.data_received(reply(2) + reply(3)[:5])
    assert taken[1:] == [(reply(2)[PREFIX_BYTES:], b"")]
    link.close()
    far.protocol.data_received(reply(3)[5:])
    assert len(taken) == 2
    with pytest.raises(OwnerUnavailable):
        await link.receive()


async def test_what_is_sent_leaves_at_once_and_in_order() -> None:
    link, far = await connected()
    large = bytes(100_000)
    link.send([b"ab", b"cd"])
    link.send([b"ef", large, b"gh"])
    assert far.wire.written == b"abcdef" + large + b"gh"


async def test_progress_shows_what_the_network_takes_and_gives() -> None:
    link, far = await connected()
    link.send([bytes(1000)])
    assert progress_of(link) == 0
    far.wire.taken = 400
    assert progress_of(link) == 400
    far.protocol.data_received(b"\x01")
    assert progress_of(link) == 401


async def test_a_connection_that_ends_wakes_who_listens() -> None:
    link, far = await connected()
    waiting = asyncio.create_task(link.receive())
    await asyncio.sleep(0)
    far.protocol.connection_lost(ConnectionResetError("gone"))
    with pytest.raises(OwnerUnavailable, match=r"127\.0\.0\.1:1 is closed: gone"):
        await waiting
    link.send(list(encode_message(Beat())))
    assert far.wire.written == b""


async def test_what_came_before_the_end_is_still_received() -> None:
    link, far = await connected()
    far.protocol.data_received(reply(1))
    far.protocol.connection_lost(None)
    assert len(await link.receive()) == 1
    with pytest.raises(OwnerUnavailable):
        await link.receive()


async def test_bytes_that_are_no_message_end_the_connection() -> None:
    link, far = await connected()
    far.protocol.data_received(b"\xff" * 64)
    assert far.wire.ended == "aborted"
    with pytest.raises(OwnerUnavailable, match="was announced"):
        await link.receive()


async def test_closing_leaves_what_was_sent_on_its_way() -> None:
    link, far = await connected()
    link.send([b"bye"])
    link.close()
    assert (far.wire.written, far.wire.ended) == (b"bye", "closed")
    with pytest.raises(OwnerUnavailable):
        await link.receive()


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), TimeoutError(), OSError("no route")])
async def test_a_port_that_cannot_be_reached_is_an_owner_that_is_away(error: Exception) -> None:
    with pytest.raises(OwnerUnavailable, match=r"127\.0\.0\.1:1 cannot be reached"):
        await StreamTransport(Found(), Connecting(error)).connect()


async def test_an_owner_without_a_stream_is_not_reached_by_one() -> None:
    with pytest.raises(OwnerUnavailable, match="no stream"):
        await StreamTransport(Found(Endpoint("h", 0, "t", "r", 1)), Connecting()).connect()


def test_tls_without_rays_certificates_is_refused_in_words() -> None:
    with pytest.raises(HandshakeRefused, match="RAY_TLS_CA_CERT"):
        client_ssl_context({})
