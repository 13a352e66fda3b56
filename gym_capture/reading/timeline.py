"""A rollout's calls as bars on a line of time, those that ran side by side in lanes of their own."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import msgspec

from gym_capture.reading.call_figures import CallFigures, call_figures
from gym_capture.storage.standing import OpenClaim
from gym_capture.storage.store import CaptureStore


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One call on the line. None is unknown.

    Args:
        call_index: None: a claim that is open.
        lane: from 0; bars of one lane do not overlap.
        start_s: seconds from the timeline's origin.
        duration_ms: None: it has not ended, or nobody knows when.
        ttft_ms: milliseconds to the first token.
    """

    call_index: int | None
    model_call_id: str | None
    lane: int
    start_s: float
    duration_ms: float | None
    ttft_ms: float | None = None
    model: str | None = None
    error: str | None = None
    tokens_out: int | None = None
    verifier_invocation_id: str | None = None


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The bars in the order of their starts.

    Args:
        origin: UTC Unix seconds of the first start; None: no call says when it began.
        length_s: from the origin to the last end that is known.
        lanes: how many calls ran side by side at most.
        unplaced: the calls that do not say when they began, damaged ones included.
    """

    rollout_id: str
    origin: float | None
    length_s: float
    lanes: int
    bars: list[Bar]
    unplaced: list[int]


def read_timeline(store: CaptureStore, rollout_id: str) -> Timeline:
    """The timeline of one rollout. Reads its records, no payload."""
    return timeline_of(rollout_id, list(call_figures(store, rollout_id)), store.open_claims(rollout_id))


def timeline_of(rollout_id: str, calls: Sequence[CallFigures], claims: Iterable[OpenClaim] = ()) -> Timeline:
    """Lay out calls and open claims.

    Args:
        calls: in any order.
        claims: they begin when the owner logged them and have no end.
    """
    placed: list[tuple[float, float, CallFigures | OpenClaim]] = []
    for call in calls:
        begin = call.begin
        if begin is not None:
            placed.append((begin, begin + (call.duration_ms or 0.0) / 1000, call))
    placed += [(claim.opened_at, float("inf"), claim) for claim in claims]
    placed.sort(key=lambda each: each[:2])
    origin = placed[0][0] if placed else None
    bars: list[Bar] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for begin, end, what in placed:
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, lane))
        bars.append(_bar(what, lane, begin - (origin or 0.0)))
    ends = [end for _, end, what in placed if isinstance(what, CallFigures)]
    last = max(ends, default=origin or 0.0)
    return Timeline(
        rollout_id=rollout_id,
        origin=origin,
        length_s=max(0.0, last - (origin or 0.0)),
        lanes=max((bar.lane for bar in bars), default=-1) + 1,
        bars=bars,
        unplaced=sorted(call.call_index for call in calls if call.begin is None),
    )


def _bar(what: CallFigures | OpenClaim, lane: int, start_s: float) -> Bar:
    if isinstance(what, OpenClaim):
        return Bar(
            call_index=None, model_call_id=what.model_call_id or None, lane=lane, start_s=start_s, duration_ms=None
        )
    return Bar(
        call_index=what.call_index,
        model_call_id=what.model_call_id,
        lane=lane,
        start_s=start_s,
        duration_ms=what.duration_ms,
        ttft_ms=what.latency_ttft_ms,
        model=what.model,
        error=what.error,
        tokens_out=what.tokens_out,
        verifier_invocation_id=what.verifier_invocation_id,
    )


__all__ = ["Bar", "Timeline", "read_timeline", "timeline_of"]
