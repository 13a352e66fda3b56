"""The figures behind the overview's plots, kept while the run goes on: what was read once is not read again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from gym_capture.reading.call_figures import CallFigures
from gym_capture.reading.rollout_status import STATUSES
from gym_capture.reading.rollout_tally import RolloutRow
from gym_capture.reading.run_stats import Distribution, distribution
from gym_capture.viewer.plots import SpreadPlot, TimePlot, spread_plot, time_plot


class _Call(NamedTuple):
    end: float | None
    error: str | None
    tokens_in: int | None
    tokens_out: int | None
    cached_tokens: int | None
    latency_ms: float | None
    ttft_ms: float | None


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one kind as figures and as a plot."""

    figures: Distribution
    plot: SpreadPlot


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of the run so far. None is unknown, never 0; `run_stats.RunStats` says what the names mean."""

    rollouts: int
    calls: int
    failed: int | None
    damaged: int
    outstanding: int
    late: int
    tokens_in: int | None
    tokens_out: int | None
    cached_tokens: int | None
    stored_bytes: int | None
    statuses: dict[str, int]
    gaps: dict[str, int]
    reasons: dict[str, int]
    errors: dict[str, int]
    models: dict[str, int]
    over_time: TimePlot
    latency_ms: Spread
    ttft_ms: Spread


class ReadCalls:
    """A few numbers of every call that was read, by rollout."""

    def __init__(self) -> None:
        self._calls: dict[str, list[_Call]] = {}

    def hear(self, rollout_id: str, anew: bool, calls: Sequence[CallFigures]) -> None:
        """Keep what `RolloutOverview` tells."""
        kept = [] if anew else self._calls.get(rollout_id, [])
        kept += [
            _Call(
                call.completed_at,
                call.error,
                call.tokens_in,
                call.tokens_out,
                call.cached_tokens,
                call.latency_total_ms,
                call.latency_ttft_ms,
            )
            for call in calls
            if not call.damaged
        ]
        self._calls[rollout_id] = kept

    def forget(self, rollout_id: str) -> None:
        """Leave out a rollout that is there no longer."""
        self._calls.pop(rollout_id, None)

    def figures(self, rows: Iterable[RolloutRow]) -> RunFigures:
        """Sum up.

        Args:
            rows: of every rollout that was read.
        """
        statuses = Counter[str]({str(name): 0 for name in STATUSES})
        gaps, reasons, models = Counter[str](), Counter[str](), Counter[str]()
        rollouts = counted = damaged = outstanding = late = 0
        stored: int | None = None
        for row in rows:
            rollouts += 1
            counted += row.calls
            damaged += row.damaged
            outstanding += row.outstanding
            late += row.late
            statuses[row.status] += 1
            gaps.update(gap["code"] for gap in row.gaps)
            reasons.update(row.reasons or {})
            models.update(row.models)
            stored = _plus(stored, row.stored_bytes)
        calls = list(self._each())
        errors = Counter(call.error for call in calls if call.error is not None)
        return RunFigures(
            rollouts=rollouts,
            calls=counted,
            failed=None if statuses["incomplete"] and not calls else errors.total(),
            damaged=damaged,
            outstanding=outstanding,
            late=late,
            tokens_in=_sum(call.tokens_in for call in calls),
            tokens_out=_sum(call.tokens_out for call in calls),
            cached_tokens=_sum(call.cached_tokens for call in calls),
            stored_bytes=stored,
            statuses=dict(statuses),
            gaps=dict(gaps.most_common()),
            reasons={name or "marked": count for name, count in reasons.most_common()},
            errors=dict(errors.most_common(20)),
            models=dict(models.most_common(20)),
            over_time=time_plot((call.end, call.error is not None, call.tokens_in, call.tokens_out) for call in calls),
            latency_ms=_spread([call.latency_ms for call in calls if call.latency_ms is not None]),
            ttft_ms=_spread([call.ttft_ms for call in calls if call.ttft_ms is not None]),
        )

    def _each(self) -> Iterator[_Call]:
        for calls in self._calls.values():
            yield from calls


def _spread(values: list[float]) -> Spread:
    return Spread(figures=distribution(values), plot=spread_plot(values))


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _plus(total: int | None, value: int | None) -> int | None:
    return total if value is None else (total or 0) + value


__all__ = ["ReadCalls", "RunFigures", "Spread"]
