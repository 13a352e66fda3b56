"""`gym-capture run` as a user runs it: an embedded Ray, real processes, kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from gym_capture.collect.collector import collect
from gym_capture.config import load_config
from gym_capture.storage.store import CaptureStore
from tests.cases import ROOT, cases_dir, read_cases
from tests.cli.commands import PATIENCE_S, document, gym_capture, local_run, records, started
from tests.ray_cluster import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

SLOW_AGENT = """
import asyncio

async def rollout(row, session):
    for turn in range(3):
        async with session.claim(dialect="chat") as call:
            await asyncio.sleep(0.05)
            call.complete(request={"turn": turn}, response={"ok": True})
    return None
"""


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


def test_a_rollouts_error_that_no_stream_can_print_is_told_in_the_summary(tmp_path: Path) -> None:
    (tmp_path / "surrogates.py").write_text("async def rollout(row, session):\n    raise ValueError('lone \\ud800')\n")
    (tmp_path / "rows.jsonl").write_text("{}\n")
    ran = gym_capture(
        "run",
        str(ROOT / "configs" / "local.yaml"),
        "collect.input=rows.jsonl",
        "collect.output=out.jsonl",
        "collect.rollout=surrogates:rollout",
        "collect.retries=0",
        "model_call_capture_dir=captures",
        cwd=tmp_path,
    )
    assert ran.returncode == 1, ran.stderr[-3000:]
    assert "ValueError: lone \\ud800" in ran.stdout
    assert "Traceback" not in ran.stderr
    (failed,) = records(tmp_path / "out.failures.jsonl")
    assert failed["error"]["message"] == "lone \ud800"


def test_real_rollouts_replayed_are_exactly_what_is_expected(tmp_path: Path) -> None:
    source = cases_dir() / "real_rollouts.jsonl"
    ran = gym_capture(
        "run",
        str(ROOT / "configs" / "local.yaml"),
        f"collect.input={source}",
        f"collect.output={tmp_path / 'out.jsonl'}",
        "collect.rollout=gym_capture.collect.replay:rollout",
        "collect.workers=4",
        "collect.require_complete=true",
        f"model_call_capture_dir={tmp_path / 'captures'}",
        "--json",
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    expected = [json.dumps(case["ok"]) for case in read_cases("real_rollouts.expected.jsonl")]
    merged = sorted(records(tmp_path / "out.jsonl"), key=lambda record: int(record["_ng_task_index"]))
    assert [json.dumps(record) for record in merged] == expected
    store = CaptureStore(tmp_path / "captures")
    for case in read_cases("real_rollouts.jsonl"):
        rollout_id = f"{case['record']['_ng_task_index']}-{case['record']['_ng_rollout_index']}"
        assert [json.dumps(each) for each in store.read(rollout_id)] == [json.dumps(each) for each in case["exchanges"]]


async def test_a_run_that_is_stopped_and_killed_ends_with_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str
) -> None:
    (tmp_path / "slow_agent.py").write_text(SLOW_AGENT)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"q": number}) + "\n" for number in range(60)))
    (tmp_path / "run.yaml").write_text(
        json.dumps(
            {
                "model_call_capture_dir": "captures",
                "collect": {
                    "input": "rows.jsonl",
                    "output": "out.jsonl",
                    "rollout": "slow_agent:rollout",
                    "workers": 2,
                    "worker_num_cpus": 0,
                    "concurrency": 4,
                },
            }
        )
    )
    output = tmp_path / "out.jsonl"

    # Ctrl-C reaches the whole foreground process group.
    stopped = started("run", "run.yaml", "--json", cwd=tmp_path)
    _until_written(stopped, output, 8)
    os.killpg(stopped.pid, signal.SIGINT)
    stdout, _ = stopped.communicate(timeout=PATIENCE_S)
    summary = json.loads(stdout)
    assert stopped.returncode == summary["exit_status"] == 130, (tmp_path / "stderr.log").read_text()[-3000:]
    assert summary["interrupted"] is True
    assert 8 <= summary["finished"] == len(records(output)) < 60
    assert summary["remaining"] == 60 - summary["finished"]
    assert records(tmp_path / "out.failures.jsonl") == []

    killed = started("run", "run.yaml", "--json", cwd=tmp_path)
    _until_written(killed, output, summary["finished"] + 10)
    killed.kill()
    killed.communicate(timeout=PATIENCE_S)
    with output.open("ab") as torn:
        torn.write(b'{"_ng_task_index": 59, "_ng_rol')

    # In this process, on the Ray that is there: the same function that the command calls.
    monkeypatch.chdir(tmp_path)
    last = await collect(load_config("run.yaml", [f"capture.namespace={namespace}"]))
    assert (len(last.finished), last.failed, last.remaining) == (60, [], 0)
    assert Counter(record["_ng_task_index"] for record in records(output)) == dict.fromkeys(range(60), 1)
    merged = records(output)
    assert all(len(record["ng_model_call_capture"]["calls"]) == 3 for record in merged)
    assert not any("gaps" in record["ng_model_call_capture"] for record in merged)


def _until_written(running: subprocess.Popen[str], output: Path, lines: int) -> None:
    def written() -> bool:
        assert running.poll() is None, "the run ended early"
        return len(records(output)) >= lines

    wait_until(written, f"{lines} finished rollouts", PATIENCE_S)
