"""The commands without Ray: errors, exit statuses, help, and what is shown."""

from __future__ import annotations

import errno
import io
import json
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType
from rich.text import Text
from typer.testing import CliRunner, Result

from gym_capture import api
from gym_capture.cli import owner as owner_commands
from gym_capture.cli.exits import Exit, command
from gym_capture.cli.main import app
from gym_capture.cli.progress_view import bar_details, progress_line
from gym_capture.cli.run import exit_status
from gym_capture.cli.tables import MAX_NAMED, failed_table, summary_view
from gym_capture.collect.summary import TOKEN_METRICS, FailedRollout, FinishedRollout, Progress, Summary
from gym_capture.config import CaptureConfig, CollectConfig
from gym_capture.directory.locate import Liveness
from gym_capture.storage.names import nemo_gym_file
from gym_capture.storage.posix_files import PosixFiles
from tests.storage.owners import OTHER_CLIENT, Batch, Owner, exchange


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def shown(view: RenderableType) -> str:
    console = Console(width=160, file=io.StringIO())
    with console.capture() as captured:
        console.print(view)
    return captured.get()


# -- errors ----------------------------------------------------------------------------------------------------------


def config_file(folder: Path, **collect: Any) -> Path:
    path = folder / "run.yaml"
    path.write_text(json.dumps({"model_call_capture_dir": str(folder / "captures"), "collect": collect}))
    return path


def test_an_unknown_key_is_a_usage_error_that_names_the_nearest(tmp_path: Path) -> None:
    ran = invoke("run", config_file(tmp_path), "collect.conccurency=3")
    assert ran.exit_code == Exit.USAGE
    assert "error: unknown key collect.conccurency; did you mean collect.concurrency?" in ran.stderr
    assert "Traceback" not in ran.output


def test_with_json_an_error_is_the_document(tmp_path: Path) -> None:
    ran = invoke("run", config_file(tmp_path), "--json")
    assert ran.exit_code == Exit.USAGE
    error = json.loads(ran.stdout)["error"]
    assert error["type"] == "ConfigError"
    assert "set collect.input, collect.output, collect.rollout" in error["message"]


@pytest.mark.parametrize(
    ("collect", "status", "said"),
    [
        ({"rollout": "no_such_module:rollout"}, Exit.USAGE, "there is no module 'no_such_module'"),
        ({"input": "/nowhere/rows.jsonl"}, Exit.USAGE, "cannot read collect.input /nowhere/rows.jsonl"),
        ({"input": "bad.jsonl"}, Exit.USAGE, "bad.jsonl, line 2 is not JSON"),
        ({"output": "notes.txt"}, Exit.ERROR, "which no collector wrote"),
    ],
)
def test_what_is_wrong_is_one_message_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collect: dict[str, Any], status: Exit, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("{}\n")
    (tmp_path / "bad.jsonl").write_text("{}\n{\n")
    (tmp_path / "notes.txt").write_text("my notes")
    usual = {
        "input": "rows.jsonl",
        "output": "out.jsonl",
        "rollout": "gym_capture.examples.scripted_agent:rollout",
    }
    ran = invoke("run", config_file(tmp_path, **{**usual, **collect}))
    assert ran.exit_code == status
    assert said in ran.stderr.replace("\n", "")
    assert "Traceback" not in ran.output
    assert not (tmp_path / "captures").exists()


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    ran = invoke("run", config_file(tmp_path), "--debug")
    assert type(ran.exception).__name__ == "ConfigError"


def test_a_directory_that_is_not_there_is_an_error_of_each_command(tmp_path: Path) -> None:
    absent = tmp_path / "none"
    for ran in (invoke("verify", absent), invoke("status", "--dir", absent), invoke("stop", "--dir", absent)):
        assert ran.exit_code == Exit.ERROR
        assert "does not exist" in ran.stderr


@pytest.mark.parametrize(
    ("encoding", "errors"), [("utf-8", "strict"), ("ascii", "strict"), ("utf-8", "surrogateescape")]
)
def test_what_a_stream_cannot_print_is_escaped(monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str) -> None:
    failed = FailedRollout("0-0", "ValueError", "lone \ud800", 1)
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding, errors) for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    with command(as_json=False, debug=False) as screen:
        screen.out.print(failed_table([failed]))
        screen.err.print(Text("lone \udcff"))
        logging.getLogger("gym_capture").warning("also lone \ud801")
    for stream in streams.values():
        stream.seek(0)
    told = {name: stream.read() for name, stream in streams.items()}
    assert "ValueError: lone \\ud800" in told["stdout"]
    assert "lone \\udcff" in told["stderr"]
    assert "also lone \\ud801" in told["stderr"]


# -- a directory at rest ---------------------------------------------------------------------------------------------


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    """One rollout with two calls, and one with an open claim."""
    directory = tmp_path / "captures"
    directory.mkdir(mode=0o700)
    owner = Owner(PosixFiles(directory))
    batch = Batch().commit("0-0", exchange("call-1", "flip me")).commit("0-0", exchange("call-2")).claim("1-0", 1)
    owner.send(batch, 1)
    owner.stop()
    return directory


@pytest.mark.parametrize("words", [("verify",), ("status", "--dir")])
def test_a_directory_without_any_capture_is_refused_and_not_called_sound(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    ran = invoke(*words, tmp_path)
    assert ran.exit_code == Exit.ERROR
    assert "is no capture directory" in ran.stderr
    (tmp_path / "1-0.capture.jsonl").write_text("")
    assert invoke(*words, tmp_path).exit_code == 0, "a NeMo Gym directory has no marker"


def test_verify_of_a_sound_directory(captures: Path) -> None:
    ran = invoke("verify", captures, "--json")
    found = json.loads(ran.stdout)
    assert ran.exit_code == Exit.OK
    assert (found["sound"], found["rollouts"], found["calls"], found["damage"]) == (True, 2, 2, [])
    assert found["outstanding"] == {"1-0": 1}
    assert "sound: everything that was synced can be read" in invoke("verify", captures).stdout


def test_verify_of_a_flipped_payload_bit_names_the_exchange(captures: Path) -> None:
    (segment,) = captures.glob("segment-*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"flip me")] ^= 1
    segment.write_bytes(data)
    ran = invoke("verify", captures, "--json")
    found = json.loads(ran.stdout)
    assert ran.exit_code == Exit.DAMAGE
    assert found["sound"] is False
    (damage,) = found["damage"]
    assert (damage["rollout_id"], damage["call_index"]) == ("0-0", 0)
    assert "DAMAGED" in invoke("verify", captures).stdout


def delete(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("restarted", [False, True], ids=["at rest", "restarted since"])
@pytest.mark.parametrize("damage", [delete, empty, halve, zero], ids=lambda damage: damage.__name__)
def test_verify_of_a_stopped_log_whose_end_is_gone_is_damage(
    captures: Path, damage: Callable[[Path], None], restarted: bool
) -> None:
    (segment,) = captures.glob("segment-*.log")
    damage(segment)
    if restarted:
        owner = Owner(PosixFiles(captures), "next")
        owner.send(Batch().commit("0-0", exchange("call-3")), 1, OTHER_CLIENT)
        owner.stop()
    ran = invoke("verify", captures, "--json")
    found = json.loads(ran.stdout)
    assert (ran.exit_code, found["sound"]) == (Exit.DAMAGE, False)
    assert segment.name in [each.get("segment") for each in found["damage"]]
    assert ("0-0" in found["incomplete"]) == (restarted or damage is halve)


def test_verify_counts_damaged_lines_of_nemo_gyms_files(captures: Path) -> None:
    lines = [json.dumps(exchange("call-1")), "null", "{bad"]
    (captures / "7-0.capture.jsonl").write_text("\n".join(lines) + "\n")
    ran = invoke("verify", captures, "--json")
    found = json.loads(ran.stdout)
    assert (ran.exit_code, found["sound"], found["calls"]) == (Exit.DAMAGE, False, 5)
    assert found["damage"] == [{"what": "lines", "rollout_id": "7-0", "file": "7-0.capture.jsonl", "count": 2}]


def test_after_a_clean_stop_and_a_restart_nothing_counts_as_ignored(captures: Path) -> None:
    Owner(PosixFiles(captures), "next").stop()
    found = json.loads(invoke("verify", captures, "--json").stdout)
    assert (found["sound"], found["ignored_bytes"], found["tears"]) == (True, 0, [])
    assert "ignored" not in json.loads(invoke("status", "--dir", captures, "--json").stdout)["log"]


def test_status_of_a_directory_at_rest_says_how_its_last_owner_ended(
    captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def last() -> Any:
        return json.loads(invoke("status", "--dir", captures, "--json").stdout)["last_owner"]

    assert last() == {"epoch": 1, "ended": "stopped"}
    text = invoke("status", "--dir", captures).stdout
    assert "last_owner.epoch" in text
    assert "stopped" in text
    (captures / "beat-00000001").write_bytes(b"%020d\n" % 7)
    monkeypatch.setattr("gym_capture.cli.owner.liveness", lambda _: Liveness.AT_REST)
    assert last() == {"epoch": 1, "ended": "died"}
    (captures / "OWNER").unlink()
    assert last() is None


def test_status_without_an_owner_says_what_the_directory_holds(captures: Path) -> None:
    ran = invoke("status", "--dir", captures, "--json")
    assert ran.exit_code == Exit.OK
    found = json.loads(ran.stdout)
    assert (found["owner"], found["rollouts"], found["outstanding"]) == ("none", 2, 1)


def test_status_of_nemo_gyms_files_says_how_many_there_are_and_of_no_log(tmp_path: Path) -> None:
    for name in ("7-0", "7-1"):
        (tmp_path / nemo_gym_file(name)).write_text(json.dumps(exchange("a")) + "\n")
    found = json.loads(invoke("status", tmp_path, "--json").stdout)
    assert (found["nemo_gym_files"], found["log"], found["sealed"], found["rollouts"]) == (2, None, [], 2)
    lines = [line.split() for line in invoke("status", tmp_path).stdout.splitlines()]
    assert ["nemo_gym_files", "2"] in lines
    assert not {"log", "sealed"} & {line[0] for line in lines}


@pytest.mark.parametrize("word", ["status", "verify", "stop"])
def test_a_directory_is_given_as_an_argument_or_an_option(captures: Path, tmp_path: Path, word: str) -> None:
    plain, option = invoke(word, captures, "--json"), invoke(word, "--dir", captures, "--json")
    assert (plain.exit_code, option.exit_code) == (Exit.OK, Exit.OK)
    assert json.loads(plain.stdout) == json.loads(option.stdout)
    assert invoke(word, captures, "--dir", captures).exit_code == Exit.OK
    both = invoke(word, captures, "--dir", tmp_path)
    assert both.exit_code == Exit.USAGE
    assert f"two directories are given, {captures} and {tmp_path}" in both.stderr


@pytest.mark.parametrize("words", [("status",), ("sql", "select 1 from calls"), ("verify",)], ids=" ".join)
def test_a_file_that_cannot_be_read_is_an_error_of_each_command(captures: Path, words: tuple[str, ...]) -> None:
    (captures / "segment-00000001-00000001.log").mkdir()  # reading it fails, as a broken disk does
    ran = invoke(*words, captures)
    assert (ran.exit_code, isinstance(ran.exception, SystemExit)) == (Exit.ERROR, True)
    assert "the capture cannot be read" in ran.stderr
    assert json.loads(invoke(*words, captures, "--json").stdout)["error"]["type"] == "CaptureDirectoryError"


def test_stop_of_a_directory_that_cannot_be_read_is_an_error(captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Path) -> Liveness:
        raise OSError("disk")

    monkeypatch.setattr("gym_capture.cli.owner.liveness", broken)
    ran = invoke("stop", captures, "--json")
    assert json.loads(ran.stdout)["error"]["message"].startswith("the capture cannot be read (disk)")
    assert ran.exit_code == Exit.ERROR


def test_verify_without_a_directory_says_how_to_give_one() -> None:
    ran = invoke("verify")
    assert ran.exit_code == Exit.USAGE
    assert "give it as DIR or --dir DIR" in ran.stderr


@pytest.mark.parametrize("word", ["status", "stop"])
@pytest.mark.parametrize(
    ("there", "said"),
    [([], "has no live owner"), (["a", "b"], "has several live owners (a, b)")],
)
def test_without_a_directory_or_a_name_the_options_are_named(
    monkeypatch: pytest.MonkeyPatch, word: str, there: list[str], said: str
) -> None:
    monkeypatch.delenv(api.DIRECTORY_VARIABLE, raising=False)
    monkeypatch.delenv(api.NAME_VARIABLE, raising=False)
    monkeypatch.setattr(owner_commands, "initialise_ray", lambda config: None)
    monkeypatch.setattr(api, "ray_is_initialised", lambda: True)
    monkeypatch.setattr(api, "named_actors", lambda namespace: there)
    ran = invoke(word, "--namespace", "space")
    assert ran.exit_code == Exit.ERROR
    assert f"namespace space {said}" in ran.stderr
    assert "give --dir or --name" in ran.stderr
    assert "capture_dir" not in ran.stderr


@pytest.mark.parametrize("word", ["status", "stop"])
def test_where_no_ray_answers_the_way_without_it_is_named(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError("nobody is there")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", refuse)
    ran = invoke(word, "--name", "nothing", "--address", "127.0.0.1:1")
    assert ran.exit_code == Exit.ERROR
    assert "no Ray cluster at 127.0.0.1:1 (nobody is there). Give --dir" in ran.stderr
    assert "ray.address" not in ran.stderr


def test_the_directory_of_the_environment_needs_no_ray(captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(api.DIRECTORY_VARIABLE, str(captures))
    ran = invoke("status", "--json")
    assert ran.exit_code == Exit.OK
    assert json.loads(ran.stdout)["directory"] == str(captures)
    assert json.loads(invoke("verify", "--json").stdout)["calls"] == 2


def test_version_names_what_it_stands_on() -> None:
    found = json.loads(invoke("version", "--json").stdout)
    assert found.keys() == {"gym-capture", "ray", "python"}
    assert f"gym-capture {found['gym-capture']}" in invoke("version").stdout


@pytest.mark.parametrize("word", ["run", "status", "verify", "stop", "version"])
def test_help_of_each_command_shows_how_to_call_it(word: str) -> None:
    ran = invoke(word, "--help")
    assert ran.exit_code == 0
    assert "--json" in ran.stdout
    assert word == "version" or f"gym-capture {word} " in ran.stdout


# -- what a run's end means ------------------------------------------------------------------------------------------


def finished(number: int, *gaps: tuple[str, str | None]) -> FinishedRollout:
    return FinishedRollout(f"{number}-0", 3, 1, (100, 20, 5, 50), gaps)


LOST = ("model_call_capture_incomplete", "lost=1")
FAILED = FailedRollout("9-0-a1", "ValueError", "bad luck", 10)


def summary_of(**fields: Any) -> Summary:
    return Summary(Path("/r/out.jsonl"), Path("/r/out.failures.jsonl"), Path("/r/captures"), earlier=0, **fields)


@pytest.mark.parametrize(
    ("fields", "require_complete", "caught", "status"),
    [
        ({"total": 1, "finished": [finished(0)]}, True, None, Exit.OK),
        ({"total": 1, "finished": [finished(0, LOST)]}, False, None, Exit.OK),
        ({"total": 1, "finished": [finished(0, LOST)]}, True, None, Exit.EVIDENCE_MISSING),
        ({"total": 2, "finished": [finished(0, LOST)], "failed": [FAILED]}, True, None, Exit.ERROR),
        ({"total": 2, "finished": [finished(0)], "interrupted": True}, True, signal.SIGINT, Exit.INTERRUPTED),
        ({"total": 2, "finished": [finished(0)], "interrupted": True}, False, signal.SIGTERM, Exit.TERMINATED),
        ({"total": 1, "finished": [finished(0)], "interrupted": True}, False, signal.SIGINT, Exit.OK),
    ],
)
def test_exit_status(
    fields: dict[str, Any], require_complete: bool, caught: signal.Signals | None, status: Exit
) -> None:
    config = CaptureConfig(collect=CollectConfig(require_complete=require_complete))
    assert exit_status(summary_of(**fields), config, caught) == status


def test_the_summary_names_rollouts_with_gaps_and_says_how_many_more() -> None:
    many = [finished(number, LOST) for number in range(MAX_NAMED + 5)]
    summary = summary_of(total=MAX_NAMED + 7, finished=[*many, finished(99)], failed=[FAILED], failed_attempts=4)
    text = shown(summary_view(summary))
    assert "model_call_capture_incomplete (lost=1)" in text
    assert f"{MAX_NAMED - 1}-0" in text
    assert f"{MAX_NAMED}-0" not in text
    assert "and 5 more; --json names them all" in text
    assert "9-0-a1" in text
    assert "ValueError: bad luck" in text
    assert "/r/out.failures.jsonl" in text
    assert "0.0 s (the start of Ray not counted)" in text
    plain = summary.plain()
    assert len(plain["incomplete"]) == MAX_NAMED + 5
    assert plain["incomplete"][0]["gaps"] == [{"code": LOST[0], "detail": LOST[1]}]
    assert (plain["calls"], plain["tokens_in"], plain["cached_tokens"]) == (78, 2600, 1300)


@pytest.mark.parametrize(
    ("tokens", "sums", "shown_as"),
    [
        ([(None, None, None, None)], [None, None, None, None], "-"),
        ([], [None, None, None, None], "-"),
        ([(1200, 30, None, None), (None, 1, None, None)], [1200, 31, None, None], "1,200 in, 31 out"),
        ([(10, 3, None, 0), (5, None, 2, None)], [15, 3, 2, 0], "15 in (0 cached), 3 out (2 reasoning)"),
        ([(None, 3, None, 4)], [None, 3, None, 4], "- in (4 cached), 3 out"),
    ],
)
def test_tokens_that_no_record_knows_are_unknown_and_not_none_at_all(
    tokens: list[tuple[int | None, ...]], sums: list[int | None], shown_as: str
) -> None:
    rollouts = [FinishedRollout(f"{number}-0", 1, 0, each, ()) for number, each in enumerate(tokens)]
    summary = summary_of(total=len(rollouts), finished=rollouts)
    plain = summary.plain()
    assert [plain[name] for name in TOKEN_METRICS] == sums
    (line,) = [line for line in shown(summary_view(summary)).splitlines() if line.startswith("tokens ")]
    assert line.removeprefix("tokens ").strip() == shown_as


def test_progress_in_one_line() -> None:
    counters = Progress(rollouts=50, earlier=10, calls_now=311, outstanding=6, with_gaps=2)
    assert bar_details(counters, 4.0) == "starting"
    counters.started_at, counters.finished, counters.running = 100.0, 20, 8
    assert progress_line(counters, 104.0) == ("30/50 finished, 8 running, 5.0/s, 311 calls, 6 claims open, 2 with gaps")
    counters.failed_attempts, counters.failed = 3, 1
    assert progress_line(counters, 104.0).endswith("2 with gaps, 3 failed attempts, 1 given up")
    assert bar_details(counters, 104.0) == "5.0/s 311 calls 6 open 2 gaps 3 failed"


# -- verify --repair -------------------------------------------------------------------------------------------------


def test_a_repair_wants_its_directory_named(captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(api.DIRECTORY_VARIABLE, str(captures))
    assert invoke("verify").exit_code == Exit.OK
    ran = invoke("verify", "--repair")
    assert ran.exit_code == Exit.USAGE
    assert "which directory is to be repaired? Nothing was changed" in ran.stderr


def test_a_repair_that_the_disk_refuses_does_not_say_that_nothing_was_changed(
    captures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gym_capture.cli.verification.repaired", refuse)
    ran = invoke("verify", captures, "--repair")
    assert ran.exit_code == Exit.ERROR
    assert "repairing" in ran.stderr
    assert "No space left on device). Nothing that can be read was removed" in ran.stderr
    assert "Nothing was changed" not in ran.stderr


def test_verify_repair_puts_a_damaged_head_aside_and_says_what_is_lost(captures: Path) -> None:
    [segment] = captures.glob("segment-*.log")
    data = bytearray(segment.read_bytes())
    data[data.rindex(b"\xf7GCF") + 5] ^= 0xFF  # the closing seal: nothing is lost with it
    segment.write_bytes(data)
    (captures / "RUN").write_text("{")
    before = json.loads(invoke("verify", captures, "--json").stdout)
    assert {each["what"] for each in before["damage"]} >= {"bytes", "file"}
    ran = invoke("verify", captures, "--repair", "--json")
    found = json.loads(ran.stdout)
    assert found["repair"]["files"] == ["RUN"]
    assert found["repair"]["segments"] == [segment.name]
    assert sorted(found["repair"]["quarantined"]) == ["quarantine/RUN.0", f"quarantine/{segment.name}.0"]
    assert (captures / "quarantine" / f"{segment.name}.0").read_bytes() == bytes(data)
    assert [each["segment"] for each in found["quarantined"]] == [segment.name]
    assert (found["sound"], ran.exit_code, found["damage"]) == (True, Exit.OK, [])
    again = json.loads(invoke("verify", "--repair", captures, "--json").stdout)
    assert again["repair"] == {"epoch": None, "segments": [], "files": [], "quarantined": []}
    assert "repaired" in invoke("verify", "--repair", captures).stdout
