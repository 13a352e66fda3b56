"""What the documents say is so: snippets run, keys, errors, commands, targets and tests that they name are there."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from gym_capture import errors
from gym_capture.cli.exits import Exit
from gym_capture.cli.main import app
from gym_capture.config import CaptureConfig, all_keys
from gym_capture.model import gaps, rollout_state
from tests.packaging.test_docs import ROOT, SNIPPET, documents
from tests.ray_cluster import kill_by_name

GUIDE = ROOT / "docs" / "guide.md"
README = ROOT / "README.md"
COMMAND = re.compile(r"gym-capture ([a-z]+)")
OPTION = re.compile(r"gym-capture (\w+)[^\n`|]*?(--[a-z]+(?:-[a-z]+)*)")
TARGET = re.compile(r"\bmake ([a-z-]+)")
TEST = re.compile(r"(tests/[\w/]+\.py)((?:::\w+)*)")


def row(text: str, name: str) -> list[str]:
    """The cells of the table row that begins with `name`, without it. There is exactly one."""
    [found] = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
    return [cell.strip() for cell in found.strip("|").split(" | ")][1:]


def run_snippets(document: Path, space: dict[str, Any]) -> None:
    """Every Python block of a document, one after the other, as one module."""
    text = document.read_text(encoding="utf-8")
    for found in SNIPPET.finditer(text):
        line = text.count("\n", 0, found.start(1))
        exec(compile("\n" * line + found[1], str(document), "exec"), space)


@pytest.fixture
def here(ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fresh working directory with Ray at hand; owners that a snippet left are ended."""
    before = set(_owners(ray_cluster))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in set(_owners(ray_cluster)) - before:
        kill_by_name(ray_cluster, name, "gym_capture")


def _owners(ray: Any) -> list[str]:
    listed = ray.util.list_named_actors(all_namespaces=True)
    return [entry["name"] for entry in listed if entry["namespace"] == "gym_capture"]


@pytest.mark.ray
def test_the_readmes_snippet_prints_what_it_says(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_snippets(README, {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert printed.startswith("('durable', {")
    for figure in ("'tokens_in': 6", "'tokens_out': 1", "'num_calls': 1"):
        assert figure in printed


@pytest.mark.ray
def test_the_guides_snippets_run(here: Path) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    run_snippets(GUIDE, space)
    space["ray"].kill(space["worker"])
    space["capture"].sync.stop()
    space["capture"].sync.close()
    space["same"].sync.close()


@pytest.mark.parametrize("key", all_keys())
def test_every_key_is_documented_with_its_default(key: str) -> None:
    value: Any = CaptureConfig()
    for part in key.split("."):
        value = getattr(value, part)
    default, meaning = row(GUIDE.read_text(encoding="utf-8"), key)
    assert default == f"`{json.dumps(value)}`"
    assert meaning


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name != "from_wire"])
def test_every_error_is_documented(name: str) -> None:
    [meaning] = row(GUIDE.read_text(encoding="utf-8"), name)
    assert meaning == (getattr(errors, name).__doc__ or "").strip()


def test_every_gap_and_reason_is_documented() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    codes = [value for name, value in vars(gaps).items() if name.isupper() and isinstance(value, str)]
    reasons = [value for name, value in vars(rollout_state).items() if name.isupper() and isinstance(value, str)]
    assert len(codes) == 11
    assert [name for name in [*codes, *filter(None, reasons)] if f"`{name}`" not in guide] == []


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_option_and_target_that_is_named_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    options = {name: {opt for each in found.params for opt in each.opts} for name, found in commands.items()}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    code = "\n".join([*re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL), *re.findall(r"`[^`\n]+`", text)])
    assert [name for name in COMMAND.findall(code) if name not in commands] == []
    assert [pair for pair in OPTION.findall(code) if pair[1] not in {"--help", *options[pair[0]]}] == []
    assert [name for name in TARGET.findall(code) if name not in targets] == []


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_that_is_named_exists(document: Path) -> None:
    absent = []
    for file, names in TEST.findall(document.read_text(encoding="utf-8")):
        path = ROOT / file
        source = path.read_text(encoding="utf-8") if path.is_file() else None
        for name in names.split("::")[1:] or [""]:
            if source is None or (name and not re.search(rf"(def|class) {name}\b", source)):
                absent.append(f"{file}::{name}")
    assert absent == []


def test_a_missing_test_or_row_would_be_seen() -> None:
    assert TEST.findall("see tests/a/test_b.py::test_c.") == [("tests/a/test_b.py", "::test_c")]
    with pytest.raises(ValueError, match="not enough values"):
        row("| `a` | 1 |", "b")


RUNBOOK = ROOT / "docs" / "runbook.md"


def entries(text: str) -> dict[str, list[str]]:
    """The runbook's look-up tables: what was seen → where to look, what to do."""
    section = text.split("\n## Look it up\n")[1].split("\n## ")[0]
    rows = [re.fullmatch(r"\| `(.+?)`(?: \(`\w+`\))? \| (.+) \| (.+) \|", line) for line in section.splitlines()]
    return {found[1]: [found[2].strip(), found[3].strip()] for found in rows if found}


def test_every_gap_error_and_exit_status_is_in_the_runbook() -> None:
    listed = entries(RUNBOOK.read_text(encoding="utf-8"))
    codes = [value for name, value in vars(gaps).items() if name.isupper() and isinstance(value, str)]
    wanted = [*codes, *(name for name in errors.__all__ if name != "from_wire"), *(str(int(each)) for each in Exit)]
    assert [name for name in wanted if name not in listed or not all(listed[name])] == []


def logged() -> list[str]:
    """The literal text of every warning and error that the package logs, those of a `TroubleLog` too."""
    found = []
    for path in sorted((ROOT / "gym_capture").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            where, method = ast.unparse(node.func.value), node.func.attr
            if method in ("warning", "error", "exception", "critical") and "logger" in where:
                text = node.args[:1]
            elif method == "warn" and where.endswith("_log"):
                text = node.args[1:2]  # after its kind
            else:
                continue
            found += [str(each.value) for each in text if isinstance(each, ast.Constant)]
    # What has no words of its own is an error's message, which has its class, or a proxy's answer, which has its code.
    return [text for text in found if len(re.sub(r"%\w|\W", "", text)) > 5]


def test_every_line_that_is_logged_as_a_warning_or_worse_is_in_the_runbook() -> None:
    patterns = [
        re.compile(".*".join(map(re.escape, entry.split("…"))), re.DOTALL)
        for entry in entries(RUNBOOK.read_text(encoding="utf-8"))
    ]
    lines = logged()
    assert len(lines) > 40
    assert "the capture owner cannot be used: %s" in lines
    assert [line for line in lines if not any(each.fullmatch(line) for each in patterns)] == []
