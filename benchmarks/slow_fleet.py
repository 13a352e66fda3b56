"""Many slow clients at once, over gym_capture and over the file store in turn."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.call import owner_cpu_s
from benchmarks.measure import Sample, combine
from benchmarks.processes import processes
from benchmarks.slow_client import Pace

SIDES = {"capture": "stream", "files": "file store"}


def slow_clients(
    directory: Path,
    files: Path,
    owner_pid: int,
    clients: int,
    pace: Callable[[str], Pace],
    acknowledged: dict[str, int],
) -> dict[str, dict[str, float]]:
    """Processes that mostly wait for their model: what capture adds to a call, and what the owner needs.

    Args:
        directory, files: the capture directory and the file store's.
        owner_pid: the owner's process.
        clients: how many processes.
        pace: how each works, by side (`capture`, `files`).
        acknowledged: exchanges of each side, added to.
    """
    found = {}
    commands = [["benchmarks.slow_client", str(directory), str(files), str(number)] for number in range(clients)]
    with processes(commands) as running:
        for kind, name in SIDES.items():
            order = dataclasses.replace(pace(kind), clients=clients)
            # Nothing first, which makes their texts.
            running.work([dataclasses.asdict(dataclasses.replace(order, calls=0, call_s=0.0))] * clients)
            cpu, start = owner_cpu_s(owner_pid), time.perf_counter()
            samples = running.work([dataclasses.asdict(order)] * clients)
            share = (owner_cpu_s(owner_pid) - cpu) / (time.perf_counter() - start)
            row = paced_row(samples, order)
            acknowledged[kind] += int(row["acknowledged"])
            row["owner_cores"] = share if kind == "capture" else 0.0
            found[name] = row
    return found


def paced_row(samples: list[Sample], pace: Pace) -> dict[str, float]:
    """One side's figures; `client_cores` is the CPU of all the clients."""
    row = dataclasses.asdict(combine(samples))
    row["offered_per_second"] = pace.clients * pace.lanes / pace.call_s
    row["client_cores"] = sum(sample.cpu_s / sample.seconds for sample in samples)
    return row
