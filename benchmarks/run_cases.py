"""What a run does beside writing: merges, clears, waiting. Each on both sides where both can."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gym_capture
from benchmarks.file_store import FileStore
from benchmarks.fleet import FILES, STREAM, Fleet, Load, Row
from benchmarks.measure import percentile
from benchmarks.owner import owner_process
from benchmarks.workload import growing_rollout, single_turns
from benchmarks.write_cases import Rows, median_ms

ONE_SYNC = "file store, one sync for all"


def merges(fleet: Fleet, calls: int, total_bytes: int, repeats: int, load: Load) -> dict[str, Rows]:
    """Merging one growing rollout: without payloads and with, and without payloads while all workers write."""
    store, rollout_id = FileStore(fleet.files), fleet.prefix()
    for exchange in growing_rollout(fleet.seed(), calls, total_bytes):
        fleet.capture.sync.record(rollout_id, exchange)
        store.append(rollout_id, exchange)
    fleet.acknowledged["capture"] += calls
    fleet.acknowledged["files"] += calls

    def captured(payloads: bool) -> object:
        merged = fleet.capture.sync.merge({"_ng_rollout_id": rollout_id}, include_payloads=payloads)
        return merged["ng_model_call_capture"]["calls"]

    def filed(payloads: bool) -> object:
        return store.merge(rollout_id, include_payloads=payloads)["calls"]

    sides: dict[str, Callable[[bool], object]] = {STREAM: captured, FILES: filed}
    found: dict[str, Rows] = {}
    for payloads in (False, True):
        times: dict[str, list[float]] = {side: [] for side in sides}
        if captured(payloads) != filed(payloads):  # also the first of each, which opens what is to be opened
            raise RuntimeError("the two sides merged different calls")
        for _ in range(repeats):
            for side, merge in sides.items():
                times[side].append(_timed(partial(merge, payloads)))
        found["with payloads" if payloads else "without payloads"] = {
            side: median_ms(taken) for side, taken in times.items()
        }
    under: Rows = {}
    for side, merge in sides.items():
        samples = fleet.begin(side, load)
        time.sleep(load.seconds / 4)  # until all of them write
        taken = [_timed(partial(merge, False))]
        while not fleet.ray.wait(samples, num_returns=1, timeout=0)[0]:
            taken.append(_timed(partial(merge, False)))
        fleet.end(side, samples)
        under[side] = median_ms(taken)
    found["under write load"] = under
    fleet.forget_files()
    return found


def clears(fleet: Fleet, rollouts: int, repeats: int) -> Rows:
    """Clearing rollouts of one call each. The file store makes each removal durable, or (second line) all at once."""
    store = FileStore(fleet.files)
    prefix = fleet.prefix()
    ids = [f"{prefix}-{number}" for number in range(rollouts)]
    times: dict[str, list[float]] = {STREAM: [], FILES: [], ONE_SYNC: []}
    for _ in range(repeats):
        exchanges = single_turns(fleet.seed(), 4096)
        fleet.capture.sync.record_many((rollout_id, next(exchanges)) for rollout_id in ids)
        times[STREAM].append(_timed(partial(fleet.capture.sync.clear, ids)))
        for side in (FILES, ONE_SYNC):
            for rollout_id in ids:
                store.append(rollout_id, next(exchanges))
            times[side].append(_timed(partial(store.clear, ids, each_durable=side == FILES)))
    return {side: median_ms(taken) for side, taken in times.items()}


def quiescence(fleet: Fleet, count: int, pause_s: float, load: Load | None) -> Row:
    """From a rollout's last commit, acknowledged as durable to one worker, until another was told. Milliseconds.

    What the owner alone knows, when it was durable, lies before that acknowledgment and after the call's completion:
    `from_complete` counts from there, the whole commit with it.

    Args:
        count: how many rollouts, one after the other; all are waited for from the beginning.
        pause_s: between two commits.
        load: what the other workers write meanwhile; None: nothing.
    """
    prefix = fleet.prefix()
    holder, waiter = fleet.workers[-2:]
    fleet.ray.get(holder.hold.remote(prefix, count))
    told = waiter.await_told.remote(prefix, count)
    _until(lambda: fleet.waiting() >= count)
    samples = fleet.begin(STREAM, load) if load else []
    commits = fleet.ray.get(holder.commit_held.remote(pause_s))
    ends = fleet.ray.get(told)
    # One may be told before the other is acknowledged: both leave the owner after the same sync.
    took = [max(0.0, (end - acknowledged) * 1e3) for end, (_, acknowledged) in zip(ends, commits, strict=True)]
    whole = [(end - completed) * 1e3 for end, (completed, _) in zip(ends, commits, strict=True)]
    if samples:
        fleet.end(STREAM, samples)
    fleet.acknowledged["capture"] += count
    return {
        "rollouts": count,
        "p50_ms": percentile(took, 0.5),
        "p99_ms": percentile(took, 0.99),
        "worst_ms": max(took),
        "from_complete_p50_ms": percentile(whole, 0.5),
        "from_complete_p99_ms": percentile(whole, 0.99),
    }


def waiters_memory(fleet: Fleet, directory: Path, callers: int) -> Row:
    """What an owner (a fresh one of its own) grows by while callers of four workers wait in it. Megabytes, resident."""
    workers = fleet.workers[:4]
    share = callers // len(workers)
    with owner_process(directory) as pid:
        fleet.ray.get([worker.use.remote(str(directory)) for worker in workers])
        capture = gym_capture.connect(capture_dir=directory)
        with capture.sync.rollout("held").claim(dialect="chat") as call:
            before = _resident_mb(pid)
            parked = [worker.park.remote("held", share) for worker in workers]
            _until(lambda: capture.sync.stats()["waiters"] == share * len(workers))
            during = _resident_mb(pid)
            call.complete(request={"held": True}, response={}, status_code=200)
        told = sum(fleet.ray.get(parked))
        if told != share * len(workers):
            raise RuntimeError(f"{share * len(workers)} callers waited, and {told} were told")
        capture.sync.close()
        fleet.ray.get([worker.use.remote(str(fleet.directory)) for worker in workers])
    return {"waiting": told, "before_MB": before, "grown_MB": during - before}


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _until(reached: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not reached():
        if time.monotonic() > deadline:
            raise RuntimeError("the callers did not arrive in time")
        time.sleep(0.05)


def _resident_mb(pid: int) -> float:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024
