"""`gym-capture run` in the test's own process, on the Ray that is there: what it writes and what it prints."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gym_capture.cli.main import app
from gym_capture.directory import sealing_ahead
from gym_capture.storage.store import CaptureStore
from tests.cases import ROOT, cases_dir, read_cases
from tests.cli.commands import records

pytestmark = pytest.mark.ray


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command runs, and rollout functions are found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    return tmp_path


def run(namespace: str, *overrides: str) -> Result:
    config = str(ROOT / "configs" / "local.yaml")
    own = ("model_call_capture_dir=captures", "collect.output=out.jsonl", f"capture.namespace={namespace}")
    return CliRunner().invoke(app, ["run", config, *own, *overrides])


def test_a_rollouts_error_that_no_stream_can_print_is_told_in_the_summary(folder: Path, namespace: str) -> None:
    (folder / "surrogates.py").write_text("async def rollout(row, session):\n    raise ValueError('lone \\ud800')\n")
    (folder / "rows.jsonl").write_text("{}\n")
    ran = run(
        namespace,
        "collect.input=rows.jsonl",
        "collect.rollout=surrogates:rollout",
        "collect.retries=0",
        "seal.after_run=true",
    )
    assert ran.exit_code == 1, ran.stderr[-3000:]
    assert "ValueError: lone \\ud800" in ran.stdout
    assert "Traceback" not in ran.stderr
    (failed,) = records(folder / "out.failures.jsonl")
    assert failed["error"]["message"] == "lone \ud800"
    assert "not sealed, for the run did not end well" in ran.stderr
    assert not list((folder / "captures").glob("sealed-*"))


def test_real_rollouts_replayed_are_exactly_what_is_expected(
    folder: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Beside the run all is sealed ahead that is merged by the time it looks.
    monkeypatch.setattr(sealing_ahead, "SealingProcess", partial(sealing_ahead.SealingProcess, least_bytes=1))
    ran = run(
        namespace,
        f"collect.input={cases_dir() / 'real_rollouts.jsonl'}",
        "collect.rollout=gym_capture.collect.replay:rollout",
        "collect.workers=4",
        "collect.require_complete=true",
        f"seal.to={(folder / 'archive').as_uri()}",
        "--json",
    )
    assert ran.exit_code == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout)["sealed"]
    assert told["calls"] == sum(len(case["exchanges"]) for case in read_cases("real_rollouts.jsonl"))
    assert told["carried"]["files"] == told["carried"]["sent"]
    expected = [json.dumps(case["ok"]) for case in read_cases("real_rollouts.expected.jsonl")]
    merged = sorted(records(folder / "out.jsonl"), key=lambda record: int(record["_ng_task_index"]))
    assert [json.dumps(record) for record in merged] == expected
    for place in (folder / "captures", (folder / "archive").as_uri()):
        store = CaptureStore(place)
        for case in read_cases("real_rollouts.jsonl"):
            rollout_id = f"{case['record']['_ng_task_index']}-{case['record']['_ng_rollout_index']}"
            read = [json.dumps(each) for each in store.read(rollout_id)]
            assert read == [json.dumps(each) for each in case["exchanges"]]


@pytest.mark.parametrize(
    ("override", "status", "why"),
    [
        ("seal.to=nowhere://bucket/run", 2, "no place that pyarrow knows"),
        ("observability_enabled=false", 2, "nothing would be captured"),
    ],
)
def test_a_run_that_cannot_be_sealed_is_not_begun(folder: Path, override: str, status: int, why: str) -> None:
    ran = run("unused", "seal.after_run=true", override)
    assert ran.exit_code == status, ran.stderr[-3000:]
    assert why in " ".join(ran.stderr.split())
    assert not (folder / "captures").exists()
