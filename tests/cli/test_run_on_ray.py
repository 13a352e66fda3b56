"""`gym-capture run` as a user runs it: an embedded Ray, real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import ROOT
from tests.cli.commands import document, gym_capture, local_run, records

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


def test_a_first_run_shows_gaps_and_a_second_one_that_all_is_finished(tmp_path: Path) -> None:
    arguments = (
        str(ROOT / "configs" / "local.yaml"),
        f"collect.input={ROOT / 'gym_capture' / 'examples' / 'tasks.jsonl'}",
        f"collect.output={tmp_path / 'out.jsonl'}",
        f"model_call_capture_dir={tmp_path / 'captures'}",
        "collect.require_complete=true",
        "--json",
    )
    first = local_run(*arguments, cwd=tmp_path)
    summary = document(first)
    assert first.returncode == summary["exit_status"] == 3, first.stderr[-3000:]
    assert (summary["finished"], summary["rollouts"], summary["failed"], summary["remaining"]) == (24, 24, [], 0)
    assert {each["rollout_id"] for each in summary["incomplete"]} == {"4-0", "9-0"}
    assert summary["incomplete"][0]["gaps"][0] == {"code": "model_call_capture_incomplete", "detail": "unobserved=1"}
    assert summary["failed_attempts"] == 2
    assert summary["calls"] > 100
    assert summary["failed_calls"] > 0
    assert len(records(tmp_path / "out.jsonl")) == 24

    second = local_run(*arguments, cwd=tmp_path)
    repeated = document(second)
    assert second.returncode == 3
    assert (repeated["finished_earlier"], repeated["failed_attempts"]) == (24, 0)
    assert {**repeated, "finished_earlier": 0, "failed_attempts": 2, "seconds": summary["seconds"]} == summary

    # Another output knows nothing of these rollouts: its run would clear their captures.
    other = local_run(*arguments, f"collect.output={tmp_path / 'other.jsonl'}", cwd=tmp_path)
    assert other.returncode == 2
    assert f"holds the captures of {tmp_path / 'out.jsonl'}" in document(other)["error"]["message"]
    assert not (tmp_path / "other.jsonl").exists()

    verified = gym_capture("verify", str(tmp_path / "captures"), "--json", cwd=tmp_path)
    found = document(verified)
    assert verified.returncode == 0
    # The two failed attempts are in the log as well.
    assert (found["sound"], found["rollouts"], found["late"], found["outstanding"]) == (True, 26, {}, {})
    assert found["incomplete"].keys() == {"4-0", "9-0"}
    assert found["calls"] > summary["calls"]
