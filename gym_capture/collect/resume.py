"""What an earlier run of the same output left: which rollouts are finished, and how often the others were tried."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gym_capture.collect.attempt import Attempt
from gym_capture.collect.identity import record_identity
from gym_capture.collect.rows import InputRow
from gym_capture.collect.summary import FinishedRollout, finished_rollout
from gym_capture.errors import InvalidRolloutId
from gym_capture.model.json_text import decode_json


@dataclass(slots=True)
class Resume:
    """Collected from the two files while they are opened.

    Attributes:
        finished: by row key, each record of the output.
        next_attempt: by row key, the attempt index that comes after the highest failed one.
    """

    finished: dict[str, FinishedRollout] = field(default_factory=dict)
    next_attempt: dict[str, int] = field(default_factory=dict)

    def read_finished(self, line: bytes) -> None:
        """Take in one line of the output. Raises ValueError when it is no finished record, or a second one."""
        record, key, _ = _identified(line)
        if key in self.finished:
            raise ValueError(f"a second record of rollout {key}")
        self.finished[key] = finished_rollout(key, record)

    def read_failure(self, line: bytes) -> None:
        """Take in one line of the failures file. Raises ValueError when it is no failed attempt."""
        _, key, attempt = _identified(line)
        self.next_attempt[key] = max(attempt + 1, self.next_attempt.get(key, 0))

    def attempt_of(self, source: InputRow, retries: int) -> Attempt | None:
        """The attempt that a run begins a row with, or None when it is finished.

        Every run gives a row that is not finished `1 + retries` tries. An attempt that a kill cut short is neither
        finished nor failed: it is made again under its own id, whose next generation fences what is left of it.
        """
        key = source.identity.key
        if key in self.finished:
            return None
        return Attempt(source, max(source.identity.first_attempt, self.next_attempt.get(key, 0)), retries)


def failures_path(output: Path) -> Path:
    """Where the failed attempts of an output are kept: `<stem>.failures.jsonl` beside it."""
    return output.with_name(f"{output.stem}.failures.jsonl")


def _identified(line: bytes) -> tuple[dict[str, Any], str, int]:
    record, _ = decode_json(line)
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    try:
        identity = record_identity(record)
    except InvalidRolloutId as error:
        raise ValueError(str(error)) from error
    if identity is None:
        raise ValueError("a record that names no rollout (_ng_task_index and _ng_rollout_index)")
    return record, *identity
