"""`ls`, `show`, `stats`, `tail`, `diff` and `check`: what they print, how they end, on every kind of directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gym_capture.cli import pulse
from gym_capture.cli.exits import Exit
from gym_capture.cli.main import app
from gym_capture.storage.names import nemo_gym_file
from gym_capture.storage.posix_files import PosixFiles
from tests.reading.calls import assistant, chat, flip, user, written
from tests.storage.owners import OTHER_CLIENT, Batch, Owner

HOSTILE = "\x1b]0;owned\x07 [bold]x[/bold] \u202etxt\0"
LOOKS: list[tuple[str, ...]] = [
    ("ls",),
    ("ls", "--gaps"),
    ("show", "7-0"),
    ("stats",),
    ("diff", "7-0", "7-1"),
    ("check",),
]


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def look(words: tuple[str, ...], directory: Path, *more: str) -> Result:
    return invoke(words[0], "--dir", directory, *words[1:], *more)


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    """Two rollouts with two calls, hostile in every text."""
    directory = tmp_path / "captures"
    first = [user(f"flip me {HOSTILE}")]
    call = {"id": HOSTILE, "function": {"name": HOSTILE, "arguments": HOSTILE}}
    answer = {"role": "assistant", "content": HOSTILE, "reasoning": HOSTILE, "tool_calls": [call]}
    rollouts = {}
    for name in ("7-0", "7-1"):
        one = chat(f"{name} {HOSTILE}", first, answer)
        one["response"]["model"] = HOSTILE
        one["response"]["choices"][0]["finish_reason"] = HOSTILE
        two = chat(f"b{name}", [*first, answer, user(name)], at=2, error_category=HOSTILE)
        two["request"][HOSTILE] = name
        rollouts[name] = [one, two]
    written(directory, rollouts)
    return directory


def beats(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> None:
    """Let a live command look again after each of these, and end after the last."""
    left = list(steps)

    def wait(seconds: float) -> bool:
        assert seconds == 1.0
        if not left:
            return False
        left.pop(0)()
        return True

    monkeypatch.setattr(pulse, "wait", wait)


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_no_text_of_a_payload_steers_the_terminal(captures: Path, words: tuple[str, ...]) -> None:
    ran = look(words, captures)
    assert ran.exit_code == Exit.OK, ran.output
    assert not [each for each in ran.output if each in "\x1b\x07\0\u202e"]
    assert "\\x1b]0;owned\\x07 [bold]x[/bold]" in ran.stdout or words[0] == "check" or "--gaps" in words


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_with_json_stdout_is_one_document(captures: Path, words: tuple[str, ...]) -> None:
    ran = look(words, captures, "--json")
    assert ran.exit_code == Exit.OK
    assert isinstance(json.loads(ran.stdout), dict)
    assert ran.stdout.isascii()


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_a_damaged_log_names_the_file_and_shows_the_rest(captures: Path, words: tuple[str, ...]) -> None:
    (segment,) = captures.glob("segment-*.log")
    with segment.open("r+b") as log:
        log.write(b"?" * 8)  # the header: its frames are read all the same
    ran = look(words, captures)
    assert ran.exit_code == (Exit.DAMAGE if words[0] == "check" else Exit.OK)
    assert f"damaged: the header of {segment.name} cannot be read" in ran.stderr
    if words[0] == "check":
        assert ran.stdout.startswith("DAMAGED: bytes that had been synced cannot be read; the rollouts that are known")
    assert "7-0" in ran.stdout or words[0] in ("stats", "check") or "--gaps" in words


def test_a_damaged_payload_is_shown_as_such(captures: Path) -> None:
    flip(captures, b"flip me")
    ran = look(("show", "7-0"), captures)
    assert "DAMAGED: this call's payloads cannot be read" in ran.stdout
    assert "7-0" in ran.stdout


def test_of_calls_that_cannot_be_read_nobody_is_told_that_none_failed(tmp_path: Path) -> None:
    written(tmp_path, {"7-0": [chat("a", [user("hi")], error_category="rate_limit")]})
    flip(tmp_path, b"rate_limit")
    assert invoke("ls", tmp_path).stdout.splitlines()[1].split()[:4] == ["7-0", "incomplete", "1", "-"]
    assert "calls               1 (- failed, 1 damaged)" in invoke("stats", tmp_path).stdout
    assert "1, - of them failed" in invoke("show", tmp_path, "7-0").stdout
    ran = invoke("check", tmp_path)
    assert ran.exit_code == Exit.EVIDENCE_MISSING
    assert "calls     1 (1 damaged)" in ran.stdout


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_what_is_no_capture_directory_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    ran = look(words, tmp_path)
    assert ran.exit_code == Exit.ERROR
    assert "is no capture directory" in ran.stderr
    assert "does not exist" in look(words, tmp_path / "none").stderr


def test_ls_pages_filters_and_goes_on(captures: Path) -> None:
    ran = invoke("ls", captures, "--limit", "1", "--sort", "id", "--descending")
    assert "7-1" in ran.stdout
    assert "1 to 1 of 2 rollouts; --offset 1 goes on" in ran.stdout
    found = json.loads(invoke("ls", captures, "--json", "--offset", "1").stdout)
    assert ([row["rollout_id"] for row in found["rows"]], found["matching"]) == (["7-1"], 2)
    assert "none of 0 rollouts that fit, 2 known" in invoke("ls", captures, "--text", "nobody").stdout
    wrong = invoke("ls", captures, "--sort", "colour")
    assert wrong.exit_code == Exit.USAGE
    assert "--sort 'colour' is not known; give one of id, calls" in wrong.stderr


def test_live_ls_shows_what_came_meanwhile(captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def more() -> None:
        owner = Owner(PosixFiles(captures))
        owner.send(Batch().claim("8-0", 1), 1, OTHER_CLIENT)
        owner.stop()

    beats(monkeypatch, more)
    pages = [json.loads(line) for line in invoke("ls", captures, "--live", "--json").stdout.splitlines()]
    assert [page["known"] for page in pages] == [2, 3]
    assert pages[1]["rows"][2]["status"] == "open"
    beats(monkeypatch)
    assert invoke("ls", captures, "--live").stdout.count("1 to 3 of 3 rollouts") == 1


def test_tail_shows_the_last_calls_and_then_new_ones(captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def more() -> None:
        owner = Owner(PosixFiles(captures))
        owner.send(Batch().commit("8-0", chat("new", [user("x")], at=50)), 1, OTHER_CLIENT)
        owner.stop()

    beats(monkeypatch, more)
    lines = [json.loads(each) for each in invoke("tail", captures, "--last", "1", "--json").stdout.splitlines()]
    assert [(each["rollout_id"], each["call"]["call_index"]) for each in lines] == [("7-1", 1), ("8-0", 0)]
    beats(monkeypatch)
    shown = invoke("tail", captures, "--text", "8-").stdout
    assert (
        shown == "1970-01-01 00:17:31  8-0 #0                stop          1.0 s (first token 100 ms)  in 10 out 2  m\n"
    )


@pytest.mark.parametrize("words", [("ls", "--live"), ("tail",)], ids=" ".join)
def test_damage_that_is_met_while_looking_on_is_said_once(
    captures: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def damaged() -> None:
        owner = Owner(PosixFiles(captures))
        for number, name in enumerate(("8-0", "8-1"), 1):
            owner.send(Batch().commit(name, chat(name, [user("x")], at=50)), number, OTHER_CLIENT)
        owner.stop()
        flip(captures, b"8-0")

    beats(monkeypatch, lambda: None, damaged, lambda: None)
    ran = look(words, captures)
    assert (ran.exit_code, ran.stderr.count("damaged: ")) == (Exit.OK, 1), ran.output
    assert "8-1" in ran.stdout
    beats(monkeypatch, lambda: None)
    assert look(words, captures, "--json").stderr.count("damaged: ") == 1, "also what was there from the start"


def test_ctrl_c_ends_what_is_live(captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    for words in (("ls", "--live"), ("tail",)):
        beats(monkeypatch, stop)
        assert look(words, captures).exit_code == Exit.OK


def test_show_tells_what_goes_on_from_where(tmp_path: Path) -> None:
    captures = tmp_path / "captures"
    calls = [
        chat("a", [user("one")]),
        chat("b", [user("one"), assistant("answer a"), user("two")], at=2),
        chat("c", [user("one")], at=2.5),
        chat("d", [user("line\n" * 40)], at=9, status_code=429, error_category="rate_limit", response=None),
    ]
    written(captures, {"r": calls}, Batch().claim("r", 1))
    shown = invoke("show", captures, "r").stdout
    assert "gaps      pending (count=1)" in shown
    assert shown.count("answer a") == 1, "an answer that is sent back is not told again"
    for said in (
        "ran beside call 2",
        "the same history as call 0, 1 messages",
        "failed: rate_limit",
        "… (29 more lines)",
        "claim of 2023-11-14 22:13:20  without an id",
    ):
        assert said in shown, said
    assert "more lines" not in invoke("show", captures, "r", "--full").stdout


def test_an_unknown_rollout_names_the_nearest(captures: Path) -> None:
    ran = invoke("show", captures, "7-2")
    assert ran.exit_code == Exit.ERROR
    assert "has no rollout 7-2: did you mean" in ran.stderr
    assert "7-0" in ran.stderr
    error = json.loads(invoke("diff", captures, "7-0", "\x1b", "--json").stdout)["error"]
    assert error["type"] == "RolloutNotFound"
    assert "has no rollout \\x1b: it has 2 others" in error["message"]


@pytest.mark.parametrize("arguments", [("show",), ("show", "a", "b", "c"), ("diff", "a"), ("diff", "a", "b", "c", "d")])
def test_too_few_or_many_words_are_a_usage_error(arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).exit_code == Exit.USAGE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "DIR"), "which rollout?"),
        (("diff", "DIR"), "diff takes two rollouts"),
        (("diff", "DIR", "7-0"), "diff takes two rollouts"),
        (("sql", "DIR"), "which query?"),
        (("sql", "--dir", "DIR"), "which query?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_where_the_directory_is_given_what_else_is_wanted_is_named(
    captures: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    for place in (str(captures), "s3://bucket/runs/7"):
        ran = invoke(*(place if word == "DIR" else word for word in words))
        assert ran.exit_code == Exit.USAGE
        assert f"error: {said}" in ran.stderr
        assert "which directory" not in ran.stderr
        assert words[0] == "sql" or f"`gym-capture ls {place}` lists them" in ran.stderr
        assert words[0] != "sql" or "--question" in ran.stderr
    # Where the environment names a directory, a name that could be an id is one.
    monkeypatch.setenv("GYM_CAPTURE_DIR", str(captures))
    monkeypatch.chdir(captures.parent)
    assert "has no rollout captures" in invoke("show", "captures").stderr
    assert "which rollout?" in invoke("show", captures).stderr


def test_a_password_in_a_uri_is_not_shown_where_more_is_wanted() -> None:
    ran = invoke("show", "s3://me:hidden@bucket/runs/7")
    assert ("hidden" in ran.output, "s3://me:***@bucket" in ran.stderr) == (False, True)


def test_without_opentelemetry_spans_says_what_to_install(captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "gym_capture.integrations.otel", raising=False)
    ran = invoke("spans", captures)
    assert ran.exit_code == Exit.ERROR
    assert "Nothing was sent or changed; pip install 'gym-capture[otel]' (from a checkout: pip install '.[otel]')" in (
        ran.stderr
    )
    assert "sys.modules" not in ran.stderr


def test_the_directory_may_come_from_the_environment(captures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "set GYM_CAPTURE_DIR" in invoke("ls").stderr
    monkeypatch.setenv("GYM_CAPTURE_DIR", str(captures))
    assert invoke("show", "7-0").exit_code == invoke("ls").exit_code == Exit.OK


def test_diff_within_and_across_directories(captures: Path, tmp_path: Path) -> None:
    found = json.loads(invoke("diff", captures, "7-0", "7-1", "--json").stdout)
    assert (found["same"], found["parts_at"]) == (False, 1)
    other = tmp_path / "other"
    written(other, {"7-0": [chat("a", [user("else")])]})
    shown = invoke("diff", captures, "7-0", "7-0", "--other-dir", other).stdout
    assert "differ from call 0 on" in shown
    assert "only in 7-0" in shown
    assert "same: every request and every answer" in invoke("diff", captures, "7-0", "7-0").stdout


def test_check_ends_as_the_evidence_is(captures: Path, tmp_path: Path) -> None:
    assert "healthy: every rollout is observed" in invoke("check", captures).stdout
    expected = tmp_path / "rows.jsonl"
    expected.write_text(json.dumps({"_ng_task_index": 9, "_ng_rollout_index": 0}) + "\n")
    ran = invoke("check", captures, "--expected", expected)
    assert ran.exit_code == Exit.EVIDENCE_MISSING
    assert "9-0      unobserved" in ran.stdout
    assert "not expected  2 (7-0, 7-1)" in ran.stdout
    empty = tmp_path / "empty"
    written(empty, {})
    ran = invoke("check", empty)
    assert ran.exit_code == Exit.EVIDENCE_MISSING
    assert "EMPTY: no rollout is known here; nothing was captured" in ran.stdout
    assert invoke("check", captures, "--expected", tmp_path / "none").exit_code == Exit.USAGE


def test_nemo_gyms_files_are_looked_at_where_they_lie(tmp_path: Path) -> None:
    for name in ("7-0", "7-1"):
        (tmp_path / nemo_gym_file(name)).write_text(json.dumps(chat(name, [user("hello there")])) + "\n")
    for words in LOOKS:
        assert look(words, tmp_path).exit_code == Exit.OK
    assert "hello there" in look(("show", "7-0"), tmp_path).stdout


def test_a_file_whose_name_is_no_rollouts_hides_nobody(tmp_path: Path) -> None:
    (tmp_path / nemo_gym_file("7-0")).write_text(json.dumps(chat("a", [])) + "\n")
    (tmp_path / nemo_gym_file("-rf \x1b[31m")).write_text("notes")
    for words in ("ls", "stats", "check", "verify"):
        ran = invoke(words, tmp_path)
        assert (ran.exit_code, "\x1b" in ran.output) == (Exit.OK, False), ran.output


def test_every_command_counts_a_rollout_that_was_begun_and_captured_nothing(tmp_path: Path) -> None:
    written(tmp_path, {"7-0": [chat("a", [user("hi")])]}, Batch().clear("7-1", "retry"))
    told = {words: json.loads(invoke(*words.split(), tmp_path, "--json").stdout) for words in ("verify", "status")}
    assert {words: found["rollouts"] for words, found in told.items()} == {"verify": 2, "status": 2}
    assert json.loads(invoke("ls", tmp_path, "--json").stdout)["known"] == 2


def test_everything_works_while_an_owner_is_live(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    owner = Owner(PosixFiles(tmp_path))
    owner.send(Batch().commit("7-0", chat("a", [])).commit("7-1", chat("b", [])).claim("7-1", 1), 1)
    for words in LOOKS:
        assert look(words, tmp_path).exit_code == (Exit.EVIDENCE_MISSING if words[0] == "check" else Exit.OK)
    assert "1 open" in look(("check",), tmp_path).stdout
    owner.stop()


def test_a_shell_completes_rollout_ids(captures: Path) -> None:
    def completed(*words: str) -> list[str]:
        environment = {
            "_GYM_CAPTURE_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("gym-capture", *words)),
            "COMP_CWORD": str(len(words)),
        }
        ran: Any = CliRunner().invoke(app, [], env=environment, prog_name="gym-capture")
        return list(ran.stdout.split())

    assert completed("show", str(captures), "7-") == ["7-0", "7-1"]
    assert completed("diff", "--dir", str(captures), "7-0", "7-1") == ["7-1"]
    assert completed("show", str(captures / "none"), "7-") == []
