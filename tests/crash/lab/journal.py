"""What everybody in a run was told, in files that outlive a SIGKILL, one for each process; and reading them back.

One line an event, one `write` each. Times are CLOCK_MONOTONIC, which all processes of a machine share. A thread writes
a pulse all the while, so that it shows later when a process was frozen, starved or dead.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PULSE_S = 0.1
ACKNOWLEDGED = ("durable", "duplicate")
"""Outcomes that say that an exchange is on disk."""


class Journal:
    """Appends this process's events to a file of its own.

    Args:
        folder: where the run's journals lie.
        kind: what this process is: `task`, `actor`, `forked`, `driver`.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        self.holder = f"{kind}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._descriptor = os.open(folder / f"{self.holder}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._ended = threading.Event()
        self._lock = threading.Lock()  # so that times ascend
        self.note("process", os.getpid(), kind)
        threading.Thread(target=self._pulse, daemon=True).start()

    def note(self, kind: str, *more: Any) -> None:
        """Write one event down, now."""
        with self._lock:
            os.write(self._descriptor, (json.dumps([kind, time.monotonic(), *more]) + "\n").encode())

    def end(self) -> None:
        """Write no more pulses."""
        self._ended.set()

    def _pulse(self) -> None:
        while not self._ended.wait(PULSE_S):
            self.note("pulse")


@dataclass(slots=True)
class Call:
    """One model call as its caller saw it.

    Attributes:
        generation: the token it was made with; None: whichever was current.
        told_generation: the generation that the claim's answer named.
        claimed_at: when the claim was acknowledged; None: it never was.
        closing_at, closed_as: when the caller began to leave the claim, and how (`commit`, `release`, `raise`).
        outcome, told_at: what the caller was told in the end, and when.
        digest: of the request and response.
        error: what the caller saw instead, if it saw an error.
    """

    rollout: str
    call_id: str
    generation: int | None
    holder: str
    asked_at: float
    told_generation: int | None = None
    claimed_at: float | None = None
    closing_at: float | None = None
    closed_as: str = ""
    outcome: str | None = None
    told_at: float | None = None
    digest: str | None = None
    error: str | None = None


@dataclass(slots=True)
class Clear:
    """A new generation, from when it was asked for to when it was told."""

    rollout: str
    asked_at: float
    generation: int | None = None
    told_at: float | None = None


@dataclass(slots=True)
class Quiet:
    """A caller was told that nothing of the rollout (None: of the run) is outstanding."""

    rollout: str | None
    asked_at: float
    told_at: float


@dataclass(slots=True)
class Merge:
    """A caller merged a rollout: the calls (id, index) and gaps (code, detail) of the value."""

    rollout: str
    generation: int
    asked_at: float
    told_at: float
    calls: list[tuple[str, int]]
    gaps: list[tuple[str, str]]


@dataclass
class History:
    """Everything that anybody was told in a run.

    Attributes:
        pulses: when each process was seen to run, ascending.
        cut_off: spans in which processes could not reach the owner, by the lab's doing.
        faults: when faults were injected, and what was done.
        acks: when each acknowledged call was asked for and told of, and its rollout, in the order in which that was
            read.
        open: the calls that are claimed and of which nobody was told more yet.
    """

    calls: dict[str, Call] = field(default_factory=dict)
    clears: list[Clear] = field(default_factory=list)
    quiets: list[Quiet] = field(default_factory=list)
    merges: list[Merge] = field(default_factory=list)
    pulses: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cut_off: list[tuple[float, float]] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)
    processes: dict[str, tuple[int, str]] = field(default_factory=dict)
    acks: list[tuple[float, float, str]] = field(default_factory=list)
    open: dict[str, Call] = field(default_factory=dict)
    clearing: dict[tuple[str, str], Clear] = field(default_factory=dict)

    def acknowledged(self) -> list[Call]:
        """The calls that a caller was told are on disk."""
        return [call for call in self.calls.values() if call.outcome in ACKNOWLEDGED]

    def silent(self, holder: str, start: float, end: float, limit_s: float) -> bool:
        """Whether a process was silent for longer than that, or cut off, or dead, somewhere in the span."""
        if any(cut < end and back > start for cut, back in self.cut_off):
            return True
        last = start
        pulses = self.pulses.get(holder, [])
        for number in range(bisect_right(pulses, start), len(pulses)):
            pulse = pulses[number]
            if pulse - last > limit_s:
                return True
            last = pulse
            if pulse > end:
                return False
        return True  # no sign of life after it

    def recovered_after(
        self, at: float, since: int = 0, of: Callable[[str], bool] = lambda rollout: True
    ) -> float | None:
        """Seconds from then to the first acknowledged write that was asked for after it.

        Args:
            at: the moment.
            since: how many of `acks` had been read before it.
            of: which rollouts' writes are meant.
        """
        told = [told_at for asked_at, told_at, rollout in self.acks[since:] if asked_at > at and of(rollout)]
        return min(told) - at if told else None


class HistoryReader:
    """Reads all journals of a run together, each time only what is new.

    Args:
        folder: where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}
        self._history = History()

    def read(self) -> History:
        """The history up to now; a line that a killed process left unfinished is passed over."""
        with os.scandir(self._folder) as entries:
            grown = sorted(each.path for each in entries if each.stat().st_size > self._read.get(each.path, 0))
        for path in grown:
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                whole, _, _ = file.read().rpartition(b"\n")
            if whole:
                self._read[path] = self._read.get(path, 0) + len(whole) + 1
                _read(self._history, Path(path).stem, whole.split(b"\n"))
        return self._history


def _read(history: History, holder: str, lines: Iterable[bytes]) -> None:
    for line in lines:
        kind, at, *more = json.loads(line)
        history.pulses[holder].append(at)
        if kind == "process":
            history.processes[holder] = (more[0], more[1])
        elif kind == "asked":
            rollout, generation, call_id, digest = more
            history.calls[call_id] = Call(rollout, call_id, generation, holder, at, digest=digest)
        elif kind in ("claimed", "closing", "told", "error"):
            _read_call(history, history.calls[more[0]], kind, at, more[1:])
        elif kind == "clear":
            asked = history.clearing[holder, more[0]] = Clear(more[0], at)
            history.clears.append(asked)
        elif kind == "cleared":
            asked = history.clearing[holder, more[0]]
            asked.generation, asked.told_at = more[1], at
        elif kind == "quiet":
            history.quiets.append(Quiet(more[0], more[1], at))
        elif kind == "merged":
            rollout, generation, asked_at, calls, gaps = more
            pairs = [(call_id, index) for call_id, index in calls]
            history.merges.append(Merge(rollout, generation, asked_at, at, pairs, [(a, b) for a, b in gaps]))
        elif kind == "cut-off":
            history.cut_off.append((more[0], at))
        elif kind == "fault":
            history.faults.append((at, more[0]))


def _read_call(history: History, call: Call, kind: str, at: float, more: list[Any]) -> None:
    if kind == "claimed":
        call.claimed_at, call.told_generation = at, more[0]
        history.open[call.call_id] = call
    elif kind == "closing":
        call.closing_at, call.closed_as = at, more[0]
    elif kind == "told":
        if call.outcome not in ACKNOWLEDGED:  # what was acknowledged stays so, whatever a repetition is told
            call.told_at, call.outcome = at, more[0]
        history.open.pop(call.call_id, None)
        if more[0] in ACKNOWLEDGED:
            history.acks.append((call.asked_at, at, call.rollout))
        if call.told_generation is None:
            call.told_generation = more[1]
    else:
        call.error = more[0]
        history.open.pop(call.call_id, None)
