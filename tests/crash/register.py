"""What a worker under test was told, in a file of its own that survives its death and is checked afterwards.

One line an event, written with one `write` each: JSON of [kind, time, rollout, model_call_id, …]. Times are
CLOCK_MONOTONIC, which all processes of one machine share, so that intervals of different processes compare.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Register:
    """Appends events to one file."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, kind: str, rollout: str, call_id: str, *more: Any) -> None:
        """Write one event down, now."""
        line = json.dumps([kind, time.monotonic(), rollout, call_id, *more]) + "\n"
        os.write(self._descriptor, line.encode())


@dataclass
class Call:
    """What the register says of one call: when it was claimed and completed, and what the caller was told."""

    rollout: str
    asked_at: float | None = None
    told_at: float | None = None
    claimed_at: float | None = None
    completed_at: float | None = None
    outcome: str | None = None
    digest: str | None = None


@dataclass
class Told:
    """All registers of a test together."""

    calls: dict[str, Call] = field(default_factory=dict)
    errors: list[Any] = field(default_factory=list)

    def durable(self) -> dict[str, Call]:
        """The calls that a caller was told are on disk."""
        return {call_id: call for call_id, call in self.calls.items() if call.outcome in ("durable", "duplicate")}

    def in_flight(self, at: float) -> int:
        """Calls that were begun and not yet answered at that time."""
        return sum(
            call.asked_at is not None and call.asked_at < at and (call.told_at is None or call.told_at > at)
            for call in self.calls.values()
        )

    def open_throughout(self, rollout: str | None, start: float, end: float) -> list[str]:
        """Calls whose claim was held during the whole interval: an answer 'quiescent' in it was early."""
        return [
            call_id
            for call_id, call in self.calls.items()
            if call.claimed_at is not None
            and call.claimed_at < start
            and (call.completed_at is None or call.completed_at > end)
            and rollout in (None, call.rollout)
        ]


def read_registers(paths: Iterator[Path] | list[Path]) -> Told:
    """Read registers back; a line that a killed worker left unfinished is ignored."""
    told = Told()
    for path in paths:
        for line in path.read_text().splitlines():
            try:
                kind, at, rollout, call_id, *more = json.loads(line)
            except ValueError:
                continue
            call = told.calls.setdefault(call_id, Call(rollout)) if kind != "error" else None
            if call is None:
                told.errors.append([at, rollout, call_id, *more])
            elif kind == "asked":
                call.asked_at = at
            elif kind == "claimed":
                call.claimed_at = at
            elif kind == "completing":
                call.completed_at, call.digest = at, more[0]
            elif kind == "told":
                call.told_at, call.outcome = at, more[0]
    return told
