"""One schedule: a cluster, a load and a list of faults, all from one seed; run, healed, brought to rest and checked."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple
from unittest import mock

from gym_capture.client import core as client_core
from gym_capture.client.client import CaptureClient
from gym_capture.client.history_book import DEFAULT_CAPACITY_BYTES, HistoryBook
from gym_capture.errors import GymCaptureError
from gym_capture.service.state import State
from gym_capture.storage import fault_points, recovery
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import CrashMode
from tests.simulation.conversations import Conversations
from tests.simulation.forger import Forger
from tests.simulation.loop import Process, SimLoop
from tests.simulation.network import Network
from tests.simulation.owners import Actors, OwnerProcess
from tests.simulation.register import Register
from tests.simulation.workload import ClientProcess, Workload
from tests.storage.reader_says import says

ACTOR = "actor-1"
OTHER_ACTOR = "actor-2"

FAULTS = (
    "kill owner",
    "lose owner's host",
    "lose owner's host between append and sync",
    "kill owner, and the next in its recovery",
    "freeze owner",
    "freeze owner, replace it",
    "second owner takes over",
    "stop owner at a fault point",
    "take over at a fault point",
    "disk error",
    "disk full for a while",
    "slow disk",
    "hung disk",
    "kill worker",
    "freeze worker",
    "cut off worker",
    "cut worker's links",
    "cut driver's links",
    "stall worker's links",
    "stall driver's links",
    "slow network",
    "clock jump",
)

WRITE_POINTS = tuple(
    point
    for point in fault_points.ALL
    if any(part in point for part in ("append", "sync", "owner-check", "segment", "rename", "link", "beat"))
)
ACKNOWLEDGING_POINTS = tuple(
    around(name)
    for name in (fault_points.APPEND, fault_points.SYNC, fault_points.OWNER_CHECK)
    for around in (fault_points.before, fault_points.after)
)
"""Between a group's arrival and its acknowledgment, where a successor hurts most."""
UNSYNCED_POINTS = (fault_points.after(fault_points.APPEND), fault_points.before(fault_points.SYNC))
"""Where a host that fails tears what was appended."""
RECOVERY_POINTS = tuple(
    around(name)
    for name in (
        fault_points.COPY_APPEND,
        fault_points.COPY_SYNC,
        fault_points.CUT_APPEND,
        fault_points.CUT_SYNC,
        fault_points.step(fault_points.SEGMENT, "create"),
        fault_points.step(fault_points.OWNER, "rename"),
    )
    for around in (fault_points.before, fault_points.after)
)
HANGING_POINTS = tuple(
    fault_points.before(name)
    for name in (
        fault_points.APPEND,
        fault_points.SYNC,
        fault_points.OWNER_CHECK,
        fault_points.BEAT,
        fault_points.COPY_SYNC,
        fault_points.CUT_APPEND,
        fault_points.step(fault_points.SEGMENT, "create"),
    )
)
ERROR_POINTS = tuple(fault_points.before(name) for name in (fault_points.APPEND, fault_points.SYNC))
LATE_S = 400.0
ENDLESS_S = 4000.0
"""No schedule comes near: one that does has a bug, of the product's or its own."""
SLOW_S = 4.0
RAY_CALLS = 0.25
"""Of so many clients the messages go by Ray's calls."""


REMEMBERED_BYTES = (1500, 6000, DEFAULT_CAPACITY_BYTES)
"""What a client's memory of conversations may take: those of about one rollout, of some, or all."""


class Fault(NamedTuple):
    """One thing that goes wrong.

    Fields: when (loop seconds), which of `FAULTS`, and a seed for its particulars.
    """

    at: float
    kind: str
    seed: int


@dataclass
class Outcome:
    """How a schedule went."""

    seed: int
    faults: list[Fault]
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    seconds: float = 0.0


def faults_of(seed: int) -> list[Fault]:
    """The faults of a seed."""
    random = Random(f"faults {seed}")
    count = random.choices([0, 1, 2, 3, 4, 6], [1, 4, 5, 4, 3, 2])[0]
    return sorted(Fault(random.uniform(0.2, 12.0), random.choice(FAULTS), random.getrandbits(30)) for _ in range(count))


def run(seed: int, faults: Sequence[Fault] | None = None) -> Outcome:
    """Run a seed's schedule, or the same load under other faults. The same arguments give the same outcome."""
    plan = faults_of(seed) if faults is None else list(faults)
    outcome = Outcome(seed, plan)
    loop = SimLoop()
    try:
        simulation = _Simulation(loop, seed, plan)
        with simulation.sizes():
            loop.run_until_complete(asyncio.wait_for(simulation.play(), ENDLESS_S))
        outcome.violations = simulation.register.violations
        outcome.counts = simulation.register.counts
        outcome.counts["Ray's calls made again"] += simulation.network.calls_again
    finally:
        outcome.turns, outcome.seconds = loop.turns, loop.time()
        loop.bury()
        loop.close()
    return outcome


class _Simulation:
    def __init__(self, loop: SimLoop, seed: int, faults: Sequence[Fault]) -> None:
        self.loop = loop
        self.seed = seed
        self.random = Random(f"simulation {seed}")
        self.faults = faults
        self.conversations = Conversations(Random(f"conversations {seed}"))
        self.register = Register(self.conversations.requests)
        self.network = Network(loop, self.random)
        self.actors = Actors(loop, self.random, self.network)
        self.latency_s = 0.0
        self.slow_until = 0.0
        self.driver: ClientProcess
        self.workers: list[ClientProcess]

    def _client(self, name: str) -> ClientProcess:
        by_ray_calls = Random(f"{name}'s way {self.seed}").random() < RAY_CALLS
        self.register.counts["clients by Ray's calls" if by_ray_calls else "clients by stream"] += 1
        return ClientProcess(self.loop, self.actors, self.random, name, by_ray_calls=by_ray_calls)

    @contextmanager
    def sizes(self) -> Iterator[None]:
        """The package with sizes that a schedule reaches: a recovery copies frame by frame, or all at once; a client
        forgets conversations soon, or never.
        """
        copied = self.random.choice([1, recovery._COPY_BYTES])
        remembered = Random(f"memory {self.seed}").choice(REMEMBERED_BYTES)
        with (
            mock.patch.object(recovery, "_COPY_BYTES", copied),
            mock.patch.object(client_core, "HistoryBook", partial(HistoryBook, remembered)),
        ):
            yield

    # -- from beginning to end ----------------------------------------------------------------------------------

    async def play(self) -> None:
        random = self.random
        self.latency_s = self.network.latency_s = random.choice([0.0005, 0.005, 0.05])
        self.actors.start(ACTOR)
        self.driver = self._client("driver")
        self.workers = [self._client(f"worker-{n}") for n in range(random.randint(1, 3))]
        forger = Forger(Random(f"forger {self.seed}"), self.actors.disk)
        workload = Workload(
            self.loop,
            random,
            self.register,
            self.conversations,
            forger,
            self.driver,
            self.workers,
            rollouts=random.randint(1, 3),
            calls=random.randint(2, 6),
        )
        workload.start()
        for fault in self.faults:
            self.loop.call_at(fault.at, self._strike, fault)
        try:
            async with asyncio.timeout(LATE_S):
                await workload.over.wait()
        except TimeoutError:
            self.register.violations.append(f"after {LATE_S} s the rollouts are not through")
        await asyncio.sleep(max(0.0, max((fault.at for fault in self.faults), default=0.0) + 0.1 - self.loop.time()))
        await self._come_to_rest()

    async def _come_to_rest(self) -> None:
        """Heal everything, let clients and owner settle, and hold what is there against what was told."""
        self._heal()
        owner = await self._serving()
        if owner is None:
            self.register.violations.append("no owner serves although everything is healed")
            return
        for client in [self.driver, *self.workers]:
            if client.process.alive:
                await self._drain(client)
        # Whoever died or never came back has lost its lease by then.
        await asyncio.sleep(20.0)
        await self._check("at rest")
        owner = await self._serving()
        if owner is not None:
            await self._stop(owner)
        # What a frozen owner still does after all that must never be seen.
        for other in self.actors.everyone:
            self.actors.retire(other.actor_id)
            other.process.thaw()
        await asyncio.sleep(5.0)
        self._check_directory("after the last owner stopped")

    async def _stop(self, owner: OwnerProcess) -> None:
        """Stop it, and whoever takes over from it even now, while its successor's disk hangs say."""
        self.actors.retire(owner.actor_id)
        stopping = owner.process.spawn(owner.service.stop())
        while owner.process.alive and not stopping.done():  # noqa: ASYNC110 - a death is no event, and time is virtual
            await asyncio.sleep(0.1)
        if owner.process.alive:
            owner.process.kill()
            return
        successor = await self._serving()
        if successor is not None:
            await self._stop(successor)

    def _heal(self) -> None:
        for owner in self.actors.everyone:
            owner.files.heal()
            owner.files.slow_s = 0.0
        for owner in self.actors.current.values():
            owner.process.thaw()
        for client in [self.driver, *self.workers]:
            client.process.thaw()
            self.network.heal(client.process)

    async def _serving(self) -> OwnerProcess | None:
        for _ in range(200):
            for owner in self.actors.current.values():
                if owner.process.alive and not owner.process.frozen and owner.service.state is State.SERVING:
                    return owner
            await asyncio.sleep(0.5)
        return None

    async def _drain(self, client: ClientProcess) -> None:
        async def settle() -> None:
            core = client.client.host.core  # type: ignore[attr-defined]  # a LoopHost's
            while core.unsettled.total:  # noqa: ASYNC110 - the core has no event for this, and time is virtual
                await asyncio.sleep(0.2)

        try:
            async with asyncio.timeout(60.0):
                await client.process.spawn(settle())
        except TimeoutError:
            self.register.violations.append(f"{client.process.name} has not settled after 60 s")

    async def _check(self, what: str) -> None:
        """Ask the live owner, through a new client."""
        client = ClientProcess(self.loop, self.actors, self.random, "auditor")
        done = client.process.spawn(self._audit(client.client, what))
        try:
            async with asyncio.timeout(LATE_S):
                await done
        except (TimeoutError, GymCaptureError) as error:
            self.register.violations.append(f"{what}: the owner cannot be asked: {error!r}")

    async def _audit(self, client: CaptureClient, what: str) -> None:
        asked_at = self.loop.time()
        if not await client.quiesce(None, timeout_s=30.0):
            self.register.violations.append(f"{what}: the run is not quiescent: {await client.stats()}")
        self.register.quiescent(None, asked_at, self.loop.time())
        store = self._check_directory(what)
        for rollout in self._rollouts():
            evidence = await client.evidence(rollout, include_payloads=True)
            live = [(record["model_call_id"], record["request"]) for record in evidence.records]
            stored = [(exchange["model_call_id"], exchange["request"]) for exchange in store.read(rollout)]
            if live != stored:
                self.register.violations.append(f"{what}: the owner says {live} of {rollout}, the directory {stored}")
        counts = (await client.stats())["counts"]
        self.register.counts["messages stored once"] += counts.get("messages", 0)
        self.register.counts["exchanges that lacked messages"] += counts.get("lacking", 0)

    def _check_directory(self, what: str) -> CaptureStore:
        """Read the directory as anybody would."""
        store = CaptureStore(self.actors.disk.view())
        for rollout in self._rollouts():
            view = store.view(rollout)
            try:
                exchanges = store.read(rollout)
            except GymCaptureError as error:
                self.register.violations.append(f"{what}: {error}")
                exchanges, _ = store.read_available(rollout)
            self.register.settle(rollout, view.generation, exchanges, view.reasons, what)
        self._check_checkpoints(store, what)
        return store

    def _check_checkpoints(self, store: CaptureStore, what: str) -> None:
        """What is said behind checkpoints is what the whole log says."""
        self.register.counts["opened behind a checkpoint"] += bool(store.report.checkpoint)
        rollouts = self._rollouts()
        behind = says(store, rollouts)
        whole = says(CaptureStore(self.actors.disk.view(), checkpoints=False), rollouts)
        self.register.violations += [
            f"{what}: behind {store.report.checkpoint} {key}: {str(behind[key])[:500]}; the whole log says "
            f"{str(whole[key])[:500]}"
            for key in whole
            if behind[key] != whole[key]
        ]
        self.register.violations += [f"{what}: {bad.file}: {bad.why}" for bad in store.verify().checkpoints]

    def _rollouts(self) -> list[str]:
        return sorted(
            {clear.rollout for clear in self.register.clears} | {call.rollout for call in self.register.calls}
        )

    # -- faults -------------------------------------------------------------------------------------------------

    def _current(self) -> OwnerProcess:
        serving = [owner for owner in self.actors.current.values() if owner.service.state is State.SERVING]
        return serving[0] if serving else self.actors.current[ACTOR]

    def _strike(self, fault: Fault) -> None:
        self.register.counts[fault.kind] += 1
        random = Random(fault.seed)
        owner = self._current()
        worker = random.choice(self.workers)
        acts: dict[str, Callable[[], None]] = {
            "kill owner": lambda: self.actors.kill(owner),
            "lose owner's host": lambda: self.actors.lose_host(owner, random.choice(list(CrashMode))),
            "lose owner's host between append and sync": lambda: self._tear(owner, random),
            "kill owner, and the next in its recovery": lambda: self._kill_both(owner, random),
            "freeze owner": lambda: self._freeze_owner(owner, random.uniform(0.5, 10.0)),
            "freeze owner, replace it": lambda: self._replace(owner, random),
            "second owner takes over": lambda: self._take_over(random),
            "stop owner at a fault point": lambda: self._stop_at(owner, random),
            "take over at a fault point": lambda: owner.files.run_at(
                random.choice(ACKNOWLEDGING_POINTS), lambda: self._replace(owner, random)
            ),
            "disk error": lambda: owner.files.fail_at(
                random.choice(ERROR_POINTS),
                random.choice([errno.EIO, errno.ENOSPC]),
                short_bytes=random.choice([0, 1, 100, 1000]),
            ),
            "disk full for a while": lambda: self._full(owner, random),
            "slow disk": lambda: self._slow(owner, random.choice([0.01, 1.0])),
            "hung disk": lambda: owner.files.hang_at(
                random.choice(HANGING_POINTS), random.choice([1.0, 8.0, 25.0]), random.choice([None, errno.EIO])
            ),
            "kill worker": lambda: self._kill(worker),
            "freeze worker": lambda: self._freeze(worker, random.choice([1.0, 4.0, 15.0, 60.0])),
            "cut off worker": lambda: self._cut_off(worker, random.choice([1.0, 4.0, 15.0])),
            "cut worker's links": lambda: self.network.cut(worker.process),
            "cut driver's links": lambda: self.network.cut(self.driver.process),
            "stall worker's links": lambda: self._stall(worker, random),
            "stall driver's links": lambda: self._stall(self.driver, random),
            "slow network": lambda: self._slow_network(random.choice([0.2, 1.0])),
            "clock jump": lambda: self._jump(
                random.choice([owner.process, worker.process, self.driver.process]), random.uniform(-3600.0, 3600.0)
            ),
        }
        acts[fault.kind]()

    def _tear(self, owner: OwnerProcess, random: Random, tries: int = 10) -> None:
        """The host fails with an append of several pages on its way to disk; after so many others, with any."""
        point, mode = random.choice(UNSYNCED_POINTS), random.choices(list(CrashMode), [1, 1, 3])[0]

        def strike() -> None:
            if self.actors.disk.unsynced_pages("segment") > 2 or tries == 0:
                self.actors.lose_host(owner, mode)
            else:
                self._tear(owner, random, tries - 1)

        owner.files.run_at(point, strike)

    def _freeze_owner(self, owner: OwnerProcess, for_s: float) -> None:
        owner.process.freeze()
        self.loop.call_later(for_s, owner.process.thaw)

    def _replace(self, owner: OwnerProcess, random: Random) -> None:
        """The node is taken for dead, and is not: it goes on after its successor has come."""
        owner.process.freeze()
        owner_was_current = self.actors.current.get(owner.actor_id) is owner
        self.loop.call_later(random.choice([0.3, 2.0, 10.0, 60.0]), owner.process.thaw)
        if owner_was_current:
            self.actors.replace(owner, random.choice([None, f"host-{random.randint(1, 2)}"]))

    def _kill_both(self, owner: OwnerProcess, random: Random) -> None:
        """The successor dies, alone or with its host, at a step of its recovery."""
        point, occurrence = random.choice(RECOVERY_POINTS), random.randint(1, 3)
        mode = random.choice([None, *CrashMode])

        def doom(successor: OwnerProcess) -> None:
            def strike() -> None:
                if mode is None:
                    self.actors.kill(successor)
                else:
                    self.actors.lose_host(successor, mode)

            successor.files.run_at(point, strike, occurrence)

        self.actors.doom = doom
        self.actors.kill(owner)

    def _take_over(self, random: Random) -> None:
        known = self.actors.current.get(OTHER_ACTOR)
        if known is None or not known.process.alive:
            self.actors.start(OTHER_ACTOR, takeover=random.random() < 0.8)

    def _stop_at(self, owner: OwnerProcess, random: Random) -> None:
        """Frozen exactly there, replaced, and thawed later; or killed there."""
        point = random.choice(WRITE_POINTS)
        if random.random() < 0.5:
            owner.files.run_at(point, lambda: self._replace(owner, random))
        else:
            owner.files.run_at(point, lambda: self.actors.kill(owner))

    def _full(self, owner: OwnerProcess, random: Random) -> None:
        owner.files.fail_at(random.choice(ERROR_POINTS), errno.ENOSPC, forever=True)
        self.loop.call_later(random.uniform(0.5, 8.0), owner.files.heal)

    def _slow(self, owner: OwnerProcess, by_s: float) -> None:
        owner.files.slow_s = by_s
        self.loop.call_later(5.0, setattr, owner.files, "slow_s", 0.0)

    def _slow_network(self, latency_s: float) -> None:
        self.network.latency_s = latency_s
        self.slow_until = self.loop.time() + SLOW_S
        # Single messages may take as long as a lease, which is no other than silence.
        for client in [self.driver, *self.workers]:
            client.process.outages.append((self.loop.time(), self.loop.time() + 10.0))
        self.loop.call_later(SLOW_S, self._end_slowness)

    def _end_slowness(self) -> None:
        if self.loop.time() >= self.slow_until:  # another one may have begun meanwhile
            self.network.latency_s = self.latency_s

    def _kill(self, worker: ClientProcess) -> None:
        if worker.process.alive:
            worker.process.kill()
            self.network.cut(worker.process)

    def _freeze(self, worker: ClientProcess, for_s: float) -> None:
        worker.process.freeze()
        self.loop.call_later(for_s, worker.process.thaw)

    def _cut_off(self, worker: ClientProcess, for_s: float) -> None:
        self.network.partition(worker.process)
        self.loop.call_later(for_s, self.network.heal, worker.process)

    def _stall(self, client: ClientProcess, random: Random) -> None:
        self.network.stall(client.process, random.choice([0.05, 0.5, 2.0, 8.0]), random.choice([0.0, 0.5, 3.0, 15.0]))

    def _jump(self, process: Process, by_s: float) -> None:
        process.wall_offset_s += by_s
