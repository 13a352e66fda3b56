"""The pipe of Ray calls, against an actor that is a plain object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gym_capture.client import ray_transport
from gym_capture.client.ray_transport import RayLink, RayTransport, Tunnel
from gym_capture.client.transport import progress_of
from gym_capture.errors import OwnerNotFound, OwnerUnavailable
from gym_capture.model.messages import PREFIX_BYTES, Beat, encode_message


class Method:
    """An actor's method: `.remote()` gives something to await."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.remote = lambda *args: asyncio.ensure_future(work(*args))


class Actor:
    """The owner's end of one pipe, by hand."""

    def __init__(self) -> None:
        self.pushed: list[tuple[int, list[tuple[bytes, bytes]]]] = []
        self.polled: list[int] = []
        self.closed: list[str] = []
        self.error: Exception | None = None
        self.ready = 0
        self.room = asyncio.Event()
        self.room.set()
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.tunnel_open = Method(self._open)
        self.tunnel_push = Method(self._push)
        self.tunnel_poll = Method(self._poll)
        self.tunnel_close = Method(self._close)

    async def find(self) -> Tunnel:
        """It is its own lookup."""
        return Tunnel(self, "token", "run")

    async def _open(self, client: str) -> str:
        if self.error is not None:
            raise self.error
        return "pipe"

    async def _push(self, pipe: str, first: int, messages: list[tuple[bytes, bytes]]) -> tuple[int, int]:
        await self.room.wait()
        if self.error is not None:
            raise self.error
        self.pushed.append((first, messages))
        return first + len(messages) - 1, self.ready

    async def _poll(self, pipe: str, after: int, timeout_s: float) -> Any:
        self.polled.append(after)
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _close(self, pipe: str) -> None:
        self.closed.append(pipe)


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def connected() -> tuple[RayLink, Actor]:
    """A link and its actor."""
    actor = Actor()
    return await RayTransport(actor).connect(), actor


def message(body: bytes) -> list[bytes | memoryview]:
    """Something to send."""
    return encode_message(Beat(), [body])


HEAD = bytes(encode_message(Beat())[0])[PREFIX_BYTES:]


async def test_messages_are_pushed_in_order_and_numbered_while_one_push_is_under_way() -> None:
    link, actor = await connected()
    actor.room.clear()
    link.send(message(b"1"))
    await settle()
    link.send(message(b"2"))
    link.send(message(b"3"))
    await settle()
    assert actor.pushed == []
    actor.room.set()
    await settle()
    assert actor.pushed == [(1, [(HEAD, b"1")]), (2, [(HEAD, b"2"), (HEAD, b"3")])]
    link.close()
    await settle()


async def test_replies_are_confirmed_by_the_next_poll_and_repeated_ones_taken_once() -> None:
    link, actor = await connected()
    actor.answers.put_nowait((2, [(b"a", b""), (b"b", b"")]))
    actor.answers.put_nowait((3, [(b"b", b""), (b"c", b"")]))
    actor.answers.put_nowait((3, []))
    await settle()
    assert await link.receive() == [(b"a", b""), (b"b", b""), (b"c", b"")]
    assert actor.polled == [0, 2, 3, 3]
    link.close()
    await settle()


async def test_beats_that_are_taken_and_not_answered_are_no_progress() -> None:
    link, actor = await connected()
    for _ in range(3):
        link.send(message(b""))
        await settle()
    actor.answers.put_nowait((0, []))
    await settle()
    assert (len(actor.pushed), len(actor.polled)) == (3, 2)
    assert progress_of(link) == 0
    actor.answers.put_nowait((1, [(b"a", b"")]))
    await settle()
    assert progress_of(link) == 1
    for actor.ready, moved in (
        (2, 2),
        (2, 2),
        (3, 3),
    ):  # an answer that takes long is under way, and beats are answered
        link.send(message(b""))
        await settle()
        assert progress_of(link) == moved
    link.close()
    await settle()


async def test_what_takes_several_pushes_shows_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_transport, "PUSH_BYTES", 100)
    link, actor = await connected()
    for _ in range(4):
        link.send(message(b"x" * 60))
    await settle()
    assert [len(messages) for _, messages in actor.pushed] == [2, 2]
    assert progress_of(link) == 2
    link.send(message(b"y" * 100))
    await settle()
    assert progress_of(link) == 3
    link.close()
    await settle()


async def test_whatever_ray_raises_breaks_the_link() -> None:
    link, actor = await connected()
    actor.answers.put_nowait(RuntimeError("the actor died"))
    with pytest.raises(OwnerUnavailable, match="the actor died"):
        await link.receive()
    pushing, second = await connected()
    second.error = RuntimeError("temporarily unavailable")
    pushing.send(message(b"1"))
    with pytest.raises(OwnerUnavailable, match="temporarily unavailable"):
        await pushing.receive()
    link.close()
    pushing.close()
    await settle()


async def test_closing_pushes_what_was_sent_and_closes_the_pipe() -> None:
    link, actor = await connected()
    link.send(message(b"bye"))
    link.close()
    await settle()
    assert (actor.pushed, actor.closed) == ([(1, [(HEAD, b"bye")])], ["pipe"])
    with pytest.raises(OwnerUnavailable):
        await link.receive()


async def test_an_actors_own_error_keeps_its_kind_under_rays_wrapping() -> None:
    class Wrapped(Exception):
        cause = OwnerNotFound("no such owner")

    actor = Actor()
    actor.error = Wrapped()
    with pytest.raises(OwnerNotFound, match="no such owner"):
        await RayTransport(actor).connect()
    actor.error = RuntimeError("down")
    with pytest.raises(OwnerUnavailable, match="down"):
        await RayTransport(actor).connect()
