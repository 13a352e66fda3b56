"""One of many slow clients, a process of its own: `python -m benchmarks.slow_client CAPTURE FILES NUMBER`.

It keeps some calls under way that each wait for their model, as a rollout process does. Prints `ready` once it has
reached the owner; then, for each JSON line on standard input (`Pace`'s fields), works and prints its sample as JSON.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gym_capture
from benchmarks.file_store import FileStore
from benchmarks.measure import Sample
from benchmarks.sent_bytes import SentBytes
from benchmarks.workload import growing_rollout, single_turns


@dataclass(frozen=True)
class Pace:
    """How a client works.

    Args:
        kind: `capture` or `files`.
        prefix: of the rollouts' ids.
        lanes: calls under way, a rollout each.
        calls: of each lane.
        call_s: how long a model takes.
        turn_bytes: what each call of a rollout adds to a history that it repeats; 0: single turns of 4 KB.
        clients: how many processes work: all their lanes' first calls are spread evenly over `call_s`.
    """

    kind: str
    prefix: str
    lanes: int
    calls: int
    call_s: float
    turn_bytes: int = 0
    clients: int = 1


class SlowClient:
    """Both sides of one process."""

    def __init__(self, capture: gym_capture.CaptureClient, files: FileStore, number: int) -> None:
        self._capture = capture
        self._files = files
        self._number = number
        self._sent = SentBytes()

    async def run(self, pace: Pace) -> Sample:
        """Work once."""
        sample = Sample()
        lanes = [self._exchanges(pace, lane) for lane in range(pace.lanes)]
        sent, cpu, start = self._sent.count, time.process_time(), time.perf_counter()
        one = self._captured if pace.kind == "capture" else self._appended

        async def lane(index: int, exchanges: Iterable[dict[str, Any]]) -> None:
            place = (index * pace.clients + self._number) / (pace.lanes * pace.clients)
            await asyncio.sleep(place * pace.call_s)
            for exchange in exchanges:
                await one(f"{pace.prefix}-{self._number}-{index}", exchange, pace.call_s, sample)

        await asyncio.gather(*(lane(index, exchanges) for index, exchanges in enumerate(lanes)))
        sample.seconds = time.perf_counter() - start
        sample.cpu_s = time.process_time() - cpu
        sample.sent_bytes = self._sent.count - sent
        return sample

    def _exchanges(self, pace: Pace, lane: int) -> list[dict[str, Any]]:
        seed = self._number * 1000 + lane
        if pace.turn_bytes:
            return growing_rollout(seed, pace.calls, pace.turn_bytes * pace.calls * (pace.calls + 1) // 2)
        turns = single_turns(seed, 4096)
        return [next(turns) for _ in range(pace.calls)]

    async def _captured(self, rollout_id: str, exchange: dict[str, Any], call_s: float, sample: Sample) -> None:
        begin = time.perf_counter()
        claim = self._capture.rollout(rollout_id).claim(dialect="chat", model_call_id=exchange["model_call_id"])
        async with claim as call:
            claimed = time.perf_counter()
            await asyncio.sleep(call_s)
            completed = time.perf_counter()
            call.complete(**exchange)
        sample.claim_ms.append((claimed - begin) * 1e3)
        sample.commit_ms.append((time.perf_counter() - completed) * 1e3)
        sample.acknowledged += call.outcome == "durable"

    async def _appended(self, rollout_id: str, exchange: dict[str, Any], call_s: float, sample: Sample) -> None:
        await asyncio.sleep(call_s)
        completed = time.perf_counter()
        await asyncio.to_thread(self._files.append, rollout_id, exchange)
        sample.claim_ms.append(0.0)
        sample.commit_ms.append((time.perf_counter() - completed) * 1e3)
        sample.acknowledged += 1


async def main(directory: str, files: str, number: int) -> None:
    """Work as the lines say until there are no more."""
    capture = gym_capture.connect(capture_dir=directory)
    await capture.stats(timeout_s=60.0)
    client = SlowClient(capture, FileStore(Path(files)), number)
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(dataclasses.asdict(await client.run(Pace(**json.loads(line))))), flush=True)
    await capture.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
