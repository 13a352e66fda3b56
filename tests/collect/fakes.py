"""Stand-ins for what a dispatcher talks to, each driven by the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from gym_capture.collect.attempt import Attempt, Ending, Finished
from gym_capture.collect.identity import identify
from gym_capture.collect.rows import InputRow
from gym_capture.errors import GymCaptureError
from gym_capture.model.ids import rollout_id_from_record


def input_row(line: int, row: dict[str, Any] | None = None) -> InputRow:
    """The 0-based line of an input, without repeats."""
    body = {"question": line} if row is None else row
    return InputRow(line + 1, 0, body, identify(body, line, 0))


class FakeCapture:
    """Counts generations up; `merge` attaches what `gaps` says for the id, or raises `merge_error`."""

    def __init__(self) -> None:
        self.cleared: list[str] = []
        self.merged: list[tuple[str, int | None]] = []
        self.gaps: dict[str, list[dict[str, str]]] = {}
        self.clear_error: GymCaptureError | None = None
        self.merge_error: GymCaptureError | None = None
        self.patience_s: float | None = None
        self.merging: Callable[[str], Any] | None = None

    async def clear(self, records: Sequence[str], timeout_s: float | None = None) -> dict[str, int]:
        if self.clear_error is not None:
            raise self.clear_error
        generations = {}
        self.patience_s = timeout_s
        for rollout_id in records:
            self.cleared.append(rollout_id)
            generations[rollout_id] = self.cleared.count(rollout_id)
        return generations

    async def merge(
        self,
        record: dict[str, Any],
        include_payloads: bool = False,
        *,
        issued: int | None = None,
        generation: int | None = None,
    ) -> dict[str, Any]:
        rollout_id = rollout_id_from_record(record)
        assert rollout_id is not None
        if self.merging is not None:
            await self.merging(rollout_id)
        if self.merge_error is not None:
            raise self.merge_error
        assert generation == self.cleared.count(rollout_id)
        self.merged.append((rollout_id, issued))
        record["ng_model_call_capture"] = {"rollout_id": rollout_id, "metrics": {"tokens_in": 5}, "calls": [{}, {}]}
        if rollout_id in self.gaps:
            record["ng_model_call_capture"]["gaps"] = self.gaps[rollout_id]
        return record


class FakePool:
    """Runs attempts as `behaviour(attempt, generation)` says, and remembers how many ran at once."""

    def __init__(self, behaviour: Callable[[Attempt, int], Any] | None = None) -> None:
        self.behaviour = behaviour
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.now = 0
        self.most = 0

    async def run(self, attempt: Attempt, generation: int) -> Ending:
        self.started.append(attempt.rollout_id)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0)
            if self.behaviour is None:
                return Finished({"answer": attempt.rollout_id, "generation": generation}, 2)
            ending = self.behaviour(attempt, generation)
            result: Ending = await ending if asyncio.iscoroutine(ending) else ending
            return result
        except asyncio.CancelledError:
            self.cancelled.append(attempt.rollout_id)
            raise
        finally:
            self.now -= 1


class FakeLines:
    """Keeps what was appended; `error` is raised instead when it is set, and `syncing` is awaited before."""

    def __init__(self) -> None:
        self.syncing = asyncio.Event()
        self.syncing.set()
        self.records: list[dict[str, Any]] = []
        self.error: GymCaptureError | None = None

    async def append(self, line: bytes) -> None:
        await asyncio.sleep(0)
        await self.syncing.wait()
        if self.error is not None:
            raise self.error
        self.records.append(json.loads(line))
