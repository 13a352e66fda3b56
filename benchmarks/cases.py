"""What is measured, case by case, each on gym_capture and on the file store in the same run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import gym_capture
from benchmarks.file_store import FileStore
from benchmarks.measure import Figures, Sample, combine
from benchmarks.slow_client import Pace
from benchmarks.slow_fleet import slow_clients
from benchmarks.workers import CaptureWorker, FileWorker
from benchmarks.workload import growing_rollout


class Bench:
    """One run of the benchmarks: an owner, a file store, and Ray workers for each.

    Args:
        ray: the module, initialised.
        capture: the owner's client.
        directory, files: the capture directory and the file store's.
        workers, in_flight: how many workers, and calls in flight in each.
    """

    def __init__(
        self,
        ray: Any,
        capture: gym_capture.CaptureClient,
        directory: Path,
        files: Path,
        *,
        workers: int,
        in_flight: int,
    ) -> None:
        self.ray = ray
        self.capture = capture
        self.directory = directory
        self.store = FileStore(files)
        self.in_flight = in_flight
        self.acknowledged = {"capture": 0, "files": 0}
        self._seeds = itertools.count(1)
        remote_capture = ray.remote(num_cpus=0)(CaptureWorker)
        remote_files = ray.remote(num_cpus=0)(FileWorker)
        self.stream = [remote_capture.remote(str(directory), "stream") for _ in range(workers)]
        self.over_ray = [remote_capture.remote(str(directory), "ray") for _ in range(workers)]
        self.files = [remote_files.remote(str(files)) for _ in range(workers)]
        assert set(ray.get([worker.transport.remote() for worker in self.stream])) == {"stream"}
        assert set(ray.get([worker.transport.remote() for worker in self.over_ray])) == {"ray"}

    def close(self) -> None:
        """Let the workers go."""
        self.ray.get([worker.close.remote() for worker in (*self.stream, *self.over_ray)])
        for worker in (*self.stream, *self.over_ray, *self.files):
            self.ray.kill(worker)

    def _load(
        self, workers: list[Any], method: str, size: int, seconds: float, in_flight: int | None = None
    ) -> Figures:
        kind = "files" if workers[0] in self.files else "capture"
        self.ray.get([worker.make_texts.remote(size) for worker in workers])
        samples: list[Sample] = self.ray.get(
            [
                getattr(worker, method).remote("b", next(self._seeds), size, in_flight or self.in_flight, seconds)
                for worker in workers
            ]
        )
        figures = combine(samples)
        self.acknowledged[kind] += figures.acknowledged
        return figures

    # -- the cases ----------------------------------------------------------------------------------------------

    def throughput(self, size: int, seconds: float, repeats: int) -> dict[str, dict[str, float]]:
        """Claims and durable commits under load, the contestants in turn, medians over the repeats."""
        contestants = {
            "stream, tasks": (self.stream, "tasks"),
            "stream, threads": (self.stream, "threads"),
            "Ray calls, tasks": (self.over_ray, "tasks"),
            "file store, threads": (self.files, "threads"),
        }
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
        for _ in range(repeats):
            for name, (workers, method) in contestants.items():
                before = self._syncs()
                figures = self._load(workers, method, size, seconds)
                row = dataclasses.asdict(figures)
                syncs = figures.acknowledged if workers is self.files else self._syncs() - before
                row["syncs_per_ack"] = syncs / max(1, figures.acknowledged)
                runs[name].append(row)
        return {name: medians(rows) for name, rows in runs.items()}

    def unloaded(self, calls: int) -> dict[str, dict[str, float]]:
        """One call at a time in one worker."""
        seconds = calls * 0.004
        return {
            "stream": dataclasses.asdict(self._load(self.stream[:1], "tasks", 4096, seconds, 1)),
            "Ray calls": dataclasses.asdict(self._load(self.over_ray[:1], "tasks", 4096, seconds, 1)),
            "file store": dataclasses.asdict(self._load(self.files[:1], "threads", 4096, seconds, 1)),
        }

    def slow_clients(self, clients: int, calls: int) -> dict[str, dict[str, float]]:
        """Processes that mostly wait for their model: what capture adds to a call, and what the owner needs."""

        def pace(kind: str) -> Pace:
            return Pace(kind, f"slow-{next(self._seeds)}", lanes=4, calls=calls, call_s=0.5)

        return slow_clients(
            self.directory, self.store.directory, owner_pid(self.directory), clients, pace, self.acknowledged
        )

    def waiters(self, callers: int, seconds: float) -> dict[str, dict[str, float]]:
        """Commit latency with and without `callers` parked in quiesce, from all workers, over each transport."""
        found = {}
        for name, workers in (("stream", self.stream), ("Ray calls", self.over_ray)):
            before = self._load(self.stream[:1], "tasks", 4096, seconds, 16)
            held = f"held-{next(self._seeds)}"
            with self.capture.sync.rollout(held).claim(dialect="chat") as call:
                share = callers // len(workers)
                parked = [worker.park.remote(held, share) for worker in workers]
                while self._waiting() < share * len(workers):
                    time.sleep(0.05)
                during = self._load(self.stream[:1], "tasks", 4096, seconds, 16)
                call.complete(request={"held": True}, response={}, status_code=200)
            self.acknowledged["capture"] += 1
            told = sum(self.ray.get(parked))
            found[name] = {
                "waiting": share * len(workers),
                "told": told,
                "commit_p50": during.commit_p50,
                "commit_p99": during.commit_p99,
                "commit_p50_without": before.commit_p50,
                "commit_p99_without": before.commit_p99,
            }
        return found

    def merge(self, turns: int, total_bytes: int, repeats: int) -> dict[str, dict[str, float]]:
        """Merging one growing rollout, with and without payloads."""
        rollout_id = f"growing-{next(self._seeds)}"
        for exchange in growing_rollout(next(self._seeds), turns, total_bytes):
            self.capture.sync.record(rollout_id, exchange)
            self.store.append(rollout_id, exchange)
        self.acknowledged["capture"] += turns
        self.acknowledged["files"] += turns
        times: dict[str, list[float]] = {}
        for _, payloads in itertools.product(range(repeats), (False, True)):
            label = "with payloads" if payloads else "without payloads"
            start = time.perf_counter()
            merged = self.capture.sync.merge({"_ng_rollout_id": rollout_id}, include_payloads=payloads)
            times.setdefault(f"stream, {label}", []).append((time.perf_counter() - start) * 1e3)
            assert len(merged["ng_model_call_capture"]["calls"]) == turns
            start = time.perf_counter()
            value = self.store.merge(rollout_id, include_payloads=payloads)
            times.setdefault(f"file store, {label}", []).append((time.perf_counter() - start) * 1e3)
            assert value["calls"] == merged["ng_model_call_capture"]["calls"]
        return {
            name: {"median_ms": statistics.median(row), "worst_ms": max(row)} for name, row in sorted(times.items())
        }

    def read_back(self) -> dict[str, dict[str, float]]:
        """Everything that was acknowledged is read again from disk, every checksum with it."""
        from gym_capture.storage.store import CaptureStore

        start = time.perf_counter()
        store = CaptureStore(self.directory)
        stored = sum(len(store.read(rollout_id)) for rollout_id in store.rollout_ids())
        seconds = time.perf_counter() - start
        return {
            "gym_capture": {
                "acknowledged": self.acknowledged["capture"],
                "read": stored,
                "disk_MB": disk_bytes(self.directory) / 1e6,
                "read_s": seconds,
            },
            "file store": {
                "acknowledged": self.acknowledged["files"],
                "read": self.store.count(),
                "disk_MB": disk_bytes(self.store.directory) / 1e6,
                "read_s": 0.0,
            },
        }

    # -- the owner's counters -----------------------------------------------------------------------------------

    def _stats(self) -> dict[str, Any]:
        return self.capture.sync.stats()

    def _syncs(self) -> int:
        return int(self._stats()["log"]["syncs"])

    def _waiting(self) -> int:
        return int(self._stats()["waiters"])


def owner_pid(directory: Path) -> int:
    """The process that owns a capture directory."""
    return int(json.loads((directory / "OWNER").read_bytes())["identity"]["pid"])


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """Each figure's median over the repeats."""
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def disk_bytes(directory: Path) -> int:
    """Bytes of a directory's files."""
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
