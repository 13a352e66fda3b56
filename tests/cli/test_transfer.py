"""`export` and `import` on the command line."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gym_capture.cli.main import app
from tests.reading.calls import chat, user, written


def test_out_in_every_format_and_in_again(tmp_path: Path) -> None:
    source = tmp_path / "source"
    expected = written(source, {"a": [chat("a", [user("one")])]}).read("a")
    runner = CliRunner()
    for format_ in ("nemo-gym", "parquet"):
        out, again = str(tmp_path / f"out-{format_}"), tmp_path / f"in-{format_}"
        ran = runner.invoke(app, ["export", str(source), "--to", out, "--format", format_, "--json"])
        assert json.loads(ran.stdout) == {"rollouts": 1, "calls": 1, "notes": {}}
        ran = runner.invoke(app, ["import", out, str(again)])
        assert ran.exit_code == 0
        assert ran.stdout.split()[:4] == ["rollouts", "1", "calls", "1"]
        shown = runner.invoke(app, ["ls", str(again), "--json"])
        assert [row["rollout_id"] for row in json.loads(shown.stdout)["rows"]] == ["a"]
    train = tmp_path / "train.jsonl"
    runner.invoke(app, ["export", str(source), "--to", str(train), "--format", "openai-chat"])
    assert json.loads(train.read_text())["messages"][0] == expected[0]["request"]["messages"][0]


def test_export_takes_its_directory_as_an_option_or_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    written(source, {"a": [chat("a", [user("one")])]})
    words = ["export", "--to", str(tmp_path / "out"), "--format", "nemo-gym"]
    ran = CliRunner().invoke(app, words)
    assert (ran.exit_code, "set GYM_CAPTURE_DIR" in ran.stderr) == (2, True)
    assert CliRunner().invoke(app, [*words, "--dir", str(source)]).exit_code == 0
    monkeypatch.setenv("GYM_CAPTURE_DIR", str(source))
    assert json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["calls"] == 1


def test_a_sealed_dataset_says_which_commands_read_it(tmp_path: Path) -> None:
    source, dataset, again = tmp_path / "source", str(tmp_path / "dataset"), str(tmp_path / "again")
    written(source, {"a": [chat("a", [user("one")])]})
    runner = CliRunner()
    assert runner.invoke(app, ["export", str(source), "--to", dataset, "--format", "parquet"]).exit_code == 0
    for words in (["ls", dataset], ["show", dataset, "a"], ["verify", dataset], ["status", dataset], ["view", dataset]):
        ran = runner.invoke(app, words)
        assert (ran.exit_code, "is a sealed dataset" in ran.stderr) == (1, True), ran.output
        assert "`gym-capture sql`, `export` and `import` read it" in ran.stderr
        assert f"`gym-capture import {dataset} NEW`" in ran.stderr
    reading = [
        ["sql", "select count(*) from calls", dataset],
        ["export", dataset, "--to", str(tmp_path / "out"), "--format", "nemo-gym"],
        ["import", dataset, again],
        ["ls", again],
        ["show", again, "a"],
        ["verify", again],
    ]
    assert [runner.invoke(app, words).exit_code for words in reading] == [0] * len(reading)


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    source = tmp_path / "source"
    written(source, {"a": [chat("a", [user("one")])]})
    ran = CliRunner().invoke(app, ["export", str(source), "--to", str(tmp_path / "x"), "--format", "csv"])
    assert (ran.exit_code, "nemo-gym, openai-chat, parquet" in ran.stderr) == (2, True)
    other = tmp_path / "other"
    written(other, {"a": [chat("b", [user("two")])]})
    ran = CliRunner().invoke(app, ["import", str(source), str(other)])
    assert (ran.exit_code, "other evidence of a" in ran.stderr) == (1, True)


def test_what_cannot_be_written_is_not_told_as_something_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    written(source, {"a": [chat("a", [user("one")])]})
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "train.jsonl"
    ran = CliRunner().invoke(app, ["export", str(source), "--to", str(target), "--format", "openai-chat"])
    assert ran.exit_code == 1
    assert f"the export to {target} failed" in ran.stderr
    assert f"{source} was only read" in ran.stderr

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gym_capture.transfer.importing.import_captures", full)
    ran = CliRunner().invoke(app, ["import", str(source), str(tmp_path / "new")])
    assert ran.exit_code == 1
    assert f"the import into {tmp_path}/new failed ([Errno 28] No space left on device)" in ran.stderr
    assert "run it again, it goes on" in ran.stderr
