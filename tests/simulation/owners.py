"""Owners as processes, and what Ray does about them: one incarnation of each actor, restarted wherever it died."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from random import Random

import msgspec

from gym_capture.actor.owner import IDLE_LEASES
from gym_capture.actor.tunnel import Message, Tunnel
from gym_capture.errors import GymCaptureError, OwnerUnavailable
from gym_capture.model.endpoint import Endpoint
from gym_capture.model.entropy import Entropy
from gym_capture.model.ledger import Ledger
from gym_capture.reach.locators import ACTOR_ANSWER_S
from gym_capture.service.capture_service import CaptureService
from gym_capture.service.settings import OwnerSettings
from gym_capture.service.state import State
from gym_capture.storage.owner_file import OwnerIdentity, read_owner, read_token
from gym_capture.storage.run_marker import create_or_adopt_run
from gym_capture.testing.faulty_files import CrashMode, FaultyDisk
from tests.simulation.disk_thread import DiskThread, SimFiles, pause
from tests.simulation.loop import Process, ProcessClock, SimLoop
from tests.simulation.network import Network, SimLink
from tests.simulation.ray_calls import ActorHandle

SETTINGS = OwnerSettings(reopen_first_s=0.05, reopen_max_s=1.0, reopen_wait_s=3.0)
SEGMENT_BYTES = (200, 4096, 1 << 16)
"""How long a schedule's segments are: a group (or a copied frame) each, some groups, or all that there is."""
CHECKPOINT_ROWS = (1, 6, 30)
"""After how many rows a checkpoint is written: after each group, every few, or now and then."""

RESTART_S = (0.5, 1.5)
NODE_LOSS_S = (2.5, 15.0)
"""How long Ray takes to restart an actor whose process died, and one whose node is gone (DESIGN's measurements)."""


class SeededEntropy:
    """An `Entropy` of the schedule's seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def bytes(self, count: int) -> bytes:
        """Bytes."""
        return self._random.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        """A number."""
        return self._random.uniform(low, high)


class OwnerProcess:
    """One process of an owner's actor."""

    def __init__(self, actors: Actors, actor_id: str, number: int, host: str) -> None:
        world = actors
        self.host = host
        self.actor_id = actor_id
        self.process = Process(world.loop, f"{actor_id}#{number}")
        self.process.monotonic_offset_s = world.random.uniform(0.0, 1e6)
        self.files = SimFiles(world.disk, self.process, world.random, remote=host != world.disk_host)
        self.opened = False
        self.left: str | None = None
        self._actors = actors
        entropy: Entropy = SeededEntropy(world.random)
        clock = ProcessClock(world.loop, self.process)
        self.service: CaptureService = self.process.context.run(
            lambda: CaptureService(
                self.files,
                OwnerIdentity(actor_id, actor_id, "simulation", host, number),
                world.settings,
                clock=clock,
                executor=DiskThread(world.loop, self.process, world.random),
                readers=DiskThread(world.loop, self.process, world.random),
                entropy=entropy,
                on_leave=self._leave,
                wait=pause,
            )
        )

        self.tunnel = Tunnel(self.service.connect, IDLE_LEASES * world.settings.lease_s)

    async def serve(self, takeover: bool) -> None:
        """Open the service; a process that cannot leaves."""
        try:
            await self.service.open(takeover=takeover, listening=("simulated", 1 + self.process_number))
        except (GymCaptureError, OSError) as error:
            self._leave(f"could not open: {error}")
        else:
            self.opened = True

    # -- what Ray's calls reach (`capture_actor`) -----------------------------------------------------------------

    async def endpoint(self) -> Endpoint:
        """See `Owner.endpoint`."""
        if not self.opened:
            raise OwnerUnavailable("the owner does not serve yet")
        await self.service.be_sure()
        return self.service.endpoint

    async def tunnel_open(self, client_hex: str) -> str:
        """See `Tunnel.open`."""
        if not self.opened:
            raise OwnerUnavailable("the owner does not serve yet")
        return self.tunnel.open(client_hex)

    async def tunnel_push(self, pipe: str, first_number: int, messages: list[Message]) -> tuple[int, int]:
        """See `Tunnel.push`."""
        return await self.tunnel.push(pipe, first_number, messages)

    async def tunnel_poll(self, pipe: str, after: int, timeout_s: float) -> tuple[int, list[Message]]:
        """See `Tunnel.poll`."""
        return await self.tunnel.poll(pipe, after, timeout_s)

    async def tunnel_close(self, pipe: str) -> None:
        """See `Tunnel.close`."""
        self.tunnel.close(pipe)

    @property
    def process_number(self) -> int:
        """Which process of the simulation it is."""
        return self.service.identity.pid

    def _leave(self, why: str) -> None:
        # os._exit: nothing of it runs any more, and Ray restarts the actor unless it was asked to end.
        if self.process.alive:
            self.left = why
            self._actors.exited(self, restart=why != "stopped")


class Actors:
    """Ray: starts owners, restarts those that died, tells clients where they are.

    Attributes:
        disk: the shared directory.
        settings: all owners'.
        disk_host: the host whose page cache is the disk's; owners elsewhere see what was synced.
        context: Ray's own; it is no part of the processes that it restarts.
        current: the last incarnation of each actor.
        everyone: every owner process there ever was.
        doom: what is to befall the next process that starts.
    """

    def __init__(self, loop: SimLoop, random: Random, network: Network) -> None:
        self.loop = loop
        self.random = random
        self.network = network
        self.disk = FaultyDisk()
        self.disk_host = "host-0"
        self.settings = msgspec.structs.replace(
            SETTINGS, segment_bytes=random.choice(SEGMENT_BYTES), checkpoint_rows=random.choice(CHECKPOINT_ROWS)
        )
        self.current: dict[str, OwnerProcess] = {}
        self.everyone: list[OwnerProcess] = []
        self.doom: Callable[[OwnerProcess], None] | None = None
        self._retired: set[str] = set()
        self.context = contextvars.copy_context()
        create_or_adopt_run(self.disk.view())

    def start(self, actor_id: str, *, takeover: bool = False, host: str | None = None) -> OwnerProcess:
        """A process for this actor."""
        owner = OwnerProcess(self, actor_id, len(self.everyone), host or self.disk_host)
        self.everyone.append(owner)
        self.current[actor_id] = owner
        doom, self.doom = self.doom, None
        if doom is not None:
            doom(owner)
        owner.process.spawn(owner.serve(takeover))
        return owner

    def exited(self, owner: OwnerProcess, *, restart: bool) -> None:
        """A process left by itself."""
        owner.process.kill()
        self.network.owner_died(owner.process, silently=False)
        if restart:
            self._restart(owner, RESTART_S)

    def kill(self, owner: OwnerProcess) -> None:
        """SIGKILL: the page cache stays."""
        if owner.process.alive:
            self.exited(owner, restart=True)

    def lose_host(self, owner: OwnerProcess, mode: CrashMode) -> None:
        """The owner's host fails: what was not synced is lost; Ray starts the actor elsewhere once it has noticed."""
        if not owner.process.alive:
            return
        if owner.host == self.disk_host:
            # All that ran there is gone, frozen processes too: nobody is left who saw the lost pages. And whoever
            # used its disk from another host has lost it, with what it had not synced.
            for other in self.everyone:
                if other is not owner and other.process.alive:
                    other.process.kill()
                    self.network.owner_died(other.process, silently=True)
                    self._restart(other, NODE_LOSS_S)
            self.disk.crash(mode, self.random.getrandbits(30))
        owner.process.kill()
        self.network.owner_died(owner.process, silently=True)
        self._restart(owner, NODE_LOSS_S)

    def replace(self, owner: OwnerProcess, host: str | None = None) -> None:
        """The owner's node is taken for dead (it may only be frozen): Ray starts the actor anew, there or elsewhere."""
        self._restart(owner, (0.0, 1.0), host)

    def retire(self, actor_id: str) -> None:
        """Never restart this actor again."""
        self._retired.add(actor_id)

    def _restart(self, owner: OwnerProcess, after_s: tuple[float, float], host: str | None = None) -> None:
        if self.current.get(owner.actor_id) is not owner or owner.actor_id in self._retired:
            return
        self.loop.call_later(self.random.uniform(*after_s), self._start_again, owner, host, context=self.context)

    def _start_again(self, owner: OwnerProcess, host: str | None) -> None:
        if self.current.get(owner.actor_id) is owner and owner.actor_id not in self._retired:
            self.start(owner.actor_id, host=host or owner.host)

    def ledger(self) -> Ledger | None:
        """The state of the directory's latest owner; None while it does not serve."""
        latest = max(self.everyone, key=lambda owner: owner.service.epoch)
        return latest.service.ledger if latest.service.state is State.SERVING and latest.process.alive else None

    # -- how clients find them ----------------------------------------------------------------------------------

    def by_directory(self, client: Process) -> SimLink:
        """The owner that `OWNER` names."""
        view = self.disk.view()
        info = read_owner(view)
        if info is None:
            raise OwnerUnavailable("nobody owns the directory yet")
        owner = self.everyone[info.identity.pid]
        try:
            token = read_token(view, info.epoch)
        except OSError as error:
            raise OwnerUnavailable("no token yet") from error
        return self._link(client, owner, token, info.run)

    async def by_actor(self, client: Process) -> SimLink:
        """Where some actor says that it listens."""
        _, endpoint = await self.asked(client)
        return self._link(client, self.everyone[endpoint.port - 1], endpoint.token, endpoint.run)

    async def asked(self, client: Process) -> tuple[ActorHandle, Endpoint]:
        """Some actor, and what its present process says of itself (`ActorLocator`).

        It may be the wrong one, which serves nothing or is frozen: whoever asks it, and again after a pause, is silent
        for the other one until then.
        """
        actor = ActorHandle(self, client, self.random.choice(list(self.current)))
        client.begin_outage("asking")
        try:
            async with asyncio.timeout(ACTOR_ANSWER_S):
                endpoint = await actor.endpoint.remote()
        except TimeoutError:
            raise OwnerUnavailable("the actor does not answer") from None
        client.end_outage("asking")
        return actor, endpoint

    def _link(self, client: Process, owner: OwnerProcess, token: str, run: str) -> SimLink:
        if not owner.process.alive:
            raise OwnerUnavailable("connection refused")
        client.end_outage("asking")
        return SimLink(self.network, client, owner, token, run)


class SimTransport:
    """A client's `Transport`."""

    name = "simulated"

    def __init__(self, actors: Actors, client: Process) -> None:
        self._actors = actors
        self._client = client

    async def connect(self) -> SimLink:
        """Find an owner, by its directory or by Ray."""
        await asyncio.sleep(self._actors.network.delay())
        if self._client in self._actors.network.cut_off:
            await asyncio.sleep(5.0)
            raise OwnerUnavailable("no route to host")
        if self._actors.random.random() < 0.7:
            return self._actors.by_directory(self._client)
        return await self._actors.by_actor(self._client)
