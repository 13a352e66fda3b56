"""Bins and ticks of the page's plots. Pure: numbers in, numbers out; the page only draws them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_LEAST, _MOST = 1e-6, 1e12  # milliseconds from a nanosecond to thirty years; what is beyond them counts at the end
_LAST_SECOND = 253_402_300_799  # the last one of the year 9999; a clock that says more is broken


class TimeBin(NamedTuple):
    """What ended in one bin of time; tokens count as none where they are unknown."""

    calls: int
    failed: int
    tokens_in: int
    tokens_out: int


class TimePlot(msgspec.Struct, frozen=True, kw_only=True):
    """Calls over time.

    Args:
        start: when the first bin begins, UTC Unix seconds; a whole multiple of `step_s`.
        step_s: how long a bin is.
        bins: from the first to the last that has a call.
        untimed: calls that do not say when they ended, or say no date.
    """

    start: float
    step_s: float
    bins: list[TimeBin]
    untimed: int


class SpreadPlot(msgspec.Struct, frozen=True, kw_only=True):
    """How many values lie between two edges; the edges grow by equal factors.

    Args:
        edges: one more than `counts`.
        ticks: round values within the edges.
    """

    edges: list[float]
    counts: list[int]
    ticks: list[float]


def time_step(length_s: float, most: int = 80) -> float:
    """The shortest round step that divides a span of time into no more than `most` bins.

    Beyond a day it is whole days.
    """
    for step in _STEPS_S:
        if length_s / step <= most:
            return float(step)
    return 86400.0 * math.ceil(length_s / 86400 / most)


def time_plot(calls: Iterable[tuple[float | None, bool, int | None, int | None]], most: int = 80) -> TimePlot:
    """Calls over time.

    Args:
        calls: of each its end in UTC Unix seconds, whether it failed, its tokens in and out.
        most: bins, about.
    """
    timed: list[tuple[float, bool, int | None, int | None]] = []
    untimed = 0
    for end, failed, tokens_in, tokens_out in calls:
        if end is None or not 0 <= end <= _LAST_SECOND:
            untimed += 1
        else:
            timed.append((end, failed, tokens_in, tokens_out))
    if not timed:
        return TimePlot(start=0.0, step_s=1.0, bins=[], untimed=untimed)
    first, last = min(each[0] for each in timed), max(each[0] for each in timed)
    step = time_step(last - first, most)
    start = math.floor(first / step) * step
    sums = [[0, 0, 0, 0] for _ in range(int((last - start) // step) + 1)]
    for end, failed, tokens_in, tokens_out in timed:
        into = sums[int((end - start) // step)]
        into[0] += 1
        into[1] += failed
        into[2] += tokens_in or 0
        into[3] += tokens_out or 0
    return TimePlot(start=start, step_s=step, bins=[TimeBin(*each) for each in sums], untimed=untimed)


def spread_plot(values: Sequence[float], most: int = 40) -> SpreadPlot:
    """A histogram on a logarithmic scale; what is not above zero counts in the first bin.

    Args:
        values: in any order, milliseconds say.
        most: bins at most.
    """
    finite = [min(value, _MOST) for value in values if math.isfinite(value)]
    above = [max(value, _LEAST) for value in finite if value > 0]
    if not above:
        return SpreadPlot(edges=[], counts=[], ticks=[])
    low, high = math.log10(min(above)), math.log10(max(above))
    if high - low < 0.1:
        low, high = low - 0.1, high + 0.1
    # Fewer bins for few values, or most would be empty.
    bins = max(5, min(most, math.ceil(2 * math.sqrt(len(finite)))))
    width = (high - low) / bins
    counts = [0] * bins
    for value in finite:
        place = int((math.log10(value) - low) / width) if value > _LEAST else 0
        counts[min(max(place, 0), bins - 1)] += 1
    edges = [10 ** (low + width * place) for place in range(bins + 1)]
    return SpreadPlot(edges=edges, counts=counts, ticks=log_ticks(edges[0], edges[-1]))


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round values between two positive ones: powers of ten, with their double and fivefold where there is room."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{factor}e{decade}") for decade in decades for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= most:
            break
    return ticks[:: math.ceil(len(ticks) / most)] if len(ticks) > most else ticks


__all__ = ["SpreadPlot", "TimeBin", "TimePlot", "log_ticks", "spread_plot", "time_plot", "time_step"]
