"""The pipe of messages carried by Ray calls, for clients that cannot reach the owner's port.

A client pushes numbered messages and parks one long poll for what comes back. Ray retries calls when an actor
restarts, so a push may arrive twice: what was taken before is recognised by its number. A poll's messages are kept
until the next poll confirms them, so a poll may be repeated too. A pipe ends with its process; the client then makes
a new one and says hello again, as on every transport.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from gym_capture.errors import OwnerUnavailable, ProtocolError
from gym_capture.model.messages import PREFIX_BYTES

Message = tuple[bytes, bytes]
"""A message's head and body."""

POLL_BYTES = 16 << 20
"""What one poll returns at most, unless its first message alone is larger."""


class Session(Protocol):
    """The owner's side of one connection (`service.session.Session`)."""

    heard: bool

    def receive(self, head: bytes, body: bytes) -> None:
        """Take one message."""

    def lost(self) -> None:
        """The connection is gone."""


Send = Callable[[Sequence[bytes | memoryview]], None]
Connect = Callable[[Send, Callable[[], None], Callable[[bool], None]], Session]
"""`CaptureService.connect`: how to send, how to close, and how to stop and resume reading."""


class _Pipe:
    """One client's pipe. Lives in the owner's loop."""

    def __init__(self, connect: Connect) -> None:
        self.outgoing: deque[Message] = deque()
        self.confirmed = 0
        self.taken = 0
        self.polls = 0
        self.closed = False
        self.taking = asyncio.Lock()
        self.news = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()
        self.idle: asyncio.TimerHandle | None = None
        self.session = connect(self.send, self.close, self.hold)

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Queue one message for the client."""
        first = bytes(buffers[0])
        self.outgoing.append((first[PREFIX_BYTES:], b"".join(buffers[1:])))
        self.news.set()

    def close(self) -> None:
        """The owner ends the pipe; what is queued can still be polled."""
        self.closed = True
        self.news.set()
        self.room.set()

    def hold(self, paused: bool) -> None:
        """Take no more messages for a while, or go on."""
        if paused:
            self.room.clear()
        else:
            self.room.set()

    def batch(self) -> list[Message]:
        """The first messages that are not confirmed, as many as one answer may hold."""
        messages: list[Message] = []
        size = 0
        for message in self.outgoing:
            size += len(message[0]) + len(message[1])
            if messages and size > POLL_BYTES:
                break
            messages.append(message)
        return messages


class Tunnel:
    """All pipes of one owner. Used in the owner's loop only.

    Args:
        connect: makes the owner's side of a connection.
        idle_s: a pipe that is neither pushed to nor polled for this long is closed; a few leases.
    """

    def __init__(self, connect: Connect, idle_s: float) -> None:
        self._connect = connect
        self._idle_s = idle_s
        self._pipes: dict[str, _Pipe] = {}

    @property
    def pipes(self) -> int:
        """How many pipes are open."""
        return len(self._pipes)

    def open(self, client_hex: str) -> str:
        """A new pipe for a client (its id, for people). A repeated call makes another; an unused one ends idle."""
        name = f"{client_hex[:32]}-{secrets.token_hex(8)}"
        pipe = self._pipes[name] = _Pipe(self._connect)
        self._watch(name, pipe)
        return name

    async def push(self, name: str, first_number: int, messages: Sequence[Message]) -> tuple[int, int]:
        """Hand messages to the owner, in order, each once.

        Args:
            first_number: the number of the first one; a pipe's messages are numbered from 1.

        Returns:
            The highest number that was taken, and the number of the last message that the owner has for the client by
            now: the client sees that it goes on, while an answer is on its way that takes long.

        Raises:
            OwnerUnavailable: there is no such pipe (any more).
            ProtocolError: messages before these are missing; the pipe is closed.
        """
        pipe = self._find(name)
        self._watch(name, pipe)
        async with pipe.taking:
            if first_number > pipe.taken + 1:
                self.close(name)
                raise ProtocolError(
                    f"pipe {name} was pushed message {first_number} after {pipe.taken}. Nothing of it was applied; "
                    "the pipe is closed, the client opens another and sends again what was not answered."
                )
            for message in messages[pipe.taken + 1 - first_number :]:
                if pipe.closed:
                    raise self._gone(name)
                pipe.taken += 1
                pipe.session.heard = True
                pipe.session.receive(*message)
                await pipe.room.wait()
            return pipe.taken, pipe.confirmed + len(pipe.outgoing)

    async def poll(self, name: str, after: int, timeout_s: float) -> tuple[int, list[Message]]:
        """The owner's messages after number `after`, which confirms those up to it.

        Args:
            timeout_s: how long to wait for the first one.

        Returns:
            The number of the last message returned (`after` when there is none), and the messages.

        Raises:
            OwnerUnavailable: the pipe is closed and everything in it was fetched, or there is no such pipe.
        """
        pipe = self._find(name)
        self._watch(name, pipe)
        while pipe.confirmed < after and pipe.outgoing:
            pipe.outgoing.popleft()
            pipe.confirmed += 1
        if not pipe.outgoing and not pipe.closed:
            pipe.news.clear()
            pipe.polls += 1
            try:
                await asyncio.wait_for(pipe.news.wait(), timeout_s)
            except TimeoutError:
                pass  # an empty answer says so
            finally:
                pipe.polls -= 1
                self._watch(name, pipe)
        messages = pipe.batch()
        if not messages and pipe.closed:
            self.close(name)
            raise self._gone(name)
        return pipe.confirmed + len(messages), messages

    def close(self, name: str) -> None:
        """End a pipe; its client's claims live on until their lease ends. Closing it again is fine."""
        pipe = self._pipes.pop(name, None)
        if pipe is not None:
            if pipe.idle is not None:
                pipe.idle.cancel()
            if not pipe.closed:
                pipe.closed = True
                pipe.session.lost()
            pipe.news.set()
            pipe.room.set()

    def close_all(self) -> None:
        """End every pipe."""
        for name in list(self._pipes):
            self.close(name)

    def _find(self, name: str) -> _Pipe:
        pipe = self._pipes.get(name)
        if pipe is None:
            raise self._gone(name)
        return pipe

    def _gone(self, name: str) -> OwnerUnavailable:
        return OwnerUnavailable(
            f"pipe {name} is gone: the owner restarted, closed it, or saw nothing of it for {self._idle_s:g} s. What "
            "was acknowledged is safe; open another pipe and send the rest again."
        )

    def _watch(self, name: str, pipe: _Pipe) -> None:
        """Start the idle time anew."""
        if pipe.idle is not None:
            pipe.idle.cancel()
        if self._pipes.get(name) is pipe:
            pipe.idle = asyncio.get_running_loop().call_later(self._idle_s, self._end_idle, name, pipe)

    def _end_idle(self, name: str, pipe: _Pipe) -> None:
        if pipe.polls:
            self._watch(name, pipe)
        else:
            self.close(name)
