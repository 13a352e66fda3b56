"""What a driver does: clear, dispatch, wait, quiesce, merge, again and again until told to stop."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import ray

import gym_capture
from gym_capture.errors import GymCaptureError
from tests.crash.lab.journal import Journal
from tests.crash.lab.plan import Plan
from tests.crash.lab.workers import attempt_task
from tests.crash.lab.workload import Attempt

GIVEN_UP_TASKS = 8
"""Tasks that are given up still wait for a core, and with more of them than the cluster gets done a driver's memory
grows by what Ray keeps of each: then attempts go to actors."""


class Collector:
    """Rollouts side by side, each with attempts one after the other.

    Args:
        plan: the run's.
        capture: this driver's client.
        directory: the capture directory.
        journal: where this driver notes what it is told.
        actors: worker actors.
        name: what its rollouts' ids begin with.

    Attributes:
        running: Ray calls of attempts that are under way, with how they can be cancelled.
    """

    def __init__(
        self,
        plan: Plan,
        capture: gym_capture.CaptureClient,
        directory: str,
        journal: Journal,
        actors: list[Any],
        name: str,
    ) -> None:
        self._plan = plan
        self._capture = capture
        self._directory = directory
        self._journal = journal
        self._actors = actors
        self._name = name
        self.stopping = asyncio.Event()
        self.running: dict[Any, str] = {}
        self._given_up: list[Any] = []
        self.recent: deque[str] = deque(maxlen=2 * plan.collectors)
        self.fork = plan.fault == "fork in a worker"
        self.fail: Callable[[BaseException], None] = lambda error: None

    async def run(self) -> None:
        """Collect until `stopping` is set, then finish what is under way."""
        lanes = [self._lane(number) for number in range(self._plan.collectors)]
        await asyncio.gather(*lanes, self._ask())

    async def _lane(self, number: int) -> None:
        draw = self._plan.random(f"{self._name} lane {number}")
        count = 0
        while not self.stopping.is_set():
            rollout = f"{self._name}-{number}x{count % self._plan.ids if self._plan.ids else count}-0"
            count += 1
            self.recent.append(rollout)
            for _ in range(draw.choice([1, 1, 2, 3])):
                if not await self._attempt(rollout, draw):
                    break

    async def _attempt(self, rollout: str, draw: random.Random) -> bool:
        """Clear, dispatch, wait, quiesce, merge. False when the owner could not be asked to clear."""
        token = await self.clear(rollout)
        if token is None:
            return False
        # A token is what fences; without one a call belongs to what is current, which is fine for a first attempt.
        generation = token if draw.random() < 0.9 else None
        calls = draw.randint(1, self._plan.calls)
        name = f"{rollout}.{token}"  # another driver that goes on with this rollout has another token
        attempt = Attempt(self._directory, rollout, name, generation, calls, f"{self._plan.seed}", self.fork)
        if self._actors and (draw.random() < 0.5 or self._tasks_given_up() >= GIVEN_UP_TASKS):
            kind, ref = "actor", draw.choice(self._actors).attempt.remote(self._capture, attempt)
        else:
            kind, ref = "task", attempt_task.remote(self._capture, attempt)
        self.running[ref] = kind
        issued = 0
        try:
            # Some collectors give a worker up early, as those do that retry.
            issued = await asyncio.wait_for(_result(ref), draw.choice([0.3, 8.0, 20.0, 20.0]))
        except TimeoutError:
            if kind == "task":
                self._given_up.append(ref)
        except ray.exceptions.RayError:
            pass
        finally:
            self.running.pop(ref, None)
        await self.quiesce(rollout, draw.choice([0.5, 5.0, 10.0]))
        await self.merge(rollout, token, issued)
        return True

    def _tasks_given_up(self) -> int:
        """How many tasks that nobody waits for are still queued or running."""
        if self._given_up:
            _, self._given_up = ray.wait(self._given_up, num_returns=len(self._given_up), timeout=0)
        return len(self._given_up)

    async def clear(self, rollout: str) -> int | None:
        """Begin a generation; None when the owner did not answer."""
        self._journal.note("clear", rollout)
        try:
            token = (await self._capture.clear([rollout], timeout_s=30.0))[rollout]
        except GymCaptureError:
            return None
        self._journal.note("cleared", rollout, token)
        return token

    async def quiesce(self, rollout: str | None, timeout_s: float) -> bool | None:
        """Ask, and note a yes; None: no answer."""
        asked_at = time.monotonic()
        try:
            quiet = await self._capture.quiesce(rollout, timeout_s=timeout_s)
        except GymCaptureError:
            return None
        if quiet:
            self._journal.note("quiet", rollout, asked_at)
        return quiet

    async def merge(self, rollout: str, generation: int, issued: int) -> None:
        """Merge, and note what came of it."""
        record: dict[str, Any] = {"_ng_rollout_id": rollout}
        asked_at = time.monotonic()
        try:
            await self._capture.merge(record, issued=issued or None, generation=generation, timeout_s=5.0)
        except GymCaptureError:
            return
        value = record["ng_model_call_capture"]
        calls = [(call["model_call_id"], call["call_index"]) for call in value["calls"]]
        gaps = [(gap["code"], gap.get("detail") or "") for gap in value.get("gaps", [])]
        self._journal.note("merged", rollout, generation, asked_at, calls, gaps)

    async def _ask(self) -> None:
        """Ask for quiescence of rollouts that are being written, and of the run, at random moments."""
        draw = self._plan.random(f"{self._name} questions")
        while not self.stopping.is_set():
            await asyncio.sleep(draw.random() * 0.03)
            if self.recent:
                await self.quiesce(draw.choice([*self.recent, None]), draw.choice([0.01, 0.1, 0.5]))


async def _result(ref: Any) -> int:
    return int(await ref)
