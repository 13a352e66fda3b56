"""The contestants of the targets: Ray workers for both sides, bare processes, and counts of what they wrote."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from pathlib import Path
from typing import Any

import gym_capture
from benchmarks.bare_process import Appends
from benchmarks.cases import disk_bytes
from benchmarks.file_store import FileStore
from benchmarks.fleet_worker import FleetWorker
from benchmarks.measure import Sample, combine
from benchmarks.processes import Processes

STREAM = "gym_capture"
FILES = "file store, same Ray workers"
BARE = "file store, bare processes"

Row = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Load:
    """A kind of write load.

    Args:
        size: bytes of an exchange.
        workers: how many of the Ray workers, and bare processes.
        in_flight: calls in flight in each Ray worker.
        seconds: how long calls are begun.
        shared: all write into one rollout. The file store's workers then have one call under way each: more would only
            queue for the file's lock.
        slower_s: how much longer the file store's syncs take.
    """

    size: int
    workers: int
    in_flight: int
    seconds: float
    shared: bool = False
    slower_s: float = 0.0


class Fleet:
    """Ray workers and bare processes, over one capture directory and one file store.

    Args:
        ray: the module, initialised.
        capture: the owner's client.
        directory, files: the capture directory and the file store's.
        bare: the bare processes.
        workers: how many Ray workers.
    """

    def __init__(
        self, ray: Any, capture: gym_capture.CaptureClient, directory: Path, files: Path, bare: Processes, workers: int
    ) -> None:
        self.ray = ray
        self.capture = capture
        self.directory = directory
        self.files = files
        self.bare = bare
        self.acknowledged = {"capture": 0, "files": 0}
        """What this fleet wrote into `directory` and `files` and is still to be found there."""
        self._seeds = itertools.count(1)
        self.workers = [ray.remote(num_cpus=0)(FleetWorker).remote(str(directory), "stream") for _ in range(workers)]
        ray.get([worker.transport.remote() for worker in self.workers])

    def close(self) -> None:
        """Let the workers go."""
        self.ray.get([worker.close.remote() for worker in self.workers], timeout=60)
        for worker in self.workers:
            self.ray.kill(worker)

    def seed(self) -> int:
        """A number that was not used before."""
        return next(self._seeds)

    def prefix(self) -> str:
        """The beginning of ids that were not used before."""
        return f"b{self.seed()}"

    # -- loads --------------------------------------------------------------------------------------------------

    def begin(self, side: str, load: Load) -> list[Any]:
        """Start a load on the Ray workers; returns Ray's references to their samples."""
        prefix = self.prefix()
        chosen = self.workers[: load.workers]
        self.ray.get([worker.make_texts.remote(load.size) for worker in chosen])
        if side == STREAM:
            return [
                worker.tasks.remote(prefix, self.seed(), load.size, load.in_flight, load.seconds, shared=load.shared)
                for worker in chosen
            ]
        in_flight = 1 if load.shared else load.in_flight
        return [
            worker.append.remote(
                str(self.files),
                load.slower_s,
                prefix,
                self.seed(),
                load.size,
                in_flight,
                load.seconds,
                shared=load.shared,
            )
            for worker in chosen
        ]

    def end(self, side: str, samples: list[Any]) -> Row:
        """Wait for a load that `begin` started."""
        return self.counted(side, self.ray.get(samples))

    def run(self, side: str, load: Load) -> Row:
        """One load of one contestant from its beginning to its end."""
        if side != BARE:
            return self.end(side, self.begin(side, load))
        prefix = self.prefix()
        rollouts = 1 if load.shared else 64
        orders = [
            Appends(str(self.files), prefix, self.seed(), load.size, rollouts, load.seconds, load.slower_s)
            for _ in range(load.workers)
        ]
        # Nothing first, which makes their texts.
        self.bare.work([dataclasses.asdict(dataclasses.replace(order, seconds=0.0)) for order in orders])
        return self.counted(side, self.bare.work([dataclasses.asdict(order) for order in orders]))

    def counted(self, side: str, samples: list[Sample]) -> Row:
        """The figures of one run, its exchanges counted."""
        figures = dataclasses.asdict(combine(samples))
        self.acknowledged["capture" if side == STREAM else "files"] += figures["acknowledged"]
        return figures

    # -- what they wrote ----------------------------------------------------------------------------------------

    def disk_bytes(self, side: str) -> int:
        """Bytes on disk of a side."""
        return disk_bytes(self.directory if side == STREAM else self.files)

    def forget_files(self) -> None:
        """Check that the file store holds what it acknowledged, and take it away: the disk is shared."""
        found = FileStore(self.files).count()
        if found != self.acknowledged["files"]:
            raise RuntimeError(f"the file store acknowledged {self.acknowledged['files']} exchanges and has {found}")
        shutil.rmtree(self.files)
        self.files.mkdir()
        self.acknowledged["files"] = 0

    def syncs(self) -> int:
        """The owner's syncs until now."""
        return int(self.capture.sync.stats()["log"]["syncs"])

    def waiting(self) -> int:
        """Callers parked in the owner."""
        return int(self.capture.sync.stats()["waiters"])
