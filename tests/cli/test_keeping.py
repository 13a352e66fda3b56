"""`seal` and `prune` on the command line, and every other command on a run that was sealed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gym_capture.cli.main import app
from gym_capture.directory import pruning
from gym_capture.directory.locate import Liveness
from gym_capture.storage import names
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_marker import marker_content
from gym_capture.storage.store import CaptureStore
from tests.reading.calls import chat, user, written
from tests.storage.owners import Batch, Owner, exchange
from tests.storage.sealed.dataset_damage import LOSSES, flip

DAY_S = 86400.0


def ran(*words: Any, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


def document(*words: Any, code: int = 0) -> Any:
    return json.loads(ran(*words, "--json", code=code).stdout)


def small_run(directory: Path) -> CaptureStore:
    calls = [chat("a", [user("one")]), chat("b", [user("one"), user("two")], at=2.0)]
    return written(directory, {"first": calls, "second": [chat("c", [user("three")], at=4.0)]})


LOOKS: list[list[str]] = [
    ["ls", "DIR"],
    ["show", "DIR", "first"],
    ["stats", "DIR"],
    ["diff", "DIR", "first", "second"],
    ["check", "DIR"],
    ["sql", "select rollout_id, count(*) n from calls group by 1 order by 1", "DIR"],
]


def test_a_sealed_run_looks_as_before_and_is_exported_imported_and_tabled(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    store = small_run(directory)
    before = [json.loads(ran(*looked(words, directory), "--json").stdout) for words in LOOKS]
    exchanges = {each: store.read(each) for each in store.rollout_ids()}
    told = document("seal", directory)
    assert told["datasets"] == ["sealed-00000002"]
    assert (told["rollouts"], told["calls"], told["segments"], told["lost"], told["damaged"]) == (2, 3, 1, 0, 0)
    after = [json.loads(ran(*looked(words, directory), "--json").stdout) for words in LOOKS]
    assert without_sizes(after) == without_sizes(before)
    found = document("verify", directory)
    files = list((directory / "sealed-00000002").glob("*.parquet"))
    read = {"folder": "sealed-00000002", "files": 2, "bytes": sum(file.stat().st_size for file in files)}
    assert (found["sound"], found["datasets"]) == (True, [read])
    lines = [line.split() for line in ran("verify", directory).stdout.splitlines()]
    assert ["dataset", "sealed-00000002:", "2", "files,", f"{read['bytes']:,}", "bytes"] in lines
    assert not {"segments", "frames", "parts", "tears", "cuts", "checkpoints"} & {line[0] for line in lines}
    status = document("status", directory)
    assert (status["sealed"], status["log"], status["rollouts"]) == ([read], None, 2)
    lines = [line.split() for line in ran("status", directory).stdout.splitlines()]
    assert ["sealed", "sealed-00000002:", "2", "files,", f"{read['bytes']:,}", "bytes"] in lines
    assert "log" not in {line[0] for line in lines}
    assert document("verify", directory, "--repair")["repair"]["segments"] == []
    assert document("seal", directory)["segments"] == 0
    again = tmp_path / "again"
    assert document("import", directory, again)["calls"] == 3
    restored = CaptureStore(again)
    assert {each: restored.read(each) for each in restored.rollout_ids()} == exchanges
    assert document("export", directory, "--to", tmp_path / "out", "--format", "nemo-gym")["calls"] == 3
    refused = ran("import", again, directory, code=1)
    assert "was sealed" in refused.stderr


def looked(words: list[str], directory: Path) -> list[str]:
    return [str(directory) if word == "DIR" else word for word in words]


def without_sizes(documents: Any) -> Any:
    """What is said of how calls are stored is not the same in a dataset."""
    if isinstance(documents, dict):
        return {key: without_sizes(each) for key, each in documents.items() if "stored" not in key and key != "log"}
    return [without_sizes(each) for each in documents] if isinstance(documents, list) else documents


HARM: dict[str, Callable[[Path], None]] = {"page": partial(flip, group=0, column="record"), **LOSSES}


@pytest.mark.parametrize(
    ("kind", "harm"),
    [("calls", "page"), ("calls", "truncated"), ("calls", "missing"), ("rollouts", "footer"), ("rollouts", "missing")],
)
def test_commands_on_a_sealed_run_with_a_damaged_file_show_the_rest_and_name_it(
    tmp_path: Path, kind: str, harm: str
) -> None:
    directory = tmp_path / "run"
    small_run(directory)
    ran("seal", directory)
    part = next(directory.glob(f"sealed-*/*.{kind}.parquet"))
    HARM[harm](part)
    told = document("verify", directory, code=4)
    assert (told["sound"], told["rollouts"], told["calls"]) == (False, *((2, 3) if kind == "calls" else (None, None)))
    assert [each["file"] for each in told["damage"] if "file" in each] == [str(part.relative_to(directory))]
    assert {each["rollout_id"] for each in told["damage"] if "rollout_id" in each} == {"first", "second"}
    assert "its part has 2 rollouts, 3 calls" in next(each["why"] for each in told["damage"] if "why" in each)
    answers = {
        words: ran(words, directory, *["first"] * (words == "show"), "--json", code=4 if words == "check" else 0)
        for words in ("ls", "show", "stats", "check")
    }
    assert [part.name in each.stderr for each in answers.values()] == [True] * 4
    listed, shown, stats, checked = (json.loads(each.stdout) for each in answers.values())
    assert [(each["rollout_id"], each["calls"], each["status"]) for each in listed["rows"]] == [
        ("first", 2, "incomplete"),
        ("second", 1, "incomplete"),
    ]
    assert [each["damaged"] for each in listed["rows"]] == ([2, 1] if kind == "calls" else [0, 0])
    assert [turn["damaged"] for turn in shown["turns"]] == [kind == "calls"] * 2
    assert shown["status"] == "incomplete"
    assert (stats["calls"], stats["damaged"]) == (3, 3 if kind == "calls" else 0)
    assert (checked["healthy"], checked["damaged"]) == (False, True)
    lines = ran("verify", directory, code=4).stdout.splitlines()
    assert sum("what=" in line for line in lines) == len(told["damage"])
    assert any(f"what=file file=sealed-00000002/{part.name}" in line for line in lines)


def test_a_part_that_is_lost_whole_is_told_by_every_command(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    small_run(directory)
    ran("seal", directory)
    index = ""
    for part in directory.glob("sealed-*/*.parquet"):
        index = part.name if "rollouts" in part.name else index
        part.unlink()
    for words in (["ls"], ["stats"]):
        assert f"{index}, which lists 2 rollouts of 3 calls (2 of these" in ran(*words, directory).stderr
    assert document("check", directory, code=4)["healthy"] is False
    assert "It may lie in a file that is damaged" in ran("show", directory, "first", code=1).stderr
    assert document("verify", directory, code=4)["rollouts"] is None
    refused = ran("export", directory, "--to", tmp_path / "out", "--format", "nemo-gym", code=1)
    assert index in refused.stderr
    assert not (tmp_path / "out").exists()


def test_commands_on_a_sealed_run_without_its_leading_file_say_how_to_make_it_anew(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    small_run(directory)
    before = document("ls", directory)["rows"]
    ran("seal", directory)
    (directory / names.SEALED).unlink()
    for words in LOOKS:
        if words[0] != "sql":
            told = ran(*looked(words, directory), code=4 if words[0] == "check" else 1).stderr
            assert "SEALED, which leads readers there, is gone" in " ".join(told.split())
            assert "gym-capture seal" in told
    assert document("seal", directory)["files_read_back"] == 2
    assert without_sizes(document("ls", directory)["rows"]) == without_sizes(before)


def test_what_keeps_a_run_from_being_sealed_is_said(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    written(directory, {"first": [chat("a", [user("one")])]}, Batch().claim("first", 1))
    refused = ran("seal", directory, code=1)
    assert "1 claims are open" in refused.stderr
    assert "--as-it-is" in refused.stderr
    assert document("seal", directory, "--as-it-is")["lost"] == 1
    document("check", directory, code=3)
    assert CaptureStore(directory).standing("first").reasons == {"lost": 1}
    missing = ran("seal", tmp_path, code=1)
    assert "no RUN file" in missing.stderr


@pytest.mark.parametrize(("option", "safe"), [([], "in the log or sealed"), (["--ahead"], "The log is as it was")])
def test_sealing_that_the_disk_refuses_does_not_say_that_nothing_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str], safe: str
) -> None:
    def full(*_given: Any, **_options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "part")

    small_run(tmp_path / "run")
    monkeypatch.setattr("gym_capture.directory.sealing.seal_at_rest", full)
    monkeypatch.setattr("gym_capture.directory.sealing_ahead.seal_ahead", full)
    monkeypatch.setattr("gym_capture.directory.sealing_ahead.lowest_rank", lambda: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    told = document("seal", tmp_path / "run", *option, code=1)["error"]["message"]
    assert f"in {tmp_path}/run" in told or f"sealing {tmp_path}/run" in told
    assert "failed ([Errno 28] No space left on device: 'part')" in told
    assert safe in told
    assert "Nothing was changed" not in told


def aged(directory: Path, days: float) -> None:
    """A run whose files were all written so many days ago."""
    small_run(directory)
    at = NOW - days * DAY_S
    for path, _, files in os.walk(directory):
        for name in files:
            os.utime(os.path.join(path, name), (at, at))


NOW = 1_000_000_000.0


def chosen(found: pruning.Pruning) -> list[str]:
    return [os.path.basename(each.directory) for each in found.chosen]


def test_runs_are_chosen_by_age_by_run_and_by_size(tmp_path: Path) -> None:
    for name, days in (("old", 40), ("older", 50), ("new", 1)):
        (tmp_path / "deep").mkdir(exist_ok=True)
        aged(tmp_path / "deep" / name, days)
    sizes = {path.name: sum(file.stat().st_size for file in path.iterdir()) for path in (tmp_path / "deep").iterdir()}
    found = pruning.choose(tmp_path, older_than_s=30 * DAY_S, now=NOW)
    assert (chosen(found), found.found, found.found_bytes) == (["older", "old"], 3, sum(sizes.values()))
    assert found.freed_bytes == sizes["old"] + sizes["older"]
    assert chosen(pruning.choose(tmp_path, keep_bytes=sizes["old"] + sizes["new"], now=NOW)) == ["older"]
    assert chosen(pruning.choose(tmp_path, keep_bytes=0, older_than_s=45 * DAY_S, now=NOW)) == ["older"]
    assert chosen(pruning.choose(tmp_path / "deep" / "new", keep_bytes=0, now=NOW)) == ["new"]
    run = json.loads((tmp_path / "deep" / "old" / "RUN").read_text())["run"]
    (tmp_path / "deep" / "old" / "RUN").write_bytes(marker_content(uuid.UUID(hex=4 * "ab" + run[8:])))
    assert chosen(pruning.choose(tmp_path, run="ABABAB")) == ["old"]
    assert chosen(pruning.choose(tmp_path, run="cdcdcd")) == []


def test_nothing_goes_before_it_is_said_and_then_all_of_a_run_does(tmp_path: Path) -> None:
    aged(tmp_path / "run", 40)
    small_run(tmp_path / "kept")
    told = document("prune", tmp_path, "--older-than", "30d")
    assert (told["removed"], [each["directory"] for each in told["runs"]]) == (False, [str(tmp_path / "run")])
    assert "1 of 2 runs would go" in ran("prune", tmp_path, "--older-than", "30d").stdout
    assert CaptureStore(tmp_path / "run").rollout_ids() == ["first", "second"]
    told = document("prune", tmp_path, "--older-than", "30d", "--yes")
    assert (told["removed"], told["freed_bytes"] > 0) == (True, True)
    assert os.listdir(tmp_path) == ["kept"]
    for words in ([], ["--older-than", "soon"], ["--keep", "little"]):
        assert "Nothing was removed" in ran("prune", tmp_path, *words, code=2).stderr


def test_a_sealed_run_goes_whole_and_one_with_files_of_others_stays(tmp_path: Path) -> None:
    for name in ("sealed", "foreign"):
        small_run(tmp_path / name)
    ran("seal", tmp_path / "sealed")
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    told = document("prune", tmp_path, "--keep", "0", "--yes")
    assert [os.path.basename(each["directory"]) for each in told["runs"]] == ["sealed"]
    assert told["kept"][0]["why"] == f"{pruning.FOREIGN}: notes.txt"
    assert os.listdir(tmp_path) == ["foreign"]


@pytest.mark.parametrize(
    "theirs",
    [
        "sealed-00000002/notes.txt",
        "sealed-00000002/more/part-00000001.calls.parquet",
        "quarantine/notes.txt",
        "quarantine/mine/segment-00000001-00000001.log.0",
        "collect.json/x",
        "shard-000",
    ],
)
def test_a_run_stays_whose_own_folders_have_files_of_others(tmp_path: Path, theirs: str) -> None:
    directory = tmp_path / "with spaces"
    small_run(directory)
    ran("seal", directory)
    path = directory / theirs
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    told = document("prune", tmp_path, "--keep", "0", "--yes")
    assert (told["runs"], path.read_text()) == ([], "mine")
    # A shard beside the marker of a run of one is more than another's file: nobody knows whose run it is.
    why = "it cannot be looked at (RUN in" if theirs == "shard-000" else pruning.FOREIGN
    assert told["kept"][0]["why"].startswith(why)
    path.unlink()
    if path.parent.name in ("mine", "more", "collect.json"):
        path.parent.rmdir()
    assert len(document("prune", tmp_path, "--keep", "0", "--yes")["runs"]) == 1


def test_a_repaired_run_goes_with_its_quarantine(tmp_path: Path) -> None:
    small_run(tmp_path / "run")
    files = PosixFiles(tmp_path / "run")
    (segment,) = names.segments_in(files.names())
    files.set_aside(segment.file, "repair-aside")
    (tmp_path / "run" / "quarantine" / "RUN.1.tmp").write_text("")
    assert len(document("prune", tmp_path, "--keep", "0", "--yes")["runs"]) == 1
    assert os.listdir(tmp_path) == []


def test_a_run_that_is_not_named_or_has_copies_stays(tmp_path: Path) -> None:
    small_run(tmp_path / "run")
    for nothing in ("", "-", " ", "RUN"):
        assert "Nothing was removed" in ran("prune", tmp_path, "--run", nothing, "--yes", code=2).stderr
    shutil.copytree(tmp_path / "run", tmp_path / "backup")
    run = json.loads((tmp_path / "run" / "RUN").read_text())["run"]
    assert "copies" in ran("prune", tmp_path, "--run", run, "--yes", code=2).stderr
    assert sorted(os.listdir(tmp_path)) == ["backup", "run"]
    ran("prune", tmp_path / "run", "--run", run, "--yes")
    assert os.listdir(tmp_path) == ["backup"]


def test_what_an_owner_acknowledged_while_a_run_was_measured_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run(tmp_path / "run")
    found = pruning.choose(tmp_path, keep_bytes=0)
    measured = pruning._measured

    def slowly(directory: str) -> pruning.FoundRun:
        result = measured(directory)
        if not (tmp_path / "run" / "epoch-00000002").exists() and (tmp_path / "run").exists():
            owner = Owner(PosixFiles(tmp_path / "run"), "actor-2")
            owner.send(Batch().commit("first", exchange("late")), 9)
        return result

    monkeypatch.setattr(pruning, "_measured", slowly)
    again = pruning.prune(found)
    assert (again.chosen, [each.why for each in again.kept]) == ([], ["it was written to meanwhile"])
    assert len(CaptureStore(tmp_path / "run").read("first")) == 3


def test_a_live_run_stays_and_one_that_is_written_to_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_run(tmp_path / "run")
    found = pruning.choose(tmp_path, keep_bytes=0)
    owner = Owner(PosixFiles(tmp_path / "run"), "actor-2")
    owner.send(Batch().commit("first", exchange("late")), 9)
    owner.stop()
    again = pruning.prune(found)
    assert (again.chosen, [each.why for each in again.kept]) == ([], ["it was written to meanwhile"])
    monkeypatch.setattr(pruning, "liveness", lambda _directory: Liveness.BEATING)
    live = pruning.prune(pruning.choose(tmp_path, keep_bytes=0))
    assert (live.chosen, [each.why for each in live.kept]) == ([], [pruning.LIVE])
    assert len(CaptureStore(tmp_path / "run").read("first")) == 3


def test_what_is_left_of_a_killed_pruning_is_no_run_and_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run(tmp_path / "run")
    small_run(tmp_path / "other")

    def killed(_path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            pruning.prune(pruning.choose(tmp_path / "run", keep_bytes=0))
    assert not (tmp_path / "run").exists()
    found = pruning.choose(tmp_path, older_than_s=DAY_S)
    assert (found.chosen, found.found, len(found.left_over)) == ([], 1, 1)
    pruning.prune(found)
    assert os.listdir(tmp_path) == ["other"]


def test_a_run_goes_whatever_its_name(tmp_path: Path) -> None:
    for name in ("b" * 255, "ä" * 127, os.fsdecode(b"\xff" * 200)):
        small_run(tmp_path / name)
    assert len(document("prune", tmp_path, "--keep", "0", "--yes")["runs"]) == 3
    assert os.listdir(tmp_path) == []


def refusing(call: Callable[..., Any], refused: Callable[..., bool]) -> Callable[..., Any]:
    """A call of the system's that fails where that is wanted."""

    def called(*given: Any) -> Any:
        if refused(*given):
            raise OSError(errno.EACCES, "not permitted", str(given[0]))
        return call(*given)

    return called


def test_what_cannot_be_removed_is_told_with_what_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for days, name in enumerate(("last", "busy", "stuck", "first"), 40):
        aged(tmp_path / name, days)
    old = tmp_path / f".old.pruned-{0:016x}"
    old.mkdir()
    monkeypatch.setattr("os.rename", refusing(os.rename, lambda path, _to: path.endswith("stuck")))
    removed = refusing(shutil.rmtree, lambda path: ".busy.pruned-" in path or path == str(old))
    monkeypatch.setattr("shutil.rmtree", removed)
    result = ran("prune", tmp_path, "--keep", "0", "--yes", "--json", code=1)
    told = json.loads(result.stdout)
    assert [os.path.basename(each["directory"]) for each in told["runs"]] == ["first", "last"]
    assert told["freed_bytes"] == sum(each["size"] for each in told["runs"])
    failed = {os.path.basename(each["directory"]): each["why"] for each in told["failed"]}
    kept = {os.path.basename(each["directory"]): each["why"] for each in told["kept"]}
    assert kept == {name: failed[name] for name in ("stuck", "busy")}
    assert "it cannot be removed" in failed["stuck"]
    assert f"what is left of it is in {tmp_path}/.busy.pruned-" in failed["busy"]
    assert "it cannot be removed" in failed[old.name]
    assert sorted(each.partition("-")[0] for each in os.listdir(tmp_path)) == [".busy.pruned", ".old.pruned", "stuck"]
    again = ran("prune", tmp_path, "--keep", "0", "--yes", code=1)
    assert "0 of 1 runs removed, freed 0" in again.stdout
    assert f"not removed: {tmp_path}/stuck: it cannot be removed" in again.stderr


def test_a_run_that_was_written_to_and_does_not_get_its_name_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run(tmp_path / "run")
    found = pruning.choose(tmp_path, keep_bytes=0)
    renamed = os.rename

    def written_to(path: str, to: str) -> None:
        if ".pruned-" in path:
            raise OSError(errno.ENOTEMPTY, "taken", path)
        (tmp_path / "run" / "beat-00000001").write_text("later")
        renamed(path, to)

    monkeypatch.setattr("os.rename", written_to)
    again = pruning.prune(found)
    (left,) = os.listdir(tmp_path)
    assert again.chosen == []
    assert f"{left} did not get its name back" in again.failed[0].why
    assert "rename it before the next pruning" in again.failed[0].why
    assert CaptureStore(tmp_path / left).rollout_ids() == ["first", "second"]


def test_names_cannot_steer_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # no name is folded
    steering = "\x1b[2Jx"
    small_run(tmp_path / f"run{steering}")
    small_run(tmp_path / f"foreign{steering}")
    (tmp_path / f"foreign{steering}" / steering).write_text("mine")
    shown = ran("prune", tmp_path, "--keep", "0").output
    assert "\x1b" not in shown
    assert shown.count("\\x1b[2Jx") == 3


def test_names_of_a_run_are_told_from_those_of_others(tmp_path: Path) -> None:
    small_run(tmp_path / "run")
    assert all(names.is_ours(each) for each in os.listdir(tmp_path / "run"))
    theirs = ["r.capture.jsonl", "notes", "sealed", "epoch-1x", ".hidden", "segment-1.log"]
    assert [each for each in theirs if names.is_ours(each)] == []
