"""One of many slow clients, a process of its own: `python -m benchmarks.slow_client KIND DIRECTORY NUMBER CALLS`.

It keeps four calls of half a second under way, as a rollout process that waits for its model does. Prints `ready`,
waits for a line on standard input, works, and prints its sample as JSON.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
from pathlib import Path

import gym_capture
from benchmarks.file_store import FileStore
from benchmarks.measure import Sample
from benchmarks.workload import single_turns

CALL_S = 0.5
IN_FLIGHT = 4


async def run_capture(directory: str, number: int, calls: int) -> Sample:
    """The slow calls over gym_capture."""
    capture = gym_capture.connect(capture_dir=directory)
    await capture.stats(timeout_s=60.0)
    sample = Sample()
    exchanges = single_turns(number, 4096)
    await _ready()
    start = time.perf_counter()

    async def one(lane: int) -> None:
        rollout = capture.rollout(f"slow-{number}-{lane}")
        for _ in range(calls):
            exchange = next(exchanges)
            begin = time.perf_counter()
            async with rollout.claim(dialect="chat", model_call_id=exchange["model_call_id"]) as call:
                sample.claim_ms.append((time.perf_counter() - begin) * 1e3)
                await asyncio.sleep(CALL_S)
                completed = time.perf_counter()
                call.complete(**exchange)
            sample.commit_ms.append((time.perf_counter() - completed) * 1e3)
            sample.acknowledged += call.outcome == "durable"

    await asyncio.gather(*(one(lane) for lane in range(IN_FLIGHT)))
    sample.seconds = time.perf_counter() - start
    await capture.close()
    return sample


async def run_files(directory: str, number: int, calls: int) -> Sample:
    """The slow calls over the file store."""
    store = FileStore(Path(directory))
    sample = Sample()
    exchanges = single_turns(number, 4096)
    await _ready()
    start = time.perf_counter()

    async def one(lane: int) -> None:
        for _ in range(calls):
            exchange = next(exchanges)
            await asyncio.sleep(CALL_S)
            completed = time.perf_counter()
            await asyncio.to_thread(store.append, f"slow-{number}-{lane}", exchange)
            sample.commit_ms.append((time.perf_counter() - completed) * 1e3)
            sample.acknowledged += 1

    await asyncio.gather(*(one(lane) for lane in range(IN_FLIGHT)))
    sample.seconds = time.perf_counter() - start
    return sample


async def _ready() -> None:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    work = run_capture if sys.argv[1] == "capture" else run_files
    print(json.dumps(dataclasses.asdict(asyncio.run(work(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))))
