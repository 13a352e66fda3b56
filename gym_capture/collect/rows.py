"""Reading the collector's input: JSONL, one row a line, streamed.

The input is read twice: once before anything starts, so that a bad line or two rows of one id end the run before it
has cost anything, and once while it is dispatched. Neither pass holds more than a row (and the ids).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_capture.collect.identity import RowIdentity, identify, names_its_rollout
from gym_capture.errors import ConfigError, InputRowError, InvalidRolloutId
from gym_capture.model.json_text import decode_json

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class InputRow:
    """One rollout to collect: a row and which of its repeats. `line` is 1-based, as people count."""

    line: int
    repeat: int
    row: dict[str, Any]
    identity: RowIdentity


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What to read: the file, how often each row is rolled out, and how many rows (None: all)."""

    path: Path
    repeats: int = 1
    limit: int | None = None


def read_rows(spec: InputSpec) -> Iterator[InputRow]:
    """Every rollout of the input, in order; the repeats of a row follow each other.

    Raises:
        ConfigError: the file cannot be read.
        InputRowError: a line is not a JSON object, or names no valid or no single rollout. Blank lines are passed
            over, and counted as lines.
    """
    rows = 0
    try:
        with spec.path.open("rb") as lines:
            for line, text in enumerate(lines):
                if line == 0:
                    text = text.removeprefix(_BYTE_ORDER_MARK)
                if text.isspace():
                    continue
                if rows == spec.limit:
                    return
                rows += 1
                row = _parsed(spec.path, line, text)
                for repeat in range(spec.repeats):
                    yield InputRow(line + 1, repeat, row, _identified(spec, row, line, repeat))
    except OSError as error:
        raise ConfigError(f"cannot read collect.input {spec.path}: {error.strerror or error}") from error


def scan_rows(spec: InputSpec) -> dict[str, int]:
    """Check the whole input.

    Returns:
        The row key of every rollout, with its 1-based line.

    Raises:
        ConfigError: the file cannot be read, or cannot be read twice.
        InputRowError: as `read_rows`, or two rows name one rollout.
    """
    if spec.path.exists() and not spec.path.is_file():
        raise ConfigError(
            f"collect.input {spec.path} is not a regular file; the input is read twice, so it must be one"
        )
    seen: dict[str, int] = {}
    for each in read_rows(spec):
        key = each.identity.key
        if key in seen:
            raise InputRowError(
                f"{spec.path}, line {each.line}: rollout {key} is already that of line {seen[key]}. Give each row its "
                "own _ng_task_index and _ng_rollout_index (or leave both out: then the line number tells rows apart).",
                line=each.line,
            )
        seen[key] = each.line
    return seen


def _parsed(path: Path, line: int, text: bytes) -> dict[str, Any]:
    try:
        row, _ = decode_json(text)
    except ValueError as error:
        raise InputRowError(
            f"{path}, line {line + 1} is not JSON ({error}). Mend or remove that line; finished rollouts are kept.",
            line=line + 1,
        ) from error
    if not isinstance(row, dict):
        raise InputRowError(
            f"{path}, line {line + 1} holds a JSON {_json_type(row)}; a row is a JSON object.", line=line + 1
        )
    return row


def _identified(spec: InputSpec, row: dict[str, Any], line: int, repeat: int) -> RowIdentity:
    if spec.repeats > 1 and names_its_rollout(row):
        raise InputRowError(
            f"{spec.path}, line {line + 1} names its own rollout, so it cannot be repeated {spec.repeats} times: leave "
            "_ng_rollout_index and _ng_rollout_id out of the rows, or set collect.repeats=1.",
            line=line + 1,
        )
    try:
        return identify(row, line, repeat)
    except InvalidRolloutId as error:
        raise InputRowError(f"{spec.path}, line {line + 1}: {error}", line=line + 1) from error


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return names.get(type(value), type(value).__name__)
