"""Owners for tests: on a faulty disk, with a clock that stands still, and an executor that can be held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from gym_capture.model.exchange import decode_fields
from gym_capture.model.ledger import Ledger
from gym_capture.model.messages import MergeReply
from gym_capture.service.capture_service import CaptureService
from gym_capture.service.executor import Done, Executor
from gym_capture.service.settings import OwnerSettings
from gym_capture.storage.owner_file import OwnerIdentity
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.recovery import recover
from gym_capture.storage.run_marker import create_or_adopt_run
from gym_capture.testing.faulty_files import FaultyDisk, FaultyFiles
from gym_capture.testing.in_process import InProcessTransport
from gym_capture.testing.manual_clock import ManualClock
from tests.service.raw_client import RawClient

SETTINGS = OwnerSettings(segment_bytes=1 << 20, reopen_first_s=0.001, reopen_max_s=0.01)


class HeldExecutor(Executor):
    """Runs functions in order, in the loop; while it is held they wait."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._gate = asyncio.Event()
        self._gate.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.calls = 0

    def start(self, fn: Callable[[], Any], done: Done) -> None:
        self.calls += 1
        task = asyncio.get_running_loop().create_task(self._work(fn, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, fn: Callable[[], Any], done: Done) -> None:
        async with self._turn:
            await self._gate.wait()
            try:
                result, error = fn(), None
            except Exception as raised:  # noqa: BLE001 - it belongs to whoever waits
                result, error = None, raised
        asyncio.get_running_loop().call_soon(done, result, error)

    def hold(self) -> None:
        self._gate.clear()

    def let_go(self) -> None:
        self._gate.set()

    def close(self) -> None:
        pass


class SeededEntropy:
    def __init__(self, seed: int = 0) -> None:
        self._rng = Random(seed)

    def bytes(self, count: int) -> bytes:
        return self._rng.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._rng.uniform(low, high)


def identity(actor_id: str = "actor-1", pid: int = 1) -> OwnerIdentity:
    return OwnerIdentity(actor_id, "capture", "gym_capture", "node-1", pid)


class Bench:
    """One service on one disk, and the clients that a test connects to it."""

    def __init__(
        self, disk: FaultyDisk, actor_id: str = "actor-1", settings: OwnerSettings = SETTINGS, pid: int = 1
    ) -> None:
        self.disk = disk
        self.files: FaultyFiles = disk.view()
        create_or_adopt_run(self.files)
        self.clock = ManualClock()
        self.executor = HeldExecutor()
        self.left: list[str] = []
        self.service = CaptureService(
            self.files,
            identity(actor_id, pid),
            settings,
            clock=self.clock,
            executor=self.executor,
            entropy=SeededEntropy(),
            on_leave=self.left.append,
            wait=self.clock.advance,
        )
        self.transport = InProcessTransport(self.service)
        self.clients: list[RawClient] = []

    async def client(self, name: str = "client", *, steady: bool = True) -> RawClient:
        """A connected client whose id is made from `name`."""
        client = RawClient(self.transport, name.encode().ljust(16, b"-"), steady=steady)
        self.clients.append(client)
        return await client.start()

    def tick(self, count: int = 1) -> None:
        """Let whole ticks of time pass."""
        for _ in range(count):
            self.clock.advance(self.service.settings.tick_s)
            self.service.tick()

    async def close(self) -> None:
        self.executor.let_go()
        for client in self.clients:
            await client.close()
        try:
            await self.service.stop()
        finally:
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(
    disk: FaultyDisk | None = None,
    actor_id: str = "actor-1",
    settings: OwnerSettings = SETTINGS,
    *,
    takeover: bool = False,
    pid: int = 1,
) -> AsyncIterator[Bench]:
    """An open service, stopped at the end."""
    bench = Bench(disk or FaultyDisk(), actor_id, settings, pid)
    await bench.service.open(takeover=takeover)
    try:
        yield bench
    finally:
        await bench.close()


async def turns(count: int = 20) -> None:
    """Let everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def eventually(condition: Callable[[], bool], what: str = "it") -> None:
    """Run the loop until `condition` holds; bounded in turns, so that a failure shows quickly."""
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{what} never came to be")


def on_disk(disk: FaultyDisk) -> Ledger:
    """What a fresh owner of the same actor recovers."""
    clock = ManualClock()
    files = disk.view()
    ownership = Ownership.take(
        files, identity(pid=99), clock, takeover=True, wait=clock.advance, new_token=lambda: "secret"
    )
    ledger = Ledger()
    writer = recover(files, ownership, ledger).writer
    writer.close()
    return ledger


def calls_of(ledger: Ledger, rollout: str) -> list[str]:
    """The model_call_ids of a rollout's current generation, in order."""
    return [entry.model_call_id for entry in ledger.view(rollout).entries]


def assert_acknowledged_is_kept(disk: FaultyDisk, acknowledged: dict[str, list[str]]) -> None:
    """The invariant: after the host failed, every acknowledged call is there, and none twice."""
    disk.crash()
    ledger = on_disk(disk)
    for rollout, expected in acknowledged.items():
        found = calls_of(ledger, rollout)
        missing = [call for call in expected if call not in found]
        doubled = sorted({call for call in found if found.count(call) > 1})
        assert not missing, f"acknowledged and lost: {missing}"
        assert not doubled, f"twice: {doubled}"


def merged_calls(reply: MergeReply | dict[str, Any]) -> list[str]:
    """The model_call_ids of a merge's records, in order."""
    records = reply.records if isinstance(reply, MergeReply) else reply["records"]
    return [decode_fields(bytes(data))["model_call_id"] for _, data in records]
