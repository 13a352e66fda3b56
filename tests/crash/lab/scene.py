"""One run's surroundings, as a fault sees them: the owner, the workers, the control file, the way between."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import ray

import gym_capture
from gym_capture.directory.locate import endpoint_of
from gym_capture.model.shards import shard_of
from gym_capture.storage.owner_file import read_owner
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_layout import shard_directory
from tests.crash.lab.cluster import LabCluster, signal_pid
from tests.crash.lab.collector import Collector
from tests.crash.lab.in_process import CONTROL
from tests.crash.lab.journal import History, HistoryReader, Journal
from tests.crash.lab.network import DisturbedPath
from tests.crash.lab.plan import Plan

T = TypeVar("T")

HEAL_S = 240.0
"""No state of a run is awaited longer. A busy machine may take a minute for one process; what it took is told."""


class Scene:
    """A run that is under way.

    Args:
        plan: its plan.
        cluster: where it runs.
        folder: an empty folder of its own.

    Attributes:
        shard: the one that faults strike, of those that the run has, and whose writes say that it is over.
        owner: what its owner is called where something is told of it.
    """

    def __init__(self, plan: Plan, cluster: LabCluster, folder: Path) -> None:
        self.plan = plan
        self.cluster = cluster
        self.folder = folder
        self.directory = folder / "captures"
        self.draw = plan.random("fault")
        self.shard = plan.random("shard").randrange(plan.shards)
        self.owner = f"owner of shard {self.shard}" if plan.shards > 1 else "owner"
        self.journals = folder / "journals"
        self.journals.mkdir()
        self.journal = Journal(self.journals, "lab")
        self.capture: gym_capture.CaptureClient
        self.collector: Collector | None = None
        self.actors: list[Any] = []
        self.frozen: list[int] = []
        self.path: DisturbedPath | None = None
        self.lose_driver: Callable[[], Awaitable[None]]
        self._reader = HistoryReader(self.journals)
        self.name: str | None = None
        self._serial = 0
        self._names = 0
        self._control: dict[str, Any] = {}

    def config(self) -> dict[str, Any]:
        """What the owner is started with, or found again."""
        return {
            "model_call_capture_dir": str(self.directory),
            "capture": {
                "name": self.name,
                "namespace": f"lab-{self.folder.name}",
                "transport": self.plan.transport,
                "lease_s": self.plan.lease_s,
                "segment_bytes": self.plan.segment_bytes,
                "shards": self.plan.shards,
                "history": self.plan.history,
                "endpoint": {"host": "127.0.0.1"},
                "placement": {"node": "any", "resources": {"capture_owner": 0.01}},
            },
        }

    def another_name(self) -> str:
        """A name for an owner that nobody has had yet."""
        self._names += 1
        return f"owner-{self._names}-of-{self.folder.name}"

    # -- what a fault does --------------------------------------------------------------------------------------

    def control(self, **now: Any) -> None:
        """Put this in force in the processes of the run, besides what stays."""
        self._serial += 1
        self._control = {**self._control, **now, "shard": self.shard, "serial": self._serial}
        aside = self.folder / f"{CONTROL}.new"
        aside.write_text(json.dumps(self._control))
        os.replace(aside, self.folder / CONTROL)

    def fired(self) -> bool:
        """Whether the last control's kill has happened."""
        return (self.folder / f"fired-{self._serial}").exists()

    def note(self, what: str) -> None:
        """The fault happens now."""
        self.journal.note("fault", what)

    def kill(self, pid: int, what: str) -> None:
        """SIGKILL a process."""
        self.note(f"kill {what} {pid}")
        signal_pid(pid, signal.SIGKILL)

    async def freeze(self, pids: list[int], seconds: float, what: str) -> None:
        """SIGSTOP processes for so long."""
        self.note(f"freeze {what} {pids} for {seconds:.2f} s")
        self.frozen.extend(pids)
        for pid in pids:
            signal_pid(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self.thaw()

    def thaw(self) -> None:
        """SIGCONT everything that was frozen."""
        for pid in self.frozen:
            signal_pid(pid, signal.SIGCONT)
        self.frozen.clear()

    # -- who is where -------------------------------------------------------------------------------------------

    def mine(self, rollout: str) -> bool:
        """Whether a rollout belongs to the shard that faults strike."""
        return shard_of(rollout, self.plan.shards) == self.shard

    def owner_pid(self) -> int:
        """The pid in the `OWNER` of the shard."""
        return int(self._owner(self.shard).identity.pid)

    def owner_node(self) -> str:
        """The Ray node in it."""
        return str(self._owner(self.shard).identity.node)

    def owner_name(self) -> str:
        """The actor's name in it."""
        return str(self._owner(self.shard).identity.name)

    def epoch(self) -> int:
        """The epoch in it."""
        return int(self._owner(self.shard).epoch)

    def epochs_on(self, node: str) -> dict[int, int]:
        """The shards whose owners are on a Ray node, with their epochs."""
        owners = {shard: self._owner(shard) for shard in range(self.plan.shards)}
        return {shard: int(owner.epoch) for shard, owner in owners.items() if owner.identity.node == node}

    def all_after(self, epochs: dict[int, int]) -> bool:
        """Whether each of these shards is in a later epoch."""
        return all(self._owner(shard).epoch > epoch for shard, epoch in epochs.items())

    def where_the_owner_listens(self) -> tuple[str, int]:
        """Its host and port."""
        endpoint = endpoint_of(self._directory_of(self.shard))
        return endpoint.host, endpoint.port

    def _owner(self, shard: int) -> Any:
        owner = read_owner(PosixFiles(self._directory_of(shard)))
        assert owner is not None
        return owner

    def _directory_of(self, shard: int) -> str:
        return shard_directory(str(self.directory), shard, self.plan.shards)

    def history(self) -> History:
        """What everybody was told so far."""
        return self._reader.read()

    async def busy(self, kind: str) -> int:
        """The pid of a worker process of that kind that holds claims of the shard now."""

        def find() -> int | None:
            history = self.history()
            calls = [call for call in history.open.values() if self.mine(call.rollout)]
            holders = {call.holder for call in calls if call.holder.startswith(kind)}
            now = time.monotonic()
            pids = [history.processes[each][0] for each in sorted(holders) if history.pulses[each][-1] > now - 0.5]
            return self.draw.choice(pids) if pids else None

        return await self.until(find, f"a {kind} that holds claims")

    async def until(self, condition: Callable[[], T | None], what: str, limit_s: float = HEAL_S) -> T:
        """What `condition` returns once it is true."""
        end = time.monotonic() + limit_s
        while True:
            found = condition()
            if found:
                return found
            if time.monotonic() > end:
                raise AssertionError(f"not within {limit_s:g} s: {what}")
            await asyncio.sleep(0.02)

    def acknowledged_after(self, at: float, since: int = 0) -> float | None:
        """Seconds from then to the first acknowledged write to the shard that was asked for after it."""
        return self.history().recovered_after(at, since, self.mine)

    async def close(self) -> None:
        """Leave nothing of the run behind but its folder."""
        self.thaw()
        self.journal.end()
        if self.path is not None:
            self.path.close()
        await self.end_owners()

    async def end_owners(self, but: str = "") -> None:
        """End every owner's actor for good, except the one of that name."""
        for entry in await asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True):
            if entry["namespace"] == f"lab-{self.folder.name}" and entry["name"] != but:
                try:
                    ray.kill(ray.get_actor(entry["name"], entry["namespace"]), no_restart=True)
                except (ValueError, ray.exceptions.RayError):
                    pass  # it ended by itself
