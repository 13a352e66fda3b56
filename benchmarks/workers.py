"""The Ray workers of the benchmarks: the same loop over gym_capture and over the file store.

Every worker keeps the same number of calls in flight. gym_capture is driven once by tasks of one event loop (as async
rollout code is) and once by threads through the blocking twin (as the file store has to be).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gym_capture
from benchmarks.file_store import FileStore
from benchmarks.measure import Sample
from benchmarks.workload import single_turns


class CaptureWorker:
    """An async actor that claims and commits."""

    def __init__(self, directory: str, transport: Any) -> None:
        self._capture = gym_capture.connect(capture_dir=directory, transport=transport)

    async def transport(self) -> str:
        """The way that the owner is reached, after one answered question."""
        await self._capture.stats()
        return self._capture.transport_name

    async def tasks(
        self, prefix: str, seed: int, size: int, in_flight: int, seconds: float, *, shared: bool = False
    ) -> Sample:
        """`in_flight` tasks for `seconds`, a rollout each; `shared`: all in the rollout `prefix`."""
        exchanges = single_turns(seed, size)
        sample = Sample()
        start = time.perf_counter()
        end = start + seconds

        async def one(number: int) -> None:
            rollout = self._capture.rollout(prefix if shared else f"{prefix}-{seed}-{number}")
            while time.perf_counter() < end:
                exchange = next(exchanges)
                begin = time.perf_counter()
                async with rollout.claim(dialect="chat", model_call_id=exchange["model_call_id"]) as call:
                    claimed = time.perf_counter()
                    call.complete(**exchange)
                committed = time.perf_counter()
                if call.outcome == "durable":
                    sample.acknowledged += 1
                sample.claim_ms.append((claimed - begin) * 1e3)
                sample.commit_ms.append((committed - claimed) * 1e3)

        await asyncio.gather(*(one(number) for number in range(in_flight)))
        sample.seconds = time.perf_counter() - start
        return sample

    async def threads(self, prefix: str, seed: int, size: int, in_flight: int, seconds: float) -> Sample:
        """The same with threads and the blocking twin."""

        def one(number: int, exchange: dict[str, Any]) -> tuple[bool, float, float]:
            rollout = self._capture.sync.rollout(f"{prefix}-{seed}-{number}")
            begin = time.perf_counter()
            with rollout.claim(dialect="chat", model_call_id=exchange["model_call_id"]) as call:
                claimed = time.perf_counter()
                call.complete(**exchange)
            return call.outcome == "durable", claimed - begin, time.perf_counter() - claimed

        return await asyncio.to_thread(run_threads, one, seed, size, in_flight, seconds)

    async def park(self, rollout_id: str, callers: int) -> int:
        """`callers` callers wait for a rollout that is held open; returns how many were told that it is quiescent."""
        answers = await asyncio.gather(*(self._capture.quiesce(rollout_id, timeout_s=120.0) for _ in range(callers)))
        return sum(answers)

    async def make_texts(self, size: int) -> None:
        """Make what `single_turns` gives, so that no timed load does."""
        await asyncio.to_thread(single_turns, 0, size)

    async def close(self) -> None:
        """Let go of the owner."""
        await self._capture.close()


class FileWorker:
    """Threads that append to the file store."""

    def __init__(self, directory: str) -> None:
        self._store = FileStore(Path(directory))

    def make_texts(self, size: int) -> None:
        """Make what `single_turns` gives, so that no timed load does."""
        single_turns(0, size)

    def threads(self, prefix: str, seed: int, size: int, in_flight: int, seconds: float) -> Sample:
        """`in_flight` threads, a rollout each, for `seconds`."""
        return append_for(self._store, prefix, seed, size, in_flight, seconds)


def append_for(
    store: FileStore, prefix: str, seed: int, size: int, in_flight: int, seconds: float, *, shared: bool = False
) -> Sample:
    """`in_flight` threads that append for `seconds`, a rollout each; `shared`: all to the rollout `prefix`."""

    def one(number: int, exchange: dict[str, Any]) -> tuple[bool, float, float]:
        begin = time.perf_counter()
        store.append(prefix if shared else f"{prefix}-{seed}-{number}", exchange)
        return True, 0.0, time.perf_counter() - begin

    return run_threads(one, seed, size, in_flight, seconds)


def run_threads(
    one: Callable[[int, dict[str, Any]], tuple[bool, float, float]],
    seed: int,
    size: int,
    in_flight: int,
    seconds: float,
) -> Sample:
    """`in_flight` threads that call `one(number, exchange)` for `seconds`."""
    sample = Sample()
    lock = threading.Lock()
    exchanges = single_turns(seed, size)
    start = time.perf_counter()
    end = start + seconds

    def work(number: int) -> None:
        while time.perf_counter() < end:
            with lock:
                exchange = next(exchanges)
            acknowledged, claim_s, commit_s = one(number, exchange)
            with lock:
                sample.acknowledged += acknowledged
                sample.claim_ms.append(claim_s * 1e3)
                sample.commit_ms.append(commit_s * 1e3)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(in_flight)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sample.seconds = time.perf_counter() - start
    return sample
