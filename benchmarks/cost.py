"""What calls cost, where many are under way: CPU of client and owner, bytes on the wire and on disk, syncs.

`python -m benchmarks.cost DIRECTORY [CALLS]` prints it as JSON. One client, this process, and an owner of its own,
without Ray; the exchanges are made before it is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import gym_capture
from benchmarks.call import owner_cpu_s
from benchmarks.cases import disk_bytes
from benchmarks.history import pack_us
from benchmarks.owner import owner_process
from benchmarks.sent_bytes import SentBytes
from benchmarks.workload import growing_rollout, single_turns

Row = dict[str, float]

LANES = 64
SMALL_KB, LARGE_KB = 4, 64
TURNS = 40
"""Calls of each rollout of the third kind; each adds `SMALL_KB`."""

SMALL, LARGE, GROWING = f"single turns, {SMALL_KB} KB", f"single turns, {LARGE_KB} KB", f"rollouts of {TURNS} turns"
LARGE_TURNS = f"rollouts of 10 turns, {LARGE_KB} KB on average"


def workloads(calls: int) -> dict[str, list[list[dict[str, Any]]]]:
    """Rollouts by the title of their kind; about `calls` of the small ones, fewer of the others."""
    small, large = single_turns(1, SMALL_KB << 10), single_turns(2, LARGE_KB << 10)
    return {
        SMALL: [[next(small)] for _ in range(calls)],
        LARGE: [[next(large)] for _ in range(max(1, calls // 4))],
        GROWING: [
            growing_rollout(seed, TURNS, (SMALL_KB << 10) * TURNS * (TURNS + 1) // 2)
            for seed in range(max(1, calls // TURNS))
        ],
        LARGE_TURNS: [
            growing_rollout(1000 + seed, 10, 10 * LARGE_KB << 10) for seed in range(max(1, calls // 4 // 10))
        ],
    }


async def measure(directory: Path, pid: int, calls: int) -> dict[str, Row]:
    """The cost of a call of each kind; milliseconds and bytes.

    Args:
        directory, pid: the owner's.
        calls: how many of the small kind.
    """
    capture = gym_capture.connect(capture_dir=directory)
    sent = SentBytes()
    rows = {}
    for kind, (title, rollouts) in enumerate(workloads(calls).items()):
        await _capture(capture, f"warm{kind}", rollouts[:8])
        before = await capture.stats()
        wire, disk, owner = sent.count, disk_bytes(directory), owner_cpu_s(pid)
        cpu, start = time.process_time(), time.perf_counter()
        await _capture(capture, f"c{kind}", rollouts)
        count = sum(map(len, rollouts))
        rows[title] = {
            "calls": count,
            "client_cpu_ms": (time.process_time() - cpu) * 1e3 / count,
            "owner_cpu_ms": (owner_cpu_s(pid) - owner) * 1e3 / count,
            "calls_per_second": count / (time.perf_counter() - start),
            "wire_bytes": (sent.count - wire) / count,
            "disk_bytes": (disk_bytes(directory) - disk) / count,
            "syncs": ((await capture.stats())["log"]["syncs"] - before["log"]["syncs"]) / count,
            "pack_ms": pack_us(rollouts[: max(1, len(rollouts) // 4)], history=True) / 1e3,
        }
    await capture.close()
    return rows


async def _capture(capture: gym_capture.CaptureClient, prefix: str, rollouts: list[list[dict[str, Any]]]) -> None:
    async def lane(number: int) -> None:
        for index in range(number, len(rollouts), LANES):
            rollout = capture.rollout(f"{prefix}-{index}")
            for exchange in rollouts[index]:
                async with rollout.claim(dialect="chat", model_call_id=exchange["model_call_id"]) as call:
                    call.complete(**exchange)
                if call.outcome != "durable":
                    raise RuntimeError(f"an exchange was {call.outcome}")

    await asyncio.gather(*map(lane, range(LANES)))


def main() -> None:
    """Measure and print."""
    directory = Path(sys.argv[1])
    with owner_process(directory) as pid:
        rows = asyncio.run(measure(directory, pid, int(sys.argv[2]) if len(sys.argv) > 2 else 3000))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
