"""The example, without Ray: what it does follows from its row, and its model's answers are understood."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import gym_capture.examples
from gym_capture.examples.scripted_agent import rollout
from gym_capture.examples.scripted_model import FAULTS, ScriptedModel
from gym_capture.model.record import derive_fields
from tests.collect.sessions import RecordingCapture, recording_session

TASKS = Path(gym_capture.examples.__file__).with_name("tasks.jsonl")
ROWS: list[dict[str, Any]] = [json.loads(line) for line in TASKS.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
async def test_a_models_answers_are_records_with_everything(dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for fault in FAULTS:
        monkeypatch.setitem(FAULTS, fault, 0.0)
    model = ScriptedModel(dialect, ["bolts"], seed=1, pace_s=0.0)
    first = await model.answer(request := model.request("buy bolts", []), 0)
    assert first.tool_call is not None
    second_request = model.request("buy bolts", [(first.tool_call, "{}")])
    second = await model.answer(second_request, 1)
    fields = [
        derive_fields({"model_call_id": "x", "dialect": dialect, "status_code": 200, "request": sent, "response": body})
        for sent, body in ((request, first.body), (second_request, second.body))
    ]
    assert [call["name"] for call in fields[0]["tool_calls"]] == ["stock_of"]
    for record in fields:
        assert record["error_category"] is None
        assert record["reasoning_content"]
        assert record["tokens_out"] > 0
        assert record["tokens_in"] > 0
    assert fields[1]["cached_tokens"] > 0
    assert fields[1]["tokens_in"] == len(json.dumps(second_request)) // 4


async def run_all(attempt: int) -> tuple[list[Any], RecordingCapture]:
    capture = RecordingCapture()
    results = await asyncio.gather(
        *(rollout(row, recording_session(capture, row, attempt)) for row in ROWS), return_exceptions=True
    )
    return [repr(each) if isinstance(each, RuntimeError) else each for each in results], capture


async def test_it_does_the_same_each_time_and_another_attempt_does_otherwise() -> None:
    first, _ = await run_all(0)
    again, _ = await run_all(0)
    other, _ = await run_all(1)
    assert first == again
    assert first != other


async def test_a_first_run_shows_failures_of_every_kind_in_every_dialect() -> None:
    results, capture = await run_all(0)
    categories = {exchange.get("error_category") for exchange in capture.exchanges}
    statuses = {exchange["status_code"] for exchange in capture.exchanges}
    assert categories >= {None, "stream_truncated", "incomplete", "cancelled"}
    assert statuses >= {200, 429, 500, None}
    assert {exchange["dialect"] for exchange in capture.exchanges} == {"chat", "responses", "messages"}
    assert capture.released >= 1
    assert any(isinstance(result, str) for result in results)
    assert sum(result["reward"] for result in results if isinstance(result, dict)) >= 20
