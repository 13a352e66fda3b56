"""What a run came to: counts for the progress line, and every rollout whose evidence is not whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gym_capture.model import gaps as gap_codes
from gym_capture.model.gaps import Gap
from gym_capture.model.ids import rollout_id_from_record
from gym_capture.model.merge import CAPTURE_KEY, OBSERVATIONS_KEY

TOKEN_METRICS = ("tokens_in", "tokens_out", "tokens_reasoning", "cached_tokens")

_UNRESOLVED = (
    gap_codes.REFERENCE_UNMATCHED,
    gap_codes.REFERENCE_AMBIGUOUS,
    gap_codes.REFERENCE_CONFLICT,
    gap_codes.OWNERSHIP_UNAVAILABLE,
)


@dataclass(frozen=True, slots=True)
class FinishedRollout:
    """What is kept in memory of a finished record.

    Args:
        errors: calls that failed.
        tokens: in `TOKEN_METRICS` order; None is unknown, not 0.
    """

    rollout_id: str
    calls: int
    errors: int
    tokens: tuple[int | None, ...]
    gaps: tuple[tuple[str, str | None], ...]


def finished_rollout(key: str, record: Mapping[str, Any]) -> FinishedRollout:
    """The bookkeeping of one merged record, of whatever shape its capture is.

    Args:
        key: its row key, for a record that names no rollout id.
        record: as it stands in the output.
    """
    capture = record.get(CAPTURE_KEY)
    capture = capture if isinstance(capture, dict) else {}
    metrics = capture.get("metrics")
    metrics = metrics if isinstance(metrics, dict) else {}
    calls = capture.get("calls")
    calls = calls if isinstance(calls, list) else []
    return FinishedRollout(
        rollout_id=rollout_id_from_record(record) or key,
        calls=len(calls),
        errors=sum(1 for call in calls if isinstance(call, dict) and call.get("error_category") is not None),
        tokens=tuple(_count(metrics.get(name)) for name in TOKEN_METRICS),
        gaps=tuple((gap["code"], gap.get("detail")) for gap in gaps_of(record)),
    )


def gaps_of(record: Mapping[str, Any]) -> list[Gap]:
    """Every gap of a merged record: those of its capture, and references of its observations that name no call."""
    found: list[Gap] = []
    capture, observations = record.get(CAPTURE_KEY), record.get(OBSERVATIONS_KEY)
    if isinstance(capture, dict):
        found += _gaps(capture.get("gaps"))
    if isinstance(observations, dict):
        found += [gap for gap in _gaps(observations.get("gaps")) if gap["code"] in _UNRESOLVED]
    return found


def _gaps(value: Any) -> list[Gap]:
    if not isinstance(value, list):
        return []
    return [gap for gap in value if isinstance(gap, dict) and isinstance(gap.get("code"), str)]


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


def _sum(counts: Iterable[int | None]) -> int | None:
    """Of those that are known; None when none is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


@dataclass(slots=True)
class Progress:
    """Counters of a run under way; written by the dispatcher, read by whoever shows them.

    Attributes:
        rollouts: of the whole input.
        earlier: finished by earlier runs.
        finished: by this one.
        started_at: monotonic seconds when the first rollout was dispatched; None before.
        running: under way on workers.
        settling: run, but not yet merged and on disk.
        failed_attempts: of this run; `failed` are the rows that have no try left.
        calls: in this run's finished rollouts.
        calls_now: exchanges that the owner has on disk, those of running rollouts included.
        outstanding: claims that are open.
        with_gaps: finished rollouts, earlier ones included, that have a gap.
    """

    rollouts: int = 0
    earlier: int = 0
    finished: int = 0
    started_at: float | None = None
    running: int = 0
    settling: int = 0
    failed_attempts: int = 0
    failed: int = 0
    calls: int = 0
    calls_now: int = 0
    outstanding: int = 0
    with_gaps: int = 0


@dataclass(frozen=True, slots=True)
class FailedRollout:
    """A row that has no try left in this run: its last attempt's id and error."""

    rollout_id: str
    error_type: str
    message: str
    line: int


@dataclass(slots=True)
class Summary:
    """The end of a run.

    Attributes:
        rollouts: by row key, every finished one of this input.
        failed: rows without a try left.
        failed_attempts: of this run, those that a retry made good included.
        seconds: from the first dispatch to the last sync.
        interrupted: stopped before everything was tried.
    """

    output: Path
    failures: Path
    capture_dir: Path | None
    total: int
    earlier: int
    finished: list[FinishedRollout] = field(default_factory=list)
    failed: list[FailedRollout] = field(default_factory=list)
    failed_attempts: int = 0
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def incomplete(self) -> list[FinishedRollout]:
        """Finished rollouts with a gap."""
        return [each for each in self.finished if each.gaps]

    @property
    def remaining(self) -> int:
        """Rows that are neither finished nor out of tries."""
        return self.total - len(self.finished) - len(self.failed)

    def plain(self) -> dict[str, Any]:
        """All of it as JSON values. A sum of tokens is null when no record knows that number."""
        calls = sum(each.calls for each in self.finished)
        tokens = [_sum(each.tokens[index] for each in self.finished) for index in range(len(TOKEN_METRICS))]
        return {
            "output": str(self.output),
            "failures": str(self.failures),
            "capture_dir": None if self.capture_dir is None else str(self.capture_dir),
            "rollouts": self.total,
            "finished": len(self.finished),
            "finished_earlier": self.earlier,
            "failed": [
                {"rollout_id": each.rollout_id, "line": each.line, "error": each.error_type, "message": each.message}
                for each in self.failed
            ],
            "failed_attempts": self.failed_attempts,
            "remaining": self.remaining,
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 3),
            "calls": calls,
            "failed_calls": sum(each.errors for each in self.finished),
            **dict(zip(TOKEN_METRICS, tokens, strict=True)),
            "incomplete": [
                {
                    "rollout_id": each.rollout_id,
                    "calls": each.calls,
                    "gaps": [gap_codes.gap(code, detail) for code, detail in each.gaps],
                }
                for each in self.incomplete
            ],
        }
