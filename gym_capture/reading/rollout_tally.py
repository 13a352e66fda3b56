"""A rollout's row of an overview, summed from its calls' figures; sums grow with the calls that come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import median

import msgspec

from gym_capture.model.gaps import Gap, evidence_gaps
from gym_capture.model.metrics import compensated_sum
from gym_capture.reading.call_figures import CallFigures
from gym_capture.reading.rollout_status import Status, status_of
from gym_capture.storage.standing import RolloutStanding


class RolloutRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout in an overview. None is unknown, never 0.

    Tokens and latencies are those of a merge's metrics: calls of verifiers are counted in `calls` and left out there.

    Args:
        calls: call indexes that were given, damaged ones included.
        damaged: those of them that cannot be read.
        outstanding: open claims.
        late: rows that landed after a merge and that no merge has returned.
        gaps: what a merge would name now.
        models: each that answered, sorted.
        first_at, last_at: the first call's start and the last one's end, UTC Unix seconds.
        failed: calls with an error, of those that can be read; None: none can, and some are missing or damaged.
            `errors` has them by category.
        verifier_calls: calls of verifiers.
        stored_bytes: what the calls take in the log; None: they lie in no log (the run was sealed, or they are in a
            NeMo Gym file).
    """

    rollout_id: str
    generation: int
    status: Status
    calls: int
    damaged: int
    outstanding: int
    late: int
    reasons: dict[str, int] | None
    gaps: list[Gap]
    models: list[str]
    first_at: float | None
    last_at: float | None
    tokens_in: int | None
    tokens_out: int | None
    tokens_reasoning: int | None
    cached_tokens: int | None
    failed: int | None
    errors: dict[str, int]
    verifier_calls: int
    latency_sum_ms: float | None
    latency_median_ms: float | None
    latency_max_ms: float | None
    stored_bytes: int | None


_TOKENS = ("tokens_in", "tokens_out", "tokens_reasoning", "cached_tokens")


class RolloutTally:
    """Sums over the calls of one generation of a rollout."""

    __slots__ = (
        "_row",
        "_standing",
        "bytes",
        "damaged",
        "errors",
        "first_at",
        "generation",
        "last_at",
        "latencies",
        "models",
        "next_index",
        "seen",
        "tokens",
        "verifier_calls",
    )

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self._standing: RolloutStanding | None = None
        self._row: RolloutRow | None = None
        self.next_index = 0
        self.seen = 0
        self.damaged = 0
        self.models: set[str] = set()
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.tokens: list[int | None] = [None] * len(_TOKENS)
        self.errors: Counter[str] = Counter()
        self.verifier_calls = 0
        self.latencies: list[float] = []
        self.bytes: int | None = None

    def add(self, calls: Iterable[CallFigures]) -> None:
        """Add calls that come after those that were added."""
        for call in calls:
            self._add(call)

    def _add(self, call: CallFigures) -> None:
        self._row = None
        self.next_index = call.call_index + 1
        self.seen += 1
        if call.stored_bytes is not None:
            self.bytes = (self.bytes or 0) + call.stored_bytes
        if call.damaged:
            self.damaged += 1
            return
        begin, end = call.begin, call.completed_at
        if begin is not None and (self.first_at is None or begin < self.first_at):
            self.first_at = begin
        if end is not None and (self.last_at is None or end > self.last_at):
            self.last_at = end
        if call.model is not None:
            self.models.add(call.model)
        error = call.error
        if error is not None:
            self.errors[error] += 1
        if call.verifier_invocation_id is not None:
            self.verifier_calls += 1
            return
        for place, count in enumerate((call.tokens_in, call.tokens_out, call.tokens_reasoning, call.cached_tokens)):
            if count is not None:
                self.tokens[place] = (self.tokens[place] or 0) + count
        if call.latency_total_ms is not None:
            self.latencies.append(call.latency_total_ms)

    def row(self, standing: RolloutStanding) -> RolloutRow:
        """The row, with what the log's rows say of the rollout.

        Args:
            standing: of the moment up to which calls were added.
        """
        if self._row is None or self._standing != standing:
            self._standing, self._row = standing, self._made(standing)
        return self._row

    def _made(self, standing: RolloutStanding) -> RolloutRow:
        calls = self.seen if standing.calls is None else standing.calls
        damaged = self.damaged + standing.damaged
        status = status_of(calls=calls, damaged=damaged, reasons=standing.reasons, outstanding=standing.outstanding)
        return RolloutRow(
            rollout_id=standing.rollout_id,
            generation=standing.generation,
            status=status,
            calls=calls,
            damaged=damaged,
            outstanding=standing.outstanding,
            late=standing.late,
            reasons=standing.reasons,
            gaps=evidence_gaps(
                records=calls > damaged,
                damaged=damaged,
                incomplete=standing.reasons,
                outstanding=standing.outstanding,
            ),
            models=sorted(self.models),
            first_at=self.first_at,
            last_at=self.last_at,
            **dict(zip(_TOKENS, self.tokens, strict=True)),
            failed=None if status == "incomplete" and calls <= damaged else self.errors.total(),
            errors=dict(sorted(self.errors.items())),
            verifier_calls=self.verifier_calls,
            latency_sum_ms=compensated_sum(self.latencies) if self.latencies else None,
            latency_median_ms=median(self.latencies) if self.latencies else None,
            latency_max_ms=max(self.latencies) if self.latencies else None,
            stored_bytes=self.bytes,
        )


__all__ = ["RolloutRow", "RolloutTally"]
