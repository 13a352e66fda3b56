"""Ray's calls between clients and owners' tunnels: late, retried on a successor, and executed twice or out of order.

The client's `RayTransport` and the owner's `Tunnel` are the real ones. What Ray does between them is here: a call finds
the actor's present process and waits for one while there is none; where a process died, or a connection broke before
the answer was through, the call is made again, whatever it has done already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gym_capture.client.ray_transport import Tunnel
from gym_capture.errors import OwnerUnavailable
from tests.simulation.loop import Process
from tests.simulation.network import Network

if TYPE_CHECKING:
    from tests.simulation.owners import Actors, OwnerProcess

NOTICED_S = 1.0
"""How often Ray looks whether the process that has a call still lives."""


class RayCall:
    """One call of an actor's method, until its answer is there. The network treats it as a link of its client's."""

    def __init__(self, actors: Actors, client: Process, actor_id: str, method: str, arguments: tuple[Any, ...]) -> None:
        self.client = client
        self.owner: OwnerProcess = actors.current[actor_id]
        self.answer: asyncio.Future[Any] = actors.loop.create_future()
        self._actors = actors
        self._network: Network = actors.network
        self._actor_id = actor_id
        self._method = method
        self._arguments = arguments
        self._held: list[Callable[[], None]] = []
        self._stalled = 0
        self._network.links.append(self)
        self._send()
        self._by_ray(NOTICED_S, self._look)

    def _send(self) -> None:
        if self.client in self._network.cut_off or self._stalled:
            self._held.append(self._send)
        else:
            self._by_ray(self._network.delay(), self._arrive)

    def _arrive(self) -> None:
        owner = self._actors.current[self._actor_id]
        if owner.process.alive:
            self.owner = owner
            owner.process.spawn(self._execute(owner))
        elif not self._over():
            self._by_ray(NOTICED_S, self._arrive)  # until the actor is back

    async def _execute(self, owner: OwnerProcess) -> None:
        try:
            result = await getattr(owner, self._method)(*self._arguments)
        except Exception as error:  # noqa: BLE001 - the caller is told, whatever it is
            self._reply(self.answer.set_exception, error)
        else:
            self._reply(self.answer.set_result, result)

    def _reply(self, tell: Callable[[Any], None], outcome: Any) -> None:
        if self.client in self._network.cut_off:
            self._held.append(lambda: self._reply(tell, outcome))
            return
        at = self._network.loop.time() + self._network.delay()
        self._network.loop.call_at(at, self._finish, tell, outcome, context=self.client.context)

    def _finish(self, tell: Callable[[Any], None], outcome: Any) -> None:
        if not self.answer.done():
            tell(outcome)
        self._over()

    def _look(self) -> None:
        if self._over():
            return
        self._by_ray(NOTICED_S, self._look)
        if not self.owner.process.alive and self._actors.current[self._actor_id].process.alive:
            self._send_again()

    def _send_again(self) -> None:
        self._network.calls_again += 1
        self._send()

    def _over(self) -> bool:
        if self.answer.done() and self in self._network.links:
            self._network.links.remove(self)
        return self.answer.done()

    def _by_ray(self, after_s: float, act: Callable[[], None]) -> None:
        self._network.loop.call_later(after_s, act, context=self._actors.context)

    # -- what befalls a connection --------------------------------------------------------------------------------

    def cut(self) -> None:
        """The connection breaks. What was under way may still arrive, and the call is made again."""
        self._send_again()

    def stall(self) -> None:
        """From now on nothing reaches the owner."""
        self._stalled += 1

    def give_up(self, linger_s: float) -> None:
        """Ray makes the call again; what it sent before arrives all the same, later."""
        self._stalled -= 1
        held, self._held = self._held, []
        for act in held:
            self._by_ray(linger_s, act)
        self._send_again()

    def release(self) -> None:
        """What was held back by a partition goes on."""
        if self.client not in self._network.cut_off and not self._stalled:
            held, self._held = self._held, []
            for act in held:
                act()


class _Method:
    def __init__(self, call: Callable[[tuple[Any, ...]], RayCall]) -> None:
        self._call = call

    def remote(self, *arguments: Any) -> asyncio.Future[Any]:
        """Make the call."""
        return self._call(arguments).answer


class ActorHandle:
    """An actor as a client holds it: `handle.tunnel_push.remote(…)`."""

    def __init__(self, actors: Actors, client: Process, actor_id: str) -> None:
        def method(name: str) -> _Method:
            return _Method(lambda arguments: RayCall(actors, client, actor_id, name, arguments))

        self.endpoint = method("endpoint")
        self.tunnel_open = method("tunnel_open")
        self.tunnel_push = method("tunnel_push")
        self.tunnel_poll = method("tunnel_poll")
        self.tunnel_close = method("tunnel_close")


class SimLookup:
    """A client's `ActorLookup`."""

    def __init__(self, actors: Actors, client: Process) -> None:
        self._actors = actors
        self._client = client

    async def find(self) -> Tunnel:
        """Some actor, and what its present process says of itself."""
        await asyncio.sleep(self._actors.network.delay())
        if self._client in self._actors.network.cut_off:
            await asyncio.sleep(5.0)
            raise OwnerUnavailable("no route to host")
        actor, endpoint = await self._actors.asked(self._client)
        return Tunnel(actor, endpoint.token, endpoint.run)
