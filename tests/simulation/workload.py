"""Workers and collectors: what rollouts do with a capture client, in seeded order, noting what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from gym_capture.client.client import CaptureClient
from gym_capture.client.core import ClientCore
from gym_capture.client.loop_host import LoopHost
from gym_capture.client.operations import ClaimState
from gym_capture.client.options import ClientOptions
from gym_capture.client.ray_transport import RayTransport
from gym_capture.client.rollout import RolloutHandle
from gym_capture.client.transport import Transport
from gym_capture.errors import GymCaptureError
from gym_capture.model.merge import RolloutEvidence
from gym_capture.storage.store import CaptureStore
from tests.simulation.conversations import Conversations
from tests.simulation.forger import Forger
from tests.simulation.loop import Process, ProcessClock, SimLoop
from tests.simulation.owners import Actors, SeededEntropy, SimTransport
from tests.simulation.packing_thread import PackingThread
from tests.simulation.ray_calls import SimLookup
from tests.simulation.register import Call, Clear, Register

OPTIONS = ClientOptions(patience_s=60.0, drain_timeout_s=20.0, connect_timeout_s=10.0)
PACKED_INLINE_BYTES = (0, 700, 256 << 10)
"""From how many bytes on a client packs in its thread: each exchange, the longer ones, or none of a schedule's."""
BATCH_BYTES = (600, 4 << 20)
"""How much a client sends at once: a message and its exchange in batches of their own, or all that there is."""


class SimDirectoryReader:
    """An `EvidenceReader`: the directory as it is on this moment's disk, for merges while the owner is away."""

    def __init__(self, actors: Actors) -> None:
        self._actors = actors

    async def read_evidence(
        self, rollout_id: str, generation: int | None, include_payloads: bool
    ) -> RolloutEvidence | None:
        """What it holds of the rollout's generation."""
        try:
            store = CaptureStore(self._actors.disk.view())
        except (GymCaptureError, OSError):
            return None
        if generation is not None and store.generation(rollout_id) != generation:
            return None
        return store.evidence(rollout_id, include_payloads)


class ClientProcess:
    """A process with a capture client in it.

    Args:
        by_ray_calls: it reaches the owner through calls of the actor, not by a stream.
    """

    def __init__(self, loop: SimLoop, actors: Actors, random: Random, name: str, *, by_ray_calls: bool = False) -> None:
        self.process = Process(loop, name, wall_offset_s=random.uniform(-30.0, 30.0))
        self.process.monotonic_offset_s = random.uniform(0.0, 1e6)
        self.actors = actors
        self.ended = False
        clock, entropy = ProcessClock(loop, self.process), SeededEntropy(random)
        sizes = Random(f"{name}'s sizes {random.random()}")
        options = replace(
            OPTIONS, pack_inline_bytes=sizes.choice(PACKED_INLINE_BYTES), max_batch_bytes=sizes.choice(BATCH_BYTES)
        )
        packing = PackingThread(self.process, sizes)
        transport: Transport = SimTransport(actors, self.process)
        if by_ray_calls:
            transport = RayTransport(SimLookup(actors, self.process))

        def make() -> CaptureClient:
            core = ClientCore(transport, options, clock=clock, entropy=entropy, loop=loop, executor=packing)
            host = LoopHost(core, transport, options, clock, entropy)
            return CaptureClient(host, evidence_reader=SimDirectoryReader(actors))

        self.client: CaptureClient = self.process.context.run(make)


class Workload:
    """Rollouts, each with attempts that are cleared, worked on and merged.

    Args:
        workers: where rollouts run; the collector's client is `driver`.
        conversations: what calls ask.
        forger: what some of them are answered.
    """

    def __init__(
        self,
        loop: SimLoop,
        random: Random,
        register: Register,
        conversations: Conversations,
        forger: Forger,
        driver: ClientProcess,
        workers: list[ClientProcess],
        rollouts: int,
        calls: int,
    ) -> None:
        self._loop = loop
        self._random = random
        self._register = register
        self._conversations = conversations
        self._forger = forger
        self._actors = driver.actors
        self._driver = driver
        self._workers = workers
        self._rollouts = rollouts
        self._most_calls = calls
        self._count = 0
        self.running = 0
        self.over = asyncio.Event()

    def start(self) -> None:
        """Begin all rollouts."""
        for number in range(self._rollouts):
            self._begin(self._driver, partial(self._collect, f"r{number}"))
        for _ in range(self._random.randrange(3)):
            self._begin(self._driver, self._watch)

    def _begin(self, where: ClientProcess, work: Callable[[], Awaitable[None]]) -> None:
        self.running += 1

        async def counted() -> None:
            try:
                await work()
            finally:
                self.running -= 1
                if not self.running:
                    self.over.set()

        where.process.spawn(counted())

    # -- the collector ------------------------------------------------------------------------------------------

    async def _collect(self, rollout: str) -> None:
        random = self._random
        await asyncio.sleep(random.uniform(0, 1.0))
        for _ in range(random.choice([1, 2, 2, 4])):
            clear = Clear(rollout, self._loop.time())
            self._register.clears.append(clear)
            try:
                clear.generation = (await self._driver.client.clear([rollout]))[rollout]
            except GymCaptureError:
                self._register.counts["clear failed"] += 1
                continue
            clear.told_at = self._loop.time()
            token = clear.generation if random.random() < 0.8 else None
            # Sometimes two processes work on one attempt, or one of them with two handles.
            workers = random.choices(self._workers, k=random.choice([1, 1, 1, 2]))
            handles = [worker.client.rollout(rollout, token) for worker in workers]
            work = [
                worker.process.spawn(self._work(worker, handle, token))
                for worker, handle in zip(workers, handles, strict=True)
            ]
            # A collector gives a worker up after a while, as one whose task was lost does; it works on meanwhile.
            await asyncio.wait(work, timeout=random.choice([0.5, 2.0, 20.0, 60.0]))
            await self._merge(rollout, clear.generation, sum(handle.issued for handle in handles))

    async def _merge(self, rollout: str, generation: int, issued: int) -> None:
        asked_at = self._loop.time()
        record: dict[str, Any] = {"_ng_rollout_id": rollout}
        payloads = self._random.random() < 0.3
        try:
            await self._driver.client.merge(record, payloads, issued=issued, generation=generation)
        except GymCaptureError:
            self._register.counts["merge failed"] += 1
            return
        self._register.merged(rollout, generation, asked_at, self._loop.time(), record["ng_model_call_capture"])

    async def _watch(self) -> None:
        for _ in range(self._random.randint(1, 4)):
            await asyncio.sleep(self._random.expovariate(1 / 2.0))
            rollout = None if self._random.random() < 0.3 else f"r{self._random.randrange(self._rollouts)}"
            asked_at = self._loop.time()
            try:
                quiescent = await self._driver.client.quiesce(rollout, timeout_s=self._random.choice([0.0, 3.0, 20.0]))
            except GymCaptureError:
                continue
            if quiescent:
                self._register.quiescent(rollout, asked_at, self._loop.time())

    # -- the worker ---------------------------------------------------------------------------------------------

    async def _work(self, worker: ClientProcess, handle: RolloutHandle, token: int | None) -> None:
        calls = range(self._random.randint(1, self._most_calls))
        if self._random.random() < 0.5:
            await asyncio.wait([worker.process.spawn(self._call(worker, handle, token)) for _ in calls])
        else:
            for _ in calls:
                await self._call(worker, handle, token)

    async def _call(self, worker: ClientProcess, handle: RolloutHandle, token: int | None) -> None:
        self._count += 1
        call = Call(handle.id, f"c{self._count}", token, worker.process, self._loop.time())
        self._register.calls.append(call)
        self._register.counts["calls"] += 1
        # A record without a token may refer to messages that a clear forgot: only the owner knows.
        recorded = 12 if token is not None else 80
        ending = self._random.choices(["complete", "raise", "cancel", "release", "record"], [60, 8, 12, 8, recorded])[0]
        request = self._conversations.request(call.rollout, call.call_id)
        if ending == "record":
            await self._record(handle, call, request)
            return
        task = asyncio.ensure_future(self._claimed(handle, call, request, ending))
        if ending == "cancel":
            self._loop.call_later(self._random.expovariate(1 / 0.3), task.cancel, context=worker.process.context)
        try:
            await task
        except (asyncio.CancelledError, ZeroDivisionError):
            pass

    async def _claimed(self, handle: RolloutHandle, call: Call, request: dict[str, Any], ending: str) -> None:
        claim = handle.claim(dialect="chat", model_call_id=call.call_id, request=request)
        try:
            async with claim:
                call.told_generation = claim.generation
                if claim._ticket.state is ClaimState.OPEN:
                    call.claimed_at = self._loop.time()
                    self._register.claimed(call, self._actors.ledger())
                self._register.counts["claimed"] += call.claimed_at is not None
                try:
                    await asyncio.sleep(self._random.choice([0.0, 0.05, 1.0, 4.0]) * self._random.random())
                    if ending == "raise":
                        raise ZeroDivisionError
                    if ending == "release":
                        claim.release()
                    else:
                        raw = self._forger.answer(call.rollout)
                        self._register.counts["hostile answers"] += raw is not None
                        claim.complete(response={"answer": call.call_id}, response_raw=raw)
                finally:
                    call.closed_as = "release" if ending == "release" else "commit"
                    call.closing_at = self._loop.time()
        finally:
            outcome = claim.outcome
            call.outcome = outcome.value if outcome is not None else None
            call.told_at = self._loop.time()
            if call.told_generation is None:
                call.told_generation = claim.generation
            self._register.counts[call.outcome or "untold"] += 1

    async def _record(self, handle: RolloutHandle, call: Call, request: dict[str, Any]) -> None:
        exchange = {
            "model_call_id": call.call_id,
            "dialect": "chat",
            "request": request,
            "response": {"answer": call.call_id},
            "response_raw": self._forger.answer(call.rollout),
        }
        self._register.counts["hostile answers"] += exchange["response_raw"] is not None
        tries = self._random.choice([1, 1, 2])
        for _ in range(tries):
            try:
                await handle.record(exchange)
            except GymCaptureError as error:
                self._register.counts[f"record: {type(error).__name__}"] += 1
                continue
            call.outcome, call.told_at, call.told_generation = "durable", self._loop.time(), call.generation
            self._register.counts["recorded"] += 1
