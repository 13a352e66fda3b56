"""A transport without sockets: links that hand messages to a service of the same process, and may break on purpose."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

from gym_capture.client.transport import Message
from gym_capture.errors import OwnerUnavailable
from gym_capture.model.messages import PREFIX_BYTES
from gym_capture.service.capture_service import CaptureService
from gym_capture.service.session import Session


class Way(Enum):
    """Which way a message goes."""

    TO_OWNER = "to owner"
    TO_CLIENT = "to client"


CUT = -1.0
"""As a policy's answer: the link breaks before this message."""

Policy = Callable[[Way, bytes, bytes], float]
"""Asked for each message (its way, head and body): seconds by which it is late, or `CUT`."""


def at_once(way: Way, head: bytes, body: bytes) -> float:
    """The policy of an ordinary link."""
    return 0.0


class InProcessLink:
    """One link. Messages keep their order whatever the policy says of each.

    The client's loop and the service's may be two: each end is called in its own.
    """

    def __init__(self, transport: InProcessTransport, loop: asyncio.AbstractEventLoop) -> None:
        service = transport.service
        self.token = service.token
        self.run = service.run
        self._transport = transport
        self._client_loop = loop
        self._owner_loop = transport.loop
        self._session: Session | None = None
        self._inbox: deque[Message] = deque()
        self._news = asyncio.Event()
        self._broken = False
        self._closed = False
        self._held: deque[Message | None] = deque()  # None: the client closes the link here
        self._holding = False
        self._last: dict[Way, float] = {}
        self._call(self._owner_loop, self._open)

    # -- the client's end ---------------------------------------------------------------------------------------

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Queue one encoded message."""
        if not self._broken and not self._closed:
            self._carry(Way.TO_OWNER, buffers, self._owner_loop, self._arrive)

    async def receive(self) -> list[Message]:
        """The next messages, at least one. Raises OwnerUnavailable once the link is broken."""
        while not self._inbox:
            if self._broken or self._closed:
                raise OwnerUnavailable("the in-process link is broken; what was not answered comes again on the next.")
            self._news.clear()
            await self._news.wait()
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    def close(self) -> None:
        """Let go of the link, after what was sent."""
        if not self._broken and not self._closed:
            self._closed = True
            self._news.set()
            self._queue(Way.TO_OWNER, self._owner_loop, 0.0, self._let_go)

    def cut(self) -> None:
        """Break the link now: what is under way either way does not arrive."""
        if not self._broken:
            self._broken = True
            self._call(self._client_loop, self._news.set)
            self._call(self._owner_loop, self._lose)

    # -- the owner's end ----------------------------------------------------------------------------------------

    def _open(self) -> None:
        if not self._broken:
            self._session = self._transport.service.connect(self._reply, self._ended, self._hold)

    def _arrive(self, message: Message) -> None:
        if self._broken:
            return
        if self._holding:
            self._held.append(message)
        elif self._session is not None:
            self._session.receive(*message)

    def _let_go(self) -> None:
        if self._holding:
            self._held.append(None)
        else:
            self.cut()

    def _lose(self) -> None:
        self._transport.links.discard(self)
        if self._session is not None:
            self._session.lost()

    def _reply(self, buffers: Sequence[bytes | memoryview]) -> None:
        self._carry(Way.TO_CLIENT, buffers, self._client_loop, self._deliver)

    def _ended(self) -> None:
        """The service closes the link: after what it has sent."""
        self._owner_loop.call_soon(self._after_last, Way.TO_CLIENT)

    def _after_last(self, way: Way) -> None:
        at = self._last.get(way, 0.0)
        if at > self._owner_loop.time():
            self._owner_loop.call_at(at, self._after_last, way)
        else:
            self._call(self._client_loop, self.cut)

    def _hold(self, paused: bool) -> None:
        self._holding = paused
        while self._held and not self._holding and self._session is not None:
            message = self._held.popleft()
            if message is None:
                self.cut()
            else:
                self._session.receive(*message)

    def _deliver(self, message: Message) -> None:
        if not self._broken and not self._closed:
            self._inbox.append(message)
            self._news.set()

    # -- between ------------------------------------------------------------------------------------------------

    def _carry(
        self,
        way: Way,
        buffers: Sequence[bytes | memoryview],
        loop: asyncio.AbstractEventLoop,
        arrive: Callable[[Message], None],
    ) -> None:
        data = b"".join(buffers)
        head_bytes = int.from_bytes(data[:4], "little")
        head, body = data[PREFIX_BYTES : PREFIX_BYTES + head_bytes], data[PREFIX_BYTES + head_bytes :]
        late_s = self._transport.policy(way, head, body)
        if late_s < 0:
            self.cut()
            return
        self._queue(way, loop, late_s, arrive, (head, body))

    def _queue(
        self,
        way: Way,
        loop: asyncio.AbstractEventLoop,
        late_s: float,
        function: Callable[..., object],
        *args: object,
    ) -> None:
        last = self._last.get(way, 0.0)
        if not late_s and not last:
            self._call(loop, function, *args)
            return
        # Once a message was late, all that follow queue behind it.
        at = self._last[way] = max(last + 1e-9, loop.time() + late_s)
        self._call(loop, loop.call_at, at, function, *args)

    @staticmethod
    def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            loop.call_soon(function, *args)
            return
        try:
            loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            if not loop.is_closed():
                raise  # else its client has ended, and nobody waits there


class InProcessTransport:
    """Links to one service.

    Attributes:
        service: may be exchanged (an owner that died and its successor); links that are open stay with theirs.
        policy: see `Policy`.
        links: those that are open.
        refusing: while true, connecting raises OwnerUnavailable.

    Args:
        service: its loop is `loop`, or the one that runs now.
    """

    name = "in-process"

    def __init__(
        self, service: CaptureService, policy: Policy = at_once, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.service = service
        self.policy = policy
        self.loop = loop or asyncio.get_running_loop()
        self.links: set[InProcessLink] = set()
        self.refusing = False

    async def connect(self) -> InProcessLink:
        """Open a link. Raises OwnerUnavailable while `refusing`."""
        if self.refusing:
            raise OwnerUnavailable("the in-process transport refuses connections now.")
        link = InProcessLink(self, asyncio.get_running_loop())
        self.links.add(link)
        return link

    def cut_all(self) -> None:
        """Break every link."""
        for link in list(self.links):
            link.cut()
