"""The Ray worker of the targets: both sides in one process, and what only one case asks of it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import gym_capture
from benchmarks.file_store import FileStore
from benchmarks.history import given
from benchmarks.measure import Sample
from benchmarks.workers import CaptureWorker, append_for

Lanes = list[list[tuple[str, list[dict[str, Any]]]]]
"""For each lane the rollouts that it works through: an id, and its exchanges."""


class FleetWorker(CaptureWorker):
    """An async actor that captures, or appends to the file store from threads."""

    async def use(self, directory: str) -> None:
        """Capture into another directory from now on."""
        await self._capture.close()
        self._capture = gym_capture.connect(capture_dir=directory, transport="stream")
        await self._capture.stats()

    async def append(
        self,
        directory: str,
        slower_s: float,
        prefix: str,
        seed: int,
        size: int,
        in_flight: int,
        seconds: float,
        *,
        shared: bool = False,
    ) -> Sample:
        """The file store's side of `tasks`, from threads."""
        store = FileStore(Path(directory), slower_s)
        return await asyncio.to_thread(append_for, store, prefix, seed, size, in_flight, seconds, shared=shared)

    # -- whole rollouts -----------------------------------------------------------------------------------------

    async def prepare(self, lanes: Lanes) -> None:
        """Keep what `turns` and `append_turns` write."""
        self._lanes = lanes

    async def turns(self, prefix: str) -> Sample:
        """Every lane captures its rollouts, call by call."""
        sample = Sample()
        start = time.perf_counter()

        async def lane(rollouts: list[tuple[str, list[dict[str, Any]]]]) -> None:
            for rollout_id, exchanges in rollouts:
                rollout = self._capture.rollout(f"{prefix}-{rollout_id}")
                for exchange in exchanges:
                    begin = time.perf_counter()
                    call_id, dialect = exchange["model_call_id"], exchange["dialect"]
                    async with rollout.claim(dialect=dialect, model_call_id=call_id) as call:
                        claimed = time.perf_counter()
                        call.complete(**given(exchange))
                    sample.claim_ms.append((claimed - begin) * 1e3)
                    sample.commit_ms.append((time.perf_counter() - claimed) * 1e3)
                    sample.acknowledged += call.outcome == "durable"

        await asyncio.gather(*map(lane, self._lanes))
        sample.seconds = time.perf_counter() - start
        return sample

    async def append_turns(self, directory: str, prefix: str) -> Sample:
        """The same over the file store, a thread a lane."""
        store = FileStore(Path(directory))
        sample = Sample()
        start = time.perf_counter()

        def lane(rollouts: list[tuple[str, list[dict[str, Any]]]]) -> list[float]:
            took = []
            for rollout_id, exchanges in rollouts:
                for exchange in exchanges:
                    begin = time.perf_counter()
                    store.append(f"{prefix}-{rollout_id}", exchange)
                    took.append((time.perf_counter() - begin) * 1e3)
            return took

        for took in await asyncio.gather(*(asyncio.to_thread(lane, rollouts) for rollouts in self._lanes)):
            sample.commit_ms += took
            sample.claim_ms += [0.0] * len(took)
            sample.acknowledged += len(took)
        sample.seconds = time.perf_counter() - start
        return sample

    # -- quiescence ---------------------------------------------------------------------------------------------

    async def hold(self, prefix: str, count: int) -> None:
        """Open a call in each of `count` rollouts."""
        self._held = [self._capture.rollout(f"{prefix}-{number}").claim(dialect="chat") for number in range(count)]
        self._calls = await asyncio.gather(*(claim.__aenter__() for claim in self._held))

    async def commit_held(self, pause_s: float) -> list[tuple[float, float]]:
        """Commit them one after the other; returns when each was complete, and when acknowledged (`perf_counter`)."""
        commits = []
        for claim, call in zip(self._held, self._calls, strict=True):
            await asyncio.sleep(pause_s)
            completed = time.perf_counter()
            call.complete(request={"held": True}, response={}, status_code=200)
            await claim.__aexit__(None, None, None)
            commits.append((completed, time.perf_counter()))
        return commits

    async def await_told(self, prefix: str, count: int) -> list[float]:
        """Wait for all of them at once; returns when each was told to be quiescent (`perf_counter`)."""

        async def one(number: int) -> float:
            if not await self._capture.quiesce(f"{prefix}-{number}", timeout_s=120.0):
                raise RuntimeError("a waiter was not told")
            return time.perf_counter()

        return await asyncio.gather(*map(one, range(count)))
