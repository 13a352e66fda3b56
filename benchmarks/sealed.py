"""Sealing a dataset of multi-turn rollouts and reading it: bytes, speed, and how long one rollout takes to be found."""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path

from benchmarks.workload import growing_rollout
from gym_capture.directory.sealing import seal_at_rest
from gym_capture.model.captured import CapturedCall, CapturedRollout, captured_value
from gym_capture.model.json_text import to_json
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.sealed.reader import SealedReader
from gym_capture.storage.sealed.writer import SealedWriter

DISTINCT = 64
"""Rollouts that are made; they come again in turn, far enough apart that no compression sees it."""


def seal_and_read(directory: Path, calls: int, turns: int, request_bytes: int) -> dict[str, dict[str, float]]:
    """Seal `calls` exchanges in rollouts of so many turns, then read single rollouts at random.

    Times are of the processor, so that others on the machine count as little as they can.

    Args:
        directory: an empty one.
        request_bytes: bytes of one rollout's requests together.
    """
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
