"""The same pipe through Ray calls, for processes that cannot reach the owner's port.

Messages are pushed in numbered calls, one under way at a time, and fetched by one parked poll. Nothing here runs in
the caller's event loop, so `ray.cancel` of a caller's task leaves these calls alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from gym_capture.client.ray_calls import call_actor
from gym_capture.client.transport import Message
from gym_capture.errors import GymCaptureError, OwnerUnavailable
from gym_capture.model.messages import PREFIX_BYTES

POLL_S = 20.0
"""How long one poll is parked at the owner."""

PUSH_BYTES = 16 << 20
"""What one push carries at most, unless its first message alone is larger."""


class Tunnel(NamedTuple):
    """An owner that was found through Ray: its actor's handle, and what a hello must show it."""

    actor: Any
    token: str
    run: str


class ActorLookup(Protocol):
    """Finds the owner's actor, anew for every link."""

    async def find(self) -> Tunnel:
        """The owner's actor. What blocks is to run in an executor of the lookup's own.

        Raises:
            OwnerUnavailable: not to be found now; it is asked again.
            OwnerNotFound: there is none.
        """


class RayLink:
    """One pipe. Made by `RayTransport`."""

    def __init__(self, tunnel: Tunnel, pipe: str) -> None:
        self.token = tunnel.token
        self.run = tunnel.run
        self._actor = tunnel.actor
        self._pipe = pipe
        self._out: deque[Message] = deque()
        self._to_send = asyncio.Event()
        self._inbox: deque[Message] = deque()
        self._news = asyncio.Event()
        self._broken: str | None = None
        self._moved = 0
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._push()), loop.create_task(self._poll())]

    # -- Link ---------------------------------------------------------------------------------------------------

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Queue one encoded message."""
        if self._broken is None:
            first = bytes(buffers[0])
            self._out.append((first[PREFIX_BYTES:], b"".join(buffers[1:])))
            self._to_send.set()

    async def receive(self) -> list[Message]:
        """The next messages, at least one."""
        while not self._inbox:
            if self._broken is not None:
                raise OwnerUnavailable(f"the Ray pipe to the capture owner is closed{self._broken}")
            self._news.clear()
            await self._news.wait()
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    def close(self) -> None:
        """Let go of the pipe, after what was sent."""
        if self._broken is None:
            self._end("")
            self._tasks[1].cancel()

    @property
    def progress(self) -> int:
        """Messages that came or that the owner has ready, and pushes of a backlog that carried as much as one may.

        Others do not count: an owner whose disk hangs, and who may have a successor, takes this client's beats too.
        """
        return self._moved

    # -- inside -------------------------------------------------------------------------------------------------

    async def _push(self) -> None:
        next_number = 1
        ready = 0
        try:
            while True:
                await self._to_send.wait()
                self._to_send.clear()
                while self._out:
                    messages: list[Message] = []
                    size = 0
                    while self._out and size < PUSH_BYTES:
                        messages.append(self._out.popleft())
                        size += len(messages[-1][0]) + len(messages[-1][1])
                    pushed = await call_actor(self._actor.tunnel_push, self._pipe, next_number, messages)
                    next_number += len(messages)
                    self._moved += pushed[1] > ready or size >= PUSH_BYTES
                    ready = pushed[1]
                if self._broken is not None:
                    call_actor(self._actor.tunnel_close, self._pipe)
                    return
        except Exception as error:  # noqa: BLE001 - whatever Ray raises, the pipe is broken
            self._end(f": {error}")
            self._tasks[1].cancel()

    async def _poll(self) -> None:
        after = 0
        try:
            while self._broken is None:
                last, messages = await call_actor(self._actor.tunnel_poll, self._pipe, after, POLL_S)
                # A repeated answer may begin with messages that were taken already.
                fresh = messages[max(0, len(messages) - (last - after)) :] if last > after else []
                after = max(after, last)
                if fresh:
                    self._moved += 1
                    self._inbox.extend(fresh)
                    self._news.set()
        except Exception as error:  # noqa: BLE001 - whatever Ray raises, the pipe is broken
            self._end(f": {error}")

    def _end(self, why: str) -> None:
        if self._broken is None:
            self._broken = why
        self._news.set()
        self._to_send.set()


class RayTransport:
    """Pipes through the owner's actor.

    Args:
        lookup: finds the actor.
    """

    name = "ray"

    def __init__(self, lookup: ActorLookup) -> None:
        self._lookup = lookup

    async def connect(self) -> RayLink:
        """Find the owner's actor and open a pipe.

        Raises:
            OwnerUnavailable: it is not there now.
            OwnerNotFound: there is none.
        """
        try:
            tunnel = await self._lookup.find()
            pipe: str = await call_actor(tunnel.actor.tunnel_open, "")
        except Exception as error:
            # What the actor raised comes wrapped, as an error of Ray's and of ours at once.
            cause = getattr(error, "cause", error)
            if isinstance(cause, GymCaptureError):
                raise cause from error
            raise OwnerUnavailable(f"the capture owner's actor does not answer ({error})") from error
        return RayLink(tunnel, pipe)
