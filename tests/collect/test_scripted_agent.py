"""The example, without Ray: real SDKs over HTTP to the example's server, and what of it is captured."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import gym_capture.examples
from gym_capture.collect.session import Session
from gym_capture.examples import agent_turn, scripted_agent
from gym_capture.examples.model_faults import HANGS, USUAL
from gym_capture.examples.scripted_agent import rollout
from gym_capture.storage.store import CaptureStore
from tests.integrations.served_model import ServedModel, served_model

TASKS = Path(gym_capture.examples.__file__).with_name("tasks.jsonl")
ROWS: list[dict[str, Any]] = [json.loads(line) for line in TASKS.read_text(encoding="utf-8").splitlines()]


class Runs:
    """Attempts at rows against a served model, each under an id of its own."""

    def __init__(self, model: ServedModel, *, proxied: bool = True) -> None:
        self.model = model
        self.sessions: list[Session] = []
        self._proxied = proxied

    async def run(self, rows: list[dict[str, Any]], attempt: int = 0) -> list[Any]:
        """What each row's rollout returned, or how it failed."""
        handles = [self.model.rollout() for _ in rows]
        sessions = [
            Session(
                row=row,
                rollout_id=handle.id,
                attempt=attempt,
                generation=handle.generation or 0,
                capture=self.model.capture,
                proxy=self.model.captured_url if self._proxied else None,
            )
            for row, handle in zip(rows, handles, strict=True)
        ]
        self.sessions += sessions
        results = await asyncio.gather(
            *(rollout(row, session) for row, session in zip(rows, sessions, strict=True)), return_exceptions=True
        )
        for session in sessions:
            await session.close_clients()
        return [repr(result) if isinstance(result, RuntimeError) else result for result in results]

    def merged(self) -> list[dict[str, Any]]:
        """What was captured of each, as a collector merges it."""
        return [
            self.model.capture.sync.merge(
                {"_ng_rollout_id": session.rollout_id}, issued=session.issued, generation=session.generation
            )["ng_model_call_capture"]
            for session in self.sessions
        ]

    def exchanges(self) -> list[dict[str, Any]]:
        """Every exchange of theirs."""
        assert self.model.capture.sync.quiesce(timeout_s=20.0)
        store = CaptureStore(self.model.directory)
        return [dict(each) for session in self.sessions for each in store.read(session.rollout_id)]


def told(merged: list[dict[str, Any]]) -> list[Any]:
    """What follows from the row: how each call went, not when."""
    return [
        [(call["dialect"], call["status_code"], call["error_category"], call["tokens_out"]) for call in each["calls"]]
        for each in merged
    ]


async def test_it_does_the_same_each_time_and_another_attempt_does_otherwise(tmp_path: Path) -> None:
    with served_model(tmp_path, faults={**USUAL, HANGS: 0.0}) as model:
        first, again, other = Runs(model), Runs(model), Runs(model)
        results = [await first.run(ROWS[:6]), await again.run(ROWS[:6]), await other.run(ROWS[:6], attempt=1)]
        captured = [told(await asyncio.to_thread(runs.merged)) for runs in (first, again, other)]
    assert (results[0], captured[0]) == (results[1], captured[1])
    assert captured[0] != captured[2]


async def test_a_first_run_shows_failures_of_every_kind_in_every_dialect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripted_agent, "PATIENCE_S", 1.0)
    with served_model(tmp_path, faults=USUAL) as model:
        runs = Runs(model)
        results = await runs.run(ROWS)
        exchanges = await asyncio.to_thread(runs.exchanges)
        merged = await asyncio.to_thread(runs.merged)
    categories = {exchange["error_category"] for exchange in exchanges}
    assert categories >= {None, "rate_limit", "upstream_error", "stream_truncated", "cancelled"}
    assert {exchange["status_code"] for exchange in exchanges} >= {200, 429, 500}
    assert {exchange["dialect"] for exchange in exchanges} == {"chat", "responses", "messages"}
    assert {bool(exchange["request"].get("stream")) for exchange in exchanges} == {False, True}
    assert any(isinstance(result, str) for result in results)
    finished = [each for each, result in zip(merged, results, strict=True) if isinstance(result, dict)]
    assert len(finished) == 22
    assert all(result["reward"] == 1.0 for result in results if isinstance(result, dict))
    # The judge's calls are there, and counted apart.
    assert all([verifier["name"] for verifier in each["verifiers"]] == ["order_judge"] for each in finished)
    gaps = [(gap["code"], gap["detail"]) for each in merged for gap in each.get("gaps", ())]
    assert gaps == [("model_call_capture_incomplete", "unobserved=1")] * 2


async def test_where_a_run_has_no_proxy_its_calls_are_captured_in_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served_model(tmp_path) as model:
        monkeypatch.setattr(agent_turn, "local_model_url", lambda: model.bare_url)
        runs = Runs(model, proxied=False)
        rows = [{**ROWS[0], "dialect": dialect, "seed": 1} for dialect in ("chat", "responses", "messages")]
        results = await runs.run(rows)
        merged = await asyncio.to_thread(runs.merged)
    turns = len(ROWS[0]["items"]) + 2
    assert [result["response"]["tool_calls"] for result in results] == [2 * len(ROWS[0]["items"]) + 1] * 3
    assert [each["metrics"]["num_calls"] for each in merged] == [turns] * 3
    assert [each["verifiers"][0]["metrics"]["num_calls"] for each in merged] == [1] * 3
    assert not any(each.get("gaps") for each in merged)
