"""The run that measures every target: Ray, an owner, the contestants, case after case, and the table in the end."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gym_capture
from benchmarks import run_cases, write_cases
from benchmarks.cases import owner_pid
from benchmarks.cost import LARGE, LARGE_TURNS
from benchmarks.fleet import BARE, FILES, STREAM, Fleet, Load
from benchmarks.processes import processes
from benchmarks.slow_client import Pace
from benchmarks.slow_fleet import SIDES, slow_clients
from benchmarks.targets import ELSEWHERE, Target, Value

Show = Callable[[str, dict[str, dict[str, float]]], None]

DISTINCT = "distinct rollouts, 4 KB"
TURNS = "rollouts of 100 turns that repeat their history"
REAL = "real rollouts"
LARGE_CALLS = "distinct rollouts, 512 KB"
ONE = "one rollout, 4 KB"
SLOW_DISTINCT = "syncs 10 ms slower: distinct rollouts, 4 KB"
SLOW_ONE = "syncs 10 ms slower: one rollout, 4 KB"
SLOW_CLIENTS = "slow clients, 4 KB"
MERGE = "merge of a growing rollout, 100 calls, 21 MB: "
CLEAR = "clear of 1,000 rollouts (ms)"
QUIESCENCE = "quiescence: last commit durable until a waiter was told"
UNLOADED = "one call at a time, 4 KB (ms)"
WAITERS = "10,000 callers in quiesce: memory of the owner"
COST = "cost of a call (ms, bytes)"

SLOWER_S = 0.010


@dataclass(frozen=True)
class Scale:
    """How large a run is.

    Args:
        workers: Ray workers that write; twice as many write into one rollout.
        in_flight: calls in flight in each.
        seconds, repeats: of each write load.
        lanes: rollouts under way in each worker where whole rollouts are written.
        clients, calls: slow client processes, and calls under way in each.
        callers: waiting ones.
        real_rollouts: JSONL with the `exchanges` of a rollout a line.
    """

    workers: int = 16
    in_flight: int = 64
    seconds: float = 1.0
    repeats: int = 3
    lanes: int = 2
    clients: int = 64
    calls: int = 16
    callers: int = 10_000
    real_rollouts: Path | None = None

    def __str__(self) -> str:
        return (
            f"{self.workers} workers × {self.in_flight} in flight, {self.repeats} × {self.seconds:g} s, {self.clients} "
            f"slow clients × {self.calls} calls, {self.callers:,} waiters"
        )


def _ratio(work: str, bound: float, case: str, figure: str = "per_second", against: str = FILES) -> Target:
    """How many times more gym_capture does, of what is done per second."""
    return Target(work, bound, "×", Value(case, STREAM, figure), Value(case, against, figure))


def _times_less(work: str, bound: float, case: str, figure: str) -> Target:
    """How many times less it takes."""
    return Target(work, bound, "×", Value(case, FILES, figure), Value(case, STREAM, figure))


def _at_most(work: str, bound: float, unit: str, case: str, row: str, figure: str) -> Target:
    return Target(work, bound, unit, Value(case, row, figure), at_most=True)


def targets() -> list[Target]:
    """All of them. Ratios are to the file store from the same Ray workers, unless they say otherwise."""
    quiet, loaded = "unloaded", "under write load"
    merge, slow = "merge of 100 growing calls", "64 slow clients × 16 calls of 1 s"
    return [
        _ratio("claim + durable commit, 16 workers × 64, 4 KB", 3, DISTINCT),
        _ratio("the same, to bare processes", 1.3, DISTINCT, against=BARE),
        _ratio("100 turns with history, exchanges a second", 5, TURNS),
        _times_less("100 turns with history, bytes on disk", 30, TURNS, "disk_MB"),
        _ratio("16 workers × 64, 512 KB", 1, LARGE_CALLS),
        _ratio("32 workers on one rollout, 4 KB", 8, ONE),
        _ratio("syncs 10 ms slower, distinct rollouts", 4, SLOW_DISTINCT),
        _ratio("syncs 10 ms slower, one rollout", 50, SLOW_ONE),
        _at_most(f"{slow}: claim and commit added, p50", 3, "ms", SLOW_CLIENTS, SIDES["capture"], "added_p50"),
        _at_most(f"{slow}: the owner's share of a core", 0.25, "cores", SLOW_CLIENTS, SIDES["capture"], "owner_cores"),
        _times_less(f"{merge}, no payloads, median", 20, f"{MERGE}without payloads", "median_ms"),
        _times_less(f"{merge}, no payloads, median {loaded}", 20, f"{MERGE}{loaded}", "median_ms"),
        _times_less(f"{merge}, no payloads, worst {loaded}", 10, f"{MERGE}{loaded}", "worst_ms"),
        _times_less(f"{merge}, with payloads, median", 1, f"{MERGE}with payloads", "median_ms"),
        _times_less("clear of 1,000 rollouts with captures", 20, CLEAR, "median_ms"),
        _at_most(f"quiescence, {quiet}, p50", 2, "ms", QUIESCENCE, quiet, "p50_ms"),
        _at_most(f"quiescence, {loaded}, p99", 50, "ms", QUIESCENCE, loaded, "p99_ms"),
        _at_most("claim, unloaded, p50", 0.8, "ms", UNLOADED, STREAM, "claim_p50"),
        _at_most("durable commit, unloaded, p50", 1, "ms", UNLOADED, STREAM, "commit_p50"),
        _at_most("10,000 waiters, memory of the owner", 50, "MB", WAITERS, STREAM, "grown_MB"),
        Target("owner memory per call at 1,000,000 calls", 300, "bytes", at_most=True, command=ELSEWHERE),
        Target("open 1,000,000 calls to first accepted write", 5, "s", at_most=True, command=ELSEWHERE),
        _at_most("client CPU per 64 KB exchange, single turns", 1, "ms", COST, LARGE, "client_cpu_ms"),
        _at_most("client CPU per 64 KB exchange, 10 turns", 1, "ms", COST, LARGE_TURNS, "client_cpu_ms"),
    ]


def measure(base: Path, scale: Scale, show: Show) -> None:
    """Every case, each shown when it is done.

    Raises:
        RuntimeError: something that was acknowledged is not on disk.
    """
    show(COST, measured_cost(base / "cost", 3000 if scale.seconds >= 1 else 300))
    directory = base / "capture"
    with _running(base, scale) as fleet:
        _measure(fleet, base, scale, show)
        acknowledged = fleet.acknowledged["capture"]
    show("read back from disk", write_cases.verify(directory, acknowledged))


def _measure(fleet: Fleet, base: Path, scale: Scale, show: Show) -> None:
    seconds, repeats = scale.seconds, scale.repeats
    distinct = Load(4096, scale.workers, scale.in_flight, seconds)
    one = Load(4096, 2 * scale.workers, scale.in_flight, seconds, shared=True)

    show(UNLOADED, write_cases.unloaded(fleet, 300))
    show(QUIESCENCE, {"unloaded": run_cases.quiescence(fleet, 100, 0.01, None)})
    show(WAITERS, {STREAM: run_cases.waiters_memory(fleet, base / "waiters", scale.callers)})
    show(DISTINCT, write_cases.loaded(fleet, distinct, repeats))
    show(ONE, write_cases.loaded(fleet, one, repeats))
    show(LARGE_CALLS, write_cases.loaded(fleet, Load(512 << 10, scale.workers, scale.in_flight, seconds), 1))
    lanes = write_cases.growing_lanes(fleet, scale.workers, scale.lanes, 100, 19_500_000)
    show(TURNS, write_cases.turns(fleet, lanes, 2 if repeats > 1 else 1))
    if scale.real_rollouts is not None:
        real = write_cases.real_lanes(scale.real_rollouts, scale.workers, scale.lanes)
        show(REAL, write_cases.turns(fleet, real, repeats))
    found = run_cases.merges(fleet, 100, 21_000_000, 5, Load(4096, scale.workers, scale.in_flight, 4 * seconds))
    for name, rows in found.items():
        show(MERGE + name, rows)
    show(CLEAR, run_cases.clears(fleet, 1000, repeats))
    load = Load(4096, scale.workers, scale.in_flight, 3 * seconds)
    show(QUIESCENCE, {"under write load": run_cases.quiescence(fleet, 200, 0.01 * min(1.0, seconds), load)})
    with write_cases.slow_disk(fleet, base / "slow", SLOWER_S):
        for title, load in ((SLOW_DISTINCT, distinct), (SLOW_ONE, one)):
            slow = Load(load.size, load.workers, load.in_flight, load.seconds, load.shared, SLOWER_S)
            show(title, write_cases.loaded(fleet, slow, repeats))

    def pace(kind: str) -> Pace:
        return Pace(kind, fleet.prefix(), scale.calls, 3 if seconds >= 1 else 1, 1.0)

    pid = owner_pid(fleet.directory)
    show(SLOW_CLIENTS, slow_clients(fleet.directory, fleet.files, pid, scale.clients, pace, fleet.acknowledged))


@contextmanager
def _running(base: Path, scale: Scale) -> Iterator[Fleet]:
    import ray

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, address="local", logging_level=logging.ERROR)
    settings: dict[str, Any] = {"namespace": "benchmarks", "endpoint": {"host": "127.0.0.1"}}
    capture = gym_capture.start({"model_call_capture_dir": str(base / "capture"), "capture": settings})
    try:
        with processes([["benchmarks.bare_process"]] * (2 * scale.workers)) as bare:
            (base / "files").mkdir()
            fleet = Fleet(ray, capture, base / "capture", base / "files", bare, 2 * scale.workers + 2)
            yield fleet
            fleet.close()
    finally:
        capture.sync.stop()
        # First: a client that still looks for its owner while Ray goes away makes Ray start anew.
        capture.sync.close()
        ray.shutdown()


def measured_cost(directory: Path, calls: int) -> dict[str, dict[str, float]]:
    """What `benchmarks.cost` measures, in a process of its own: its CPU is to be the client's alone."""
    command = [sys.executable, "-m", "benchmarks.cost", str(directory), str(calls)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found
