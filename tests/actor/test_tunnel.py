"""The tunnel: each message once and in order, whatever is retried; nothing lost until it is confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from gym_capture.actor.tunnel import POLL_BYTES, Message, Tunnel
from gym_capture.errors import OwnerUnavailable, ProtocolError
from gym_capture.model.messages import Beat, BeatReply, decode_from_owner, encode_message

Buffers = Sequence[bytes | memoryview]


class FakeSession:
    """Keeps what it is told; echoes on request."""

    def __init__(
        self, send: Callable[[Buffers], None], close: Callable[[], None], hold: Callable[[bool], None]
    ) -> None:
        self.send = send
        self.close = close
        self.hold = hold
        self.heard = False
        self.received: list[Message] = []
        self.ended = False

    def receive(self, head: bytes, body: bytes) -> None:
        self.received.append((head, body))

    def lost(self) -> None:
        self.ended = True


class FakeOwner:
    def __init__(self) -> None:
        self.sessions: list[FakeSession] = []

    def connect(
        self, send: Callable[[Buffers], None], close: Callable[[], None], hold: Callable[[bool], None]
    ) -> FakeSession:
        session = FakeSession(send, close, hold)
        self.sessions.append(session)
        return session


def numbered(first: int, last: int) -> list[Message]:
    return [(b"head-%d" % number, b"body") for number in range(first, last + 1)]


@pytest.fixture
def owner() -> FakeOwner:
    return FakeOwner()


@pytest.fixture
def tunnel(owner: FakeOwner) -> Tunnel:
    return Tunnel(owner.connect, idle_s=30.0)


async def test_a_push_that_comes_again_delivers_nothing_twice(tunnel: Tunnel, owner: FakeOwner) -> None:
    pipe = tunnel.open("ab" * 16)
    assert await tunnel.push(pipe, 1, numbered(1, 3)) == (3, 0)
    assert await tunnel.push(pipe, 1, numbered(1, 3)) == (3, 0)
    assert await tunnel.push(pipe, 2, numbered(2, 5)) == (5, 0)
    assert owner.sessions[0].received == numbered(1, 5)
    assert owner.sessions[0].heard


async def test_a_gap_in_the_numbers_closes_the_pipe_and_delivers_nothing_of_it(
    tunnel: Tunnel, owner: FakeOwner
) -> None:
    pipe = tunnel.open("ab" * 16)
    await tunnel.push(pipe, 1, numbered(1, 1))
    with pytest.raises(ProtocolError, match="message 3 after 1"):
        await tunnel.push(pipe, 3, numbered(3, 4))
    assert owner.sessions[0].received == numbered(1, 1)
    assert owner.sessions[0].ended
    with pytest.raises(OwnerUnavailable):
        await tunnel.push(pipe, 2, numbered(2, 4))


async def test_messages_are_polled_again_until_they_are_confirmed(tunnel: Tunnel, owner: FakeOwner) -> None:
    pipe = tunnel.open("ab" * 16)
    session = owner.sessions[0]
    for epoch in (1, 2, 3):
        session.send(encode_message(BeatReply(epoch), [b"x" * epoch, b"y"]))
    last, messages = await tunnel.poll(pipe, 0, 1.0)
    assert last == 3
    assert [(decode_from_owner(head), body) for head, body in messages] == [
        (BeatReply(1), b"xy"),
        (BeatReply(2), b"xxy"),
        (BeatReply(3), b"xxxy"),
    ]
    assert await tunnel.poll(pipe, 0, 1.0) == (last, messages)
    assert await tunnel.poll(pipe, 2, 1.0) == (3, messages[2:])
    assert await tunnel.poll(pipe, 3, 0.0) == (3, [])


async def test_a_parked_poll_wakes_with_the_first_message(tunnel: Tunnel, owner: FakeOwner) -> None:
    pipe = tunnel.open("ab" * 16)
    parked = asyncio.create_task(tunnel.poll(pipe, 0, 30.0))
    await asyncio.sleep(0)
    assert not parked.done()
    owner.sessions[0].send(encode_message(BeatReply(7)))
    last, [(head, body)] = await parked
    assert (last, decode_from_owner(head), body) == (1, BeatReply(7), b"")


async def test_a_poll_returns_no_more_than_its_bytes_unless_one_message_is_larger(
    tunnel: Tunnel, owner: FakeOwner
) -> None:
    pipe = tunnel.open("ab" * 16)
    large = bytes(POLL_BYTES)
    for body in (large, large[: POLL_BYTES // 2], b"small"):
        owner.sessions[0].send(encode_message(BeatReply(1), [body]))
    assert [len(body) for _, body in (await tunnel.poll(pipe, 0, 1.0))[1]] == [POLL_BYTES]
    assert [len(body) for _, body in (await tunnel.poll(pipe, 1, 1.0))[1]] == [POLL_BYTES // 2, 5]


async def test_a_pipe_that_the_owner_closes_can_still_be_fetched_and_is_then_gone(
    tunnel: Tunnel, owner: FakeOwner
) -> None:
    pipe = tunnel.open("ab" * 16)
    session = owner.sessions[0]
    session.send(encode_message(BeatReply(1)))
    session.close()
    assert (await tunnel.poll(pipe, 0, 1.0))[0] == 1
    with pytest.raises(OwnerUnavailable, match="is gone"):
        await tunnel.poll(pipe, 1, 1.0)
    assert tunnel.pipes == 0
    assert not session.ended


async def test_a_push_waits_while_the_owner_reads_nothing(tunnel: Tunnel, owner: FakeOwner) -> None:
    pipe = tunnel.open("ab" * 16)
    session = owner.sessions[0]
    session.hold(True)
    push = asyncio.create_task(tunnel.push(pipe, 1, numbered(1, 3)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert session.received == numbered(1, 1)
    session.hold(False)
    assert await push == (3, 0)
    assert session.received == numbered(1, 3)


async def test_a_pipe_nobody_uses_ends_and_one_that_is_polled_does_not(owner: FakeOwner) -> None:
    tunnel = Tunnel(owner.connect, idle_s=0.02)
    unused, polled = tunnel.open("aa"), tunnel.open("bb")
    assert await tunnel.poll(polled, 0, 0.2) == (0, [])
    assert owner.sessions[0].ended
    assert not owner.sessions[1].ended
    with pytest.raises(OwnerUnavailable):
        await tunnel.push(unused, 1, [(encode_message(Beat())[0], b"")])  # type: ignore[list-item]
    assert await tunnel.push(polled, 1, numbered(1, 1)) == (1, 0)
    tunnel.close_all()


async def test_closing_wakes_whoever_polls(tunnel: Tunnel, owner: FakeOwner) -> None:
    pipe = tunnel.open("ab" * 16)
    parked = asyncio.create_task(tunnel.poll(pipe, 0, 30.0))
    await asyncio.sleep(0)
    tunnel.close(pipe)
    tunnel.close(pipe)
    with pytest.raises(OwnerUnavailable):
        await parked
    assert owner.sessions[0].ended
