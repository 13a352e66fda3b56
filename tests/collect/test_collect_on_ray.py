"""The collector on real Ray: rollouts that fail, workers that die, runs without capture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_capture.collect.collector import collect
from gym_capture.collect.summary import Progress, Summary
from gym_capture.config import load_config
from gym_capture.errors import ConfigError, InputRowError, RolloutFunctionError
from gym_capture.storage.store import CaptureStore

pytestmark = pytest.mark.ray

ROLLOUT = "tests.collect.ray_rollouts:rollout"


class Rows:
    """An input and an output in a folder."""

    def __init__(self, folder: Path, base: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        self.folder = folder
        self.output = folder / "out.jsonl"
        self.base = base
        self.captures = Path(base["model_call_capture_dir"])
        path = folder / "rows.jsonl"
        path.write_text("".join(json.dumps({"n": number, **row}) + "\n" for number, row in enumerate(rows)))

    async def collect(self, *overrides: str, progress: Progress | None = None) -> Summary:
        collected = {
            "input": str(self.folder / "rows.jsonl"),
            "output": str(self.output),
            "rollout": ROLLOUT,
            "workers": 2,
            "worker_num_cpus": 0,
            "concurrency": 4,
        }
        return await collect(load_config({**self.base, "collect": collected}, overrides), progress=progress)

    def written(self) -> dict[str, dict[str, Any]]:
        records = [json.loads(line) for line in self.output.read_text().splitlines()]
        by_id = {record["ng_model_call_capture"]["rollout_id"]: record for record in records}
        assert len(by_id) == len(records)
        return by_id

    def failures(self) -> dict[str, dict[str, Any]]:
        lines = (self.folder / "out.failures.jsonl").read_text().splitlines()
        return {entry["rollout_id"]: entry for entry in map(json.loads, lines)}


MakeRows = Callable[[list[dict[str, Any]]], Rows]


@pytest.fixture
def rows_of(tmp_path: Path, capture_config: dict[str, Any]) -> MakeRows:
    return lambda rows: Rows(tmp_path, {**capture_config, "ray": {"address": "auto"}}, rows)


async def test_failures_are_kept_with_their_calls_and_made_good_by_the_next_attempt(rows_of: MakeRows) -> None:
    rows = rows_of([{}, {"do": "raise"}, {"do": "die"}, {"do": "hide"}, {"do": "raise", "always": True}])
    progress = Progress()
    # One at a time, so that the process that dies takes no other rollout with it.
    summary = await rows.collect("collect.concurrency=1", "collect.workers=1", progress=progress)

    written = rows.written()
    assert written.keys() == {"0-0", "1-0-a1", "2-0-a1", "3-0"}
    assert {record["answer"] for record in written.values()} == {0, 1, 2, 3}
    assert all(len(record["ng_model_call_capture"]["calls"]) == 2 for record in written.values())
    assert [call["response_id"] for call in written["1-0-a1"]["ng_model_call_capture"]["calls"]] == [
        "1-0-a1/0",
        "1-0-a1/1",
    ]

    failures = rows.failures()
    raised = failures["1-0"]
    assert (raised["error"]["type"], raised["error"]["message"], raised["issued"]) == ("LookupError", "no such tool", 2)
    assert "ray_rollouts.py" in raised["error"]["traceback"]
    assert [call["response_id"] for call in raised["ng_model_call_capture"]["calls"]] == ["1-0/0", "1-0/1"]
    assert "gaps" not in raised["ng_model_call_capture"]

    # Nobody can say how many calls a killed process issued; its open claim was lost with its lease.
    killed = failures["2-0"]
    assert (killed["error"]["type"], killed["issued"]) == ("WorkerDied", None)
    assert len(killed["ng_model_call_capture"]["calls"]) == 2
    assert killed["ng_model_call_capture"]["gaps"] == [{"code": "model_call_capture_incomplete", "detail": "lost=1"}]

    # Issued and nowhere: a gap.
    (hidden,) = summary.incomplete
    assert hidden.gaps == (("model_call_capture_incomplete", "unaccounted=3"),)

    (given_up,) = summary.failed
    assert (given_up.rollout_id, given_up.error_type, given_up.line) == ("4-0-a1", "LookupError", 5)
    assert (len(summary.finished), summary.total, summary.remaining, progress.with_gaps) == (4, 5, 0, 1)

    # Another run tries that one again, under the attempts that follow, and nothing else.
    again = await rows.collect("collect.retries=0")
    assert [each.rollout_id for each in again.failed] == ["4-0-a2"]
    assert rows.written() == written
    store = CaptureStore(rows.captures)
    assert len(store.read("4-0-a2")) == 2
    assert store.outstanding() == 0


async def test_a_run_without_observability_captures_nothing_and_finishes(rows_of: MakeRows) -> None:
    rows = rows_of([{}, {}])
    summary = await rows.collect("observability_enabled=false")
    records = [json.loads(line) for line in rows.output.read_text().splitlines()]
    assert sorted(record["answer"] for record in records) == [0, 1]
    assert all("ng_model_call_capture" not in record for record in records)
    assert (summary.capture_dir, len(summary.finished), summary.incomplete) == (None, 2, [])
    assert not rows.captures.exists()


async def test_what_is_wrong_is_told_before_anything_is_started(rows_of: MakeRows) -> None:
    rows = rows_of([{}])
    with pytest.raises(RolloutFunctionError, match="Did you mean rollout"):
        await rows.collect("collect.rollout=tests.collect.ray_rollouts:rolout")
    with pytest.raises(ConfigError, match=r"set collect\.output"):
        await rows.collect("collect.output=null")
    with pytest.raises(ConfigError, match="are one file"):
        await rows.collect(f"collect.output={rows.folder / 'rows.jsonl'}")
    (rows.folder / "rows.jsonl").write_text('{"n": 0}\n{"n": \n')
    with pytest.raises(InputRowError, match="line 2 is not JSON"):
        await rows.collect()
    assert not rows.captures.exists()
    assert not rows.output.exists()
