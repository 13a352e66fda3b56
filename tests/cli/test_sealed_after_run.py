"""What `gym-capture run` says of sealing, before it collects and after; without Ray, as nothing is collected here."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gym_capture.cli import run as run_module
from gym_capture.cli.exits import Exit
from gym_capture.cli.main import app
from gym_capture.collect.summary import Summary
from gym_capture.storage.store import CaptureStore
from tests.reading.calls import chat, user, written
from tests.storage.owners import Batch


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories that were collected into."""
    found: list[Path] = []

    async def collect(config: Any, _screen: Any, _on_started: Any) -> tuple[Summary, None]:
        found.append(config.directory)
        return Summary(Path("/out"), Path("/failures"), config.directory, total=0, earlier=0, finished=[]), None

    monkeypatch.setattr(run_module, "_collect", collect)
    return found


def ran(directory: Path, *overrides: str, code: int) -> Result:
    (directory.parent / "run.yaml").write_text("")
    given = ("run", str(directory.parent / "run.yaml"), f"model_call_capture_dir={json.dumps(str(directory))}")
    result = CliRunner().invoke(app, [*given, *overrides])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def command_in(told: str) -> list[str]:
    found = re.search("`(.*)`", " ".join(told.split("\n")))
    assert found is not None, told
    return shlex.split(found[1])


def test_the_command_that_seals_it_later_can_be_pasted_whatever_the_paths(
    tmp_path: Path, collected: list[Path]
) -> None:
    directory = tmp_path / "[bold]a b [" / "x] y"
    directory.mkdir(parents=True)
    written(directory, {"first": [chat("a", [user("one")])]}, Batch().claim("first", 1))
    uri = f"file://{tmp_path}/archive;x&y"
    for_scripts = json.loads(ran(directory, f"seal.to={uri}", "--json", code=1).stdout)
    assert (for_scripts["sealed"], for_scripts["exit_status"]) == (None, 1)
    assert "1 claims are open" in for_scripts["not_sealed"]
    assert command_in(for_scripts["not_sealed"].partition("there; ")[2])[:3] == ["gym-capture", "seal", str(directory)]
    failed = ran(directory, f"seal.to={uri}", code=1)
    assert "1 claims are open" in failed.stderr
    told = failed.stderr[failed.stderr.index("All that was collected is there") :]
    assert command_in(told) == ["gym-capture", "seal", str(directory), "--to", uri]
    assert collected == [directory] * 2
    assert not (tmp_path / "archive;x&y").exists()


def test_a_run_that_did_not_end_well_says_so_to_scripts_too(
    tmp_path: Path, collected: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "exit_status", lambda *_: Exit.EVIDENCE_MISSING)
    told = json.loads(ran(tmp_path / "run", "seal.after_run=true", "--json", code=3).stdout)
    assert told["sealed"] is None
    assert "not sealed, for the run did not end well; `gym-capture seal" in told["not_sealed"]


def test_a_place_that_is_taken_or_in_the_run_is_refused_before_the_run(tmp_path: Path, collected: list[Path]) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "notes.txt").write_text("mine")
    for place in (tmp_path / "archive", tmp_path / "run", tmp_path / "run" / "archive"):
        refused = ran(tmp_path / "run", f"seal.to=file://{place}", code=1)
        assert "notes.txt is there" in refused.stderr or "the run itself" in refused.stderr
    assert collected == []


def test_run_again_after_it_was_sealed_all_is_found_there(tmp_path: Path, collected: list[Path]) -> None:
    written(tmp_path / "run", {"first": [chat("a", [user("one")])]})
    uri = f"file://{tmp_path}/archive"
    for sent in (6, 0):
        told = json.loads(ran(tmp_path / "run", f"seal.to={uri}", "--json", code=0).stdout)
        assert (told["exit_status"], told["sealed"]["carried"]["sent"], "not_sealed" in told) == (0, sent, False)
    assert CaptureStore(uri).rollout_ids() == ["first"]
    assert len(collected) == 2
