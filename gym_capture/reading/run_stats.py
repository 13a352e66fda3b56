"""A run in figures: totals, latencies, tokens by model, errors, gaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from gym_capture.reading.call_figures import CallFigures, call_figures
from gym_capture.reading.rollout_status import STATUSES
from gym_capture.reading.rollout_tally import RolloutTally
from gym_capture.storage.store import CaptureStore

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
"""The quantiles that are told: the share of calls that are at most as slow."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one kind, in their unit.

    Args:
        count: how many calls know theirs.
        mean: None when none does.
        quantiles: (share, value) for each of `SHARES`, interpolated; empty when none does.
    """

    count: int
    mean: float | None
    quantiles: list[tuple[float, float]]


class ModelStats(msgspec.Struct, frozen=True, kw_only=True):
    """One model's calls. None is unknown, never 0. `model` is None for calls that name none."""

    model: str | None
    calls: int
    failed: int
    tokens_in: int | None
    tokens_out: int | None
    tokens_reasoning: int | None
    cached_tokens: int | None
    latency_ms: Distribution


class RunStats(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run. Every call counts, verifiers' too. None is unknown, never 0.

    Args:
        calls: call indexes that were given, damaged ones included.
        failed: calls with an error, of those that can be read; None: none can, and some are missing or damaged.
        statuses: rollouts by status.
        gaps: rollouts by the code of each gap that a merge would name now.
        reasons: missing calls by incompleteness reason.
        errors: failed calls by category.
        calls_per_rollout: of the rollouts that have any.
        stored_bytes: what the calls take in the log; None: none of them lies in a log (the run was sealed, or they are
            in NeMo Gym files).
    """

    directory: str
    rollouts: int
    calls: int
    failed: int | None
    damaged: int
    outstanding: int
    late: int
    first_at: float | None
    last_at: float | None
    stored_bytes: int | None
    tokens_in: int | None
    tokens_out: int | None
    tokens_reasoning: int | None
    cached_tokens: int | None
    latency_ms: Distribution
    ttft_ms: Distribution
    calls_per_rollout: Distribution
    models: list[ModelStats]
    errors: dict[str, int]
    statuses: dict[str, int]
    gaps: dict[str, int]
    reasons: dict[str, int]


class _Sum:
    """Calls of one model, or of all."""

    __slots__ = ("cached", "calls", "errors", "latencies", "reasoning", "tokens_in", "tokens_out", "ttfts")

    def __init__(self) -> None:
        self.calls = 0
        self.errors: Counter[str] = Counter()
        self.tokens_in: int | None = None
        self.tokens_out: int | None = None
        self.reasoning: int | None = None
        self.cached: int | None = None
        self.latencies: list[float] = []
        self.ttfts: list[float] = []

    def add(self, call: CallFigures) -> None:
        self.calls += 1
        error = call.error
        if error is not None:
            self.errors[error] += 1
        self.tokens_in = _plus(self.tokens_in, call.tokens_in)
        self.tokens_out = _plus(self.tokens_out, call.tokens_out)
        self.reasoning = _plus(self.reasoning, call.tokens_reasoning)
        self.cached = _plus(self.cached, call.cached_tokens)
        if call.latency_total_ms is not None:
            self.latencies.append(call.latency_total_ms)
        if call.latency_ttft_ms is not None:
            self.ttfts.append(call.latency_ttft_ms)


def run_stats(store: CaptureStore) -> RunStats:
    """Sum up a run. Reads all records, no payload.

    Raises:
        OSError: a file could not be read.
    """
    whole, models = _Sum(), dict[str | None, _Sum]()
    statuses = Counter[str]({str(name): 0 for name in STATUSES})
    gaps, reasons = Counter[str](), Counter[str]()
    calls = damaged = outstanding = late = rollouts = 0
    per_rollout: list[float] = []
    first_at: float | None = None
    last_at: float | None = None
    stored: int | None = None
    for standing in store.standings():
        tally = RolloutTally(standing.generation)
        for call in call_figures(store, standing.rollout_id):
            tally.add((call,))
            if not call.damaged:
                whole.add(call)
                models.setdefault(call.model, _Sum()).add(call)
        row = tally.row(standing)
        rollouts += 1
        calls += row.calls
        damaged += row.damaged
        outstanding += row.outstanding
        late += row.late
        statuses[row.status] += 1
        gaps.update(gap["code"] for gap in row.gaps)
        reasons.update(row.reasons or {})
        if row.calls:
            per_rollout.append(float(row.calls))
        stored = _plus(stored, row.stored_bytes)
        first_at = min((each for each in (first_at, row.first_at) if each is not None), default=None)
        last_at = max((each for each in (last_at, row.last_at) if each is not None), default=None)
    return RunStats(
        directory=store.directory,
        rollouts=rollouts,
        calls=calls,
        failed=None if statuses["incomplete"] and not whole.calls else whole.errors.total(),
        damaged=damaged,
        outstanding=outstanding,
        late=late,
        first_at=first_at,
        last_at=last_at,
        stored_bytes=stored,
        tokens_in=whole.tokens_in,
        tokens_out=whole.tokens_out,
        tokens_reasoning=whole.reasoning,
        cached_tokens=whole.cached,
        latency_ms=distribution(whole.latencies),
        ttft_ms=distribution(whole.ttfts),
        calls_per_rollout=distribution(per_rollout),
        models=[
            ModelStats(
                model=model,
                calls=each.calls,
                failed=each.errors.total(),
                tokens_in=each.tokens_in,
                tokens_out=each.tokens_out,
                tokens_reasoning=each.reasoning,
                cached_tokens=each.cached,
                latency_ms=distribution(each.latencies),
            )
            for model, each in sorted(models.items(), key=lambda pair: (-pair[1].calls, pair[0] or ""))
        ],
        errors=dict(whole.errors.most_common()),
        statuses=dict(statuses),
        gaps=dict(gaps.most_common()),
        reasons={name or "marked": count for name, count in reasons.most_common()},
    )


def distribution(values: Iterable[float]) -> Distribution:
    """Count, mean and quantiles of values."""
    ordered = sorted(values)
    if not ordered:
        return Distribution(count=0, mean=None, quantiles=[])
    return Distribution(
        count=len(ordered),
        mean=sum(ordered) / len(ordered),
        quantiles=[(share, _quantile(ordered, share)) for share in SHARES],
    )


def _quantile(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _plus(total: int | None, value: int | None) -> int | None:
    return total if value is None else (total or 0) + value


__all__ = ["SHARES", "Distribution", "ModelStats", "RunStats", "distribution", "run_stats"]
