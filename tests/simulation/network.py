"""The network between clients and owners: links that are late, hang, break, and deliver late what was sent before.

Messages of one link keep their order, as a byte stream does; across links nothing does. A broken link tells its two
ends at different times, so what a client sent on an old connection may reach the owner after its new one is open. Where
a link is stalled that is the rule: its client gives it up, says all of it again on a new one, and then the old bytes
arrive. That is what duplicated and reordered messages are over streams.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Protocol

from gym_capture.client.transport import Message
from gym_capture.errors import OwnerUnavailable
from gym_capture.model.messages import PREFIX_BYTES
from tests.simulation.loop import Process, SimLoop

if TYPE_CHECKING:
    from gym_capture.service.session import Session
    from tests.simulation.owners import OwnerProcess


class Connection(Protocol):
    """What faults of the network befall: a stream's link, or a call of Ray's."""

    client: Process
    owner: OwnerProcess

    def cut(self) -> None:
        """It breaks."""

    def stall(self) -> None:
        """From now on nothing reaches the owner."""

    def give_up(self, linger_s: float) -> None:
        """The client takes it for broken; what it sent arrives all the same, so much later."""

    def release(self) -> None:
        """What was held back by a partition goes on."""


class Network:
    """Who can reach whom, and how late.

    Attributes:
        latency_s: mean delay of a message.
        cut_off: clients that reach nobody now.
        links: streams that are open, and Ray's calls that are under way.
        calls_again: how many of Ray's calls were made more than once.
    """

    def __init__(self, loop: SimLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.latency_s = 0.001
        self.cut_off: set[Process] = set()
        self.links: list[Connection] = []
        self.calls_again = 0

    def delay(self) -> float:
        """How late the next message is."""
        return self.random.expovariate(1 / self.latency_s)

    def partition(self, client: Process) -> None:
        """Hold back all that this client sends and should hear. Links stay."""
        if client not in self.cut_off:
            self.cut_off.add(client)
            client.begin_outage("cut off")

    def heal(self, client: Process) -> None:
        """Let it through, late."""
        if client in self.cut_off:
            self.cut_off.discard(client)
            client.end_outage("cut off")
            for link in list(self.links):
                link.release()

    def cut(self, client: Process) -> None:
        """Break this client's links."""
        for link in list(self.links):
            if link.client is client:
                link.cut()

    def stall(self, client: Process, for_s: float, linger_s: float) -> None:
        """Let this client's links carry nothing to the owner for a while, then break them for the client alone.

        Args:
            linger_s: how much later the owner hears what was sent meanwhile, and then that they are broken.
        """
        stalled = [link for link in self.links if link.client is client]
        if not stalled or client in self.cut_off:
            return
        client.begin_outage("stalled")
        for link in stalled:
            link.stall()

        def broken() -> None:
            client.end_outage("stalled")
            for link in stalled:
                link.give_up(linger_s)

        self.loop.call_later(for_s, broken)

    def owner_died(self, owner: Process, *, silently: bool) -> None:
        """An owner's process is gone: its kernel says so, unless that is gone as well."""
        for link in list(self.links):
            if link.owner.process is owner and not silently:
                link.cut()


class SimLink:
    """One connection, client's and owner's end."""

    def __init__(self, network: Network, client: Process, owner: OwnerProcess, token: str, run: str) -> None:
        self.network = network
        self.client = client
        self.owner = owner
        self.token = token
        self.run = run
        self._session: Session | None = None
        self._inbox: deque[Message] = deque()
        self._news = asyncio.Event()
        self._take: Callable[[list[Message]], None] | None = None
        self._broken = False
        self._paused = False
        self._unread: deque[Message] = deque()
        self._lost = False
        self._last = {"owner": 0.0, "client": 0.0}
        self._held: list[Callable[[], None]] = []
        self._stalled: list[Callable[[], None]] | None = None
        network.links.append(self)
        self._to_owner(self._open)

    # -- the client's end ---------------------------------------------------------------------------------------

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Queue one message."""
        if not self._broken:
            message = split(buffers)
            self._to_owner(lambda: self._arrive(message))

    async def receive(self) -> list[Message]:
        """The next messages."""
        while not self._inbox:
            if self._broken:
                raise OwnerUnavailable("the connection broke")
            self._news.clear()
            await self._news.wait()
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    def push_to(self, take: Callable[[list[Message]], None]) -> None:
        """Hand over what comes, as the real stream does."""
        self._take = take

    def close(self) -> None:
        """Let go: what was sent still arrives, then the owner's end is told."""
        if not self._broken:
            self._broken = True
            self._news.set()
            self._to_owner(self._lose)

    # -- the owner's end ----------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._session = self.owner.service.connect(self._reply, self._end, self._hold)

    def _arrive(self, message: Message) -> None:
        if self._session is None or self._lost:
            return
        if self._paused:
            self._unread.append(message)
        else:
            self._session.receive(*message)

    def _hold(self, paused: bool) -> None:
        self._paused = paused
        while self._unread and not self._paused and self._session is not None:
            self._session.receive(*self._unread.popleft())

    def _reply(self, buffers: Sequence[bytes | memoryview]) -> None:
        message = split(buffers)
        self._to_client(lambda: self._deliver(message))

    def _deliver(self, message: Message) -> None:
        if self._broken:
            return
        if self._take is not None:
            self._take([message])
        else:
            self._inbox.append(message)
            self._news.set()

    def _end(self) -> None:
        self._lost = True
        self._to_client(self._break)

    def _lose(self) -> None:
        self._forget()
        if self._session is not None and not self._lost:
            self._lost = True
            self._session.lost()

    # -- between ------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """The connection breaks: each end hears of it at a time of its own, what is under way may still arrive."""
        self._forget()
        self._to_client(self._break)
        self._to_owner(self._lose)

    def stall(self) -> None:
        """From now on nothing reaches the owner."""
        if self._stalled is None:
            self._stalled = []

    def give_up(self, linger_s: float) -> None:
        """The client takes it for broken. What it sent arrives all the same, later, and then the end."""
        self._to_client(self._break)
        self.network.loop.call_later(linger_s, self._arrive_late)

    def _arrive_late(self) -> None:
        stalled, self._stalled = self._stalled or [], None
        for act in stalled:
            self._to_owner(act)
        self._to_owner(self._lose)

    def _break(self) -> None:
        self._broken = True
        self._news.set()
        self._forget()

    def _forget(self) -> None:
        if self in self.network.links and self.client not in self.network.cut_off:
            self.network.links.remove(self)

    def _to_owner(self, act: Callable[[], None]) -> None:
        self._carry("owner", self.owner.process, act)

    def _to_client(self, act: Callable[[], None]) -> None:
        self._carry("client", self.client, act)

    def _carry(self, way: str, process: Process, act: Callable[[], None]) -> None:
        if self.client in self.network.cut_off:
            self._held.append(lambda: self._carry(way, process, act))
            return
        if way == "owner" and self._stalled is not None:
            self._stalled.append(act)
            return
        loop = self.network.loop
        at = self._last[way] = max(self._last[way] + 1e-9, loop.time() + self.network.delay())
        loop.call_at(at, act, context=process.context)

    def release(self) -> None:
        """What was held back by a partition goes on."""
        if self.client not in self.network.cut_off:
            held, self._held = self._held, []
            for carry in held:
                carry()


def split(buffers: Sequence[bytes | memoryview]) -> Message:
    """A message's head and body, from its encoding."""
    data = b"".join(buffers)
    head_bytes = int.from_bytes(data[:4], "little")
    return data[PREFIX_BYTES : PREFIX_BYTES + head_bytes], data[PREFIX_BYTES + head_bytes :]
