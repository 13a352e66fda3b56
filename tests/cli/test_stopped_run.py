"""`gym-capture run` that is stopped, and killed: the next run goes on where it was."""

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
from tests.cli.commands import PATIENCE_S, records, started
from tests.ray_cluster import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

AGENT = """
import asyncio
from pathlib import Path

FOLDER = Path(__file__).parent

async def rollout(row, session):
    while any(row["q"] >= int(held.name.partition(".")[2]) for held in FOLDER.glob("held.*")):
        await asyncio.sleep(0.05)
    for turn in range(3):
        async with session.claim(dialect="chat") as call:
            call.complete(request={"turn": turn}, response={"ok": True})
    return None
"""
"""Rollouts of the rows from N on do not begin while there is a file `held.N`: no run is over before its signal."""


async def test_a_run_that_is_stopped_and_killed_ends_with_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"q": number}) + "\n" for number in range(60)))
    (tmp_path / "run.yaml").write_text(
        json.dumps(
            {
                "model_call_capture_dir": "captures",
                "collect": {
                    "input": "rows.jsonl",
                    "output": "out.jsonl",
                    "rollout": "agent:rollout",
                    "workers": 2,
                    "worker_num_cpus": 0,
                    "concurrency": 4,
                },
            }
        )
    )
    output = tmp_path / "out.jsonl"

    # Ctrl-C reaches the whole foreground process group.
    held = tmp_path / "held.20"
    held.touch()
    stopped = started("run", "run.yaml", "--json", cwd=tmp_path)
    _until_written(stopped, output, 8)
    os.killpg(stopped.pid, signal.SIGINT)
    wait_until(lambda: "stopping: " in (tmp_path / "stderr.log").read_text(), "it has heard", PATIENCE_S)
    held.unlink()
    stdout, _ = stopped.communicate(timeout=PATIENCE_S)
    summary = json.loads(stdout)
    assert stopped.returncode == summary["exit_status"] == 130, (tmp_path / "stderr.log").read_text()[-3000:]
    assert summary["interrupted"] is True
    assert 8 <= summary["finished"] == len(records(output)) < 60
    assert summary["remaining"] == 60 - summary["finished"]
    assert records(tmp_path / "out.failures.jsonl") == []

    held = tmp_path / "held.45"
    held.touch()
    killed = started("run", "run.yaml", "--json", cwd=tmp_path)
    _until_written(killed, output, summary["finished"] + 10)
    killed.kill()
    killed.communicate(timeout=PATIENCE_S)
    held.unlink()
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
