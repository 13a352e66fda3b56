"""Sealing a dataset of multi-turn rollouts and reading it: bytes, speed, and how long one rollout takes to be found."""

from __future__ import annotations

import asyncio
import random
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.history import given
from benchmarks.workload import growing_rollout
from gym_capture.client.client import CaptureClient
from gym_capture.client.host import CoreHost
from gym_capture.client.options import ClientOptions
from gym_capture.directory.sealing import seal_at_rest
from gym_capture.model.captured import CapturedCall, CapturedRollout, captured_value
from gym_capture.model.json_text import to_json
from gym_capture.storage.names import SEALED_AHEAD
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.sealed.reader import SealedReader
from gym_capture.storage.sealed.writer import SealedWriter
from gym_capture.storage.sealing_ahead import AheadSealer
from gym_capture.testing.threaded_owner import ThreadedOwner

DISTINCT = 64
"""Rollouts that are made; they come again in turn, far enough apart that no compression sees it."""


def seal_and_read(directory: Path, calls: int, turns: int, request_bytes: int) -> dict[str, dict[str, float]]:
    """Seal `calls` exchanges in rollouts of so many turns, then read single rollouts at random.

    Times are of the processor, so that others on the machine count as little as they can.

    Args:
        directory: is made.
        request_bytes: bytes of one rollout's requests together.
    """
    directory.mkdir()
    files = PosixFiles(directory)
    writer = SealedWriter(files)
    json_bytes, sealing_s = 0, 0.0
    rollouts = calls // turns
    distinct = [_captured(seed, turns, request_bytes) for seed in range(min(DISTINCT, rollouts))]
    for number in range(rollouts):
        captured, size = distinct[number % DISTINCT]
        json_bytes += size
        started = time.process_time()
        writer.add(CapturedRollout(f"{number:06d}-0", 0, captured, turns))
        sealing_s += time.process_time() - started
    started = time.process_time()
    manifest = writer.commit()
    sealing_s += time.process_time() - started
    sealed_bytes = sum(file.size for part in manifest.parts for file in part.files)
    rng = random.Random(0)
    wanted = [f"{rng.randrange(rollouts):06d}-0" for _ in range(20)]
    _read(SealedReader(files), wanted[0])  # what the first read of a process loads is no part of it
    cold = [_read(SealedReader(files), each) for each in wanted]
    reader = SealedReader(files)
    warm = [_read(reader, each) for each in wanted]
    return {
        "sealed": {
            "calls": rollouts * turns,
            "json_MB": json_bytes / 1e6,
            "sealed_MB": sealed_bytes / 1e6,
            "times_smaller": json_bytes / sealed_bytes,
            "parts": len(manifest.parts),
            "sealing_MB_per_s": json_bytes / 1e6 / sealing_s,
            "one_rollout_median_ms": statistics.median(warm),
            "one_rollout_worst_ms": max(warm),
            "with_opening_median_ms": statistics.median(cold),
            "with_opening_worst_ms": max(cold),
        }
    }


def sealing_cost(directory: Path) -> dict[str, dict[str, float]]:
    """Seal the run of a directory at rest: its log is read, a dataset written and read back, the log removed."""
    started, used = time.perf_counter(), time.process_time()
    [report] = seal_at_rest(directory).values()
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - used
    return {
        "sealed": {
            "calls": report.calls,
            "exchanges_MB": report.raw_bytes / 1e6,
            "log_MB": report.log_bytes / 1e6,
            "dataset_MB": report.dataset_bytes / 1e6,
            "seconds": seconds,
            "CPU_seconds": cpu_s,
            "MB_per_CPU_s": report.raw_bytes / 1e6 / cpu_s,
        }
    }


def sealing_ahead_cost(base: Path, turns: int, request_bytes: int, rollouts: int = 40) -> dict[str, dict[str, float]]:
    """Capture and merge rollouts with a real client and owner, and seal the run at once, and sealed ahead before.

    Args:
        base: an empty folder.
        request_bytes: bytes of one rollout's requests together.
    """
    directory = base / "capture"
    asyncio.run(_capture(directory, [growing_rollout(seed, turns, request_bytes) for seed in range(rollouts)]))
    shutil.copytree(directory, base / "ahead")
    at_once = sealing_cost(directory)["sealed"]
    started, used = time.perf_counter(), time.process_time()
    if not AheadSealer(PosixFiles(base / "ahead"), least_bytes=1).step():
        raise RuntimeError("nothing was sealed ahead")
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - used
    ahead_bytes = sum(file.stat().st_size for file in (base / "ahead" / SEALED_AHEAD).iterdir())
    figures = {"calls": at_once["calls"], "exchanges_MB": at_once["exchanges_MB"]}
    ahead = {**figures, "dataset_MB": ahead_bytes / 1e6, "seconds": seconds, "CPU_seconds": cpu_s}
    return {"at once": at_once, "ahead": ahead, "the rest, at the end": sealing_cost(base / "ahead")["sealed"]}


async def _capture(directory: Path, rollouts: Sequence[Sequence[dict[str, Any]]]) -> None:
    owner = ThreadedOwner(directory)
    owner.start()
    client = CaptureClient(CoreHost(owner.stream_transport(), ClientOptions()))
    for number, exchanges in enumerate(rollouts):
        record = {"_ng_task_index": number, "_ng_rollout_index": 0}
        rollout = client.rollout(f"{number}-0")
        for exchange in exchanges:
            async with rollout.claim(dialect=exchange["dialect"], model_call_id=exchange["model_call_id"]) as call:
                call.complete(**given(exchange))
        await client.merge(record)
    await client.close()
    owner.close()


def _captured(seed: int, turns: int, request_bytes: int) -> tuple[list[CapturedCall], int]:
    """A rollout, and its bytes as JSONL."""
    exchanges = growing_rollout(seed, turns, request_bytes)
    calls = [captured_value(index, each) for index, each in enumerate(exchanges)]
    return calls, sum(len(to_json(each).text) + 1 for each in exchanges)


def _read(reader: SealedReader, rollout_id: str) -> float:
    started = time.process_time()
    found = reader.rollout(rollout_id)
    assert found is not None
    assert found.indexes == len(list(found.calls))
    return (time.process_time() - started) * 1e3
