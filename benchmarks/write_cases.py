"""The write loads of the targets, each contestant in turn, medians over the repeats."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gym_capture
from benchmarks.cases import medians
from benchmarks.fleet import BARE, FILES, STREAM, Fleet, Load, Row
from benchmarks.fleet_worker import Lanes
from benchmarks.owner import owner_process
from benchmarks.workload import growing_rollout

Rows = dict[str, Row]


def loaded(fleet: Fleet, load: Load, repeats: int) -> Rows:
    """Claims and durable commits under load: gym_capture, the file store from the same workers, and from processes."""
    runs: dict[str, list[Row]] = {side: [] for side in (STREAM, FILES, BARE)}
    for _ in range(repeats):
        for side, rows in runs.items():
            rows.append(fleet.run(side, load))
        fleet.forget_files()
    return {side: medians(rows) for side, rows in runs.items()}


@contextmanager
def slow_disk(fleet: Fleet, directory: Path, slower_s: float) -> Iterator[None]:
    """The workers capture into `directory`, whose owner's syncs take `slower_s` longer, while the block lasts.

    That owner is a process without Ray, since its syncs are slowed in process.
    """
    kept = fleet.acknowledged["capture"]
    fleet.acknowledged["capture"] = 0
    with owner_process(directory, slower_s):
        fleet.ray.get([worker.use.remote(str(directory)) for worker in fleet.workers])
        yield
        fleet.ray.get([worker.use.remote(str(fleet.directory)) for worker in fleet.workers])
    verify(directory, fleet.acknowledged["capture"])
    fleet.acknowledged["capture"] = kept


def turns(fleet: Fleet, lanes: list[Lanes], repeats: int) -> Rows:
    """Whole rollouts, one call of each lane under way: exchanges a second until the last is done, and bytes on disk.

    Args:
        lanes: what each worker does.
    """
    workers = fleet.workers[: len(lanes)]
    fleet.ray.get([worker.prepare.remote(own) for worker, own in zip(workers, lanes, strict=True)])
    runs: dict[str, list[Row]] = {STREAM: [], FILES: []}
    for _ in range(repeats):
        for side, rows in runs.items():
            prefix, before = fleet.prefix(), fleet.disk_bytes(side)
            if side == STREAM:
                found = [worker.turns.remote(f"{prefix}-{number}") for number, worker in enumerate(workers)]
            else:
                found = [
                    worker.append_turns.remote(str(fleet.files), f"{prefix}-{number}")
                    for number, worker in enumerate(workers)
                ]
            samples = fleet.ray.get(found)
            row = fleet.counted(side, samples)
            row["per_second"] = row["acknowledged"] / max(sample.seconds for sample in samples)
            row["disk_MB"] = (fleet.disk_bytes(side) - before) / 1e6
            rows.append(row)
        fleet.forget_files()
    return {side: medians(rows) for side, rows in runs.items()}


def growing_lanes(fleet: Fleet, workers: int, lanes: int, calls: int, total_bytes: int) -> list[Lanes]:
    """A growing rollout for each lane of each worker."""
    return [
        [[(str(lane), growing_rollout(fleet.seed(), calls, total_bytes))] for lane in range(lanes)]
        for _ in range(workers)
    ]


def real_lanes(path: Path, workers: int, lanes: int) -> list[Lanes]:
    """Every worker works through all the rollouts of a file, shared among its lanes.

    Args:
        path: JSONL with the `exchanges` of a rollout a line.
    """
    rollouts = [
        (str(number), json.loads(line)["exchanges"]) for number, line in enumerate(path.read_text("utf-8").splitlines())
    ]
    return [[rollouts[lane::lanes] for lane in range(lanes)]] * workers


def unloaded(fleet: Fleet, calls: int) -> Rows:
    """One call at a time in one worker."""
    load = Load(4096, 1, 1, calls * 0.003)
    return {side: fleet.run(side, load) for side in (STREAM, FILES)}


def verify(directory: Path, acknowledged: int) -> Rows:
    """Read everything from disk, every checksum with it.

    Raises:
        RuntimeError: a call that was acknowledged is not there.
    """
    store = gym_capture.CaptureStore(directory)
    read = sum(len(store.read(rollout_id)) for rollout_id in store.rollout_ids())
    if read != acknowledged:
        raise RuntimeError(f"{acknowledged} exchanges were acknowledged, and {read} are on disk")
    return {STREAM: {"acknowledged": acknowledged, "read": read}}


def median_ms(times: list[float]) -> dict[str, Any]:
    """Median and worst of times in seconds, in milliseconds."""
    return {"median_ms": statistics.median(times) * 1e3, "worst_ms": max(times) * 1e3, "times": len(times)}
