"""A load with a model's pace on this machine, measured as `benchmarks.capacity` predicts it."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import gym_capture
from benchmarks.call import owner_cpu_s
from benchmarks.cases import disk_bytes
from benchmarks.owner import owner_process
from benchmarks.processes import processes
from benchmarks.slow_client import Pace
from benchmarks.write_cases import verify

if TYPE_CHECKING:
    from benchmarks.capacity import Load

CLIENTS = 4
"""Client processes that share the rollouts."""


def measured_needs(base: Path, load: Load) -> dict[str, float]:
    """Run the load over one owner and a few client processes; what it took, by the names of `Needs`."""
    directory = base / "capture"
    lanes = max(1, load.rollouts // CLIENTS)
    pace = Pace(
        "capture", "run", lanes, load.turns, load.call_s, turn_bytes=round(load.kilobytes * 1024), clients=CLIENTS
    )
    with owner_process(directory) as pid:
        commands = [["benchmarks.slow_client", str(directory), str(base / "files"), str(n)] for n in range(CLIENTS)]
        with processes(commands) as running:
            disk, syncs = disk_bytes(directory), asyncio.run(_syncs(directory))
            owner = owner_cpu_s(pid)
            samples = running.work([dataclasses.asdict(pace)] * CLIENTS)
            owner = owner_cpu_s(pid) - owner
            disk, syncs = disk_bytes(directory) - disk, asyncio.run(_syncs(directory)) - syncs
    acknowledged = sum(sample.acknowledged for sample in samples)
    verify(directory, acknowledged)
    # The rollouts' first calls are spread over `call_s`, so they end over `call_s` as well.
    seconds = max(sample.seconds for sample in samples) - load.call_s
    return {
        "calls_per_second": acknowledged / seconds,
        "owner_cores": owner / seconds,
        "client_cores": sum(sample.cpu_s for sample in samples) / seconds,
        "network_mb_s": sum(sample.sent_bytes for sample in samples) / seconds / 1e6,
        "disk_mb_s": disk / seconds / 1e6,
        "syncs_per_second": syncs / seconds,
        "disk_gb": disk / 1e9,
    }


async def _syncs(directory: Path) -> int:
    capture = gym_capture.connect(capture_dir=directory)
    try:
        return int((await capture.stats())["log"]["syncs"])
    finally:
        await capture.close()
