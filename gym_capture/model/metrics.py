"""Sums over derived records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

SUMMED_COUNTS = ("tokens_in", "tokens_out", "tokens_reasoning", "tokens_total", "cached_tokens")


def aggregate(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The `metrics` object of a set of calls.

    Args:
        records: derived records, in call order.

    Returns:
        The sum of each of `SUMMED_COUNTS` and of `latency_total_ms` over the records that know it, None where none
        does, then `num_calls`.
    """
    counts: dict[str, int | None] = dict.fromkeys(SUMMED_COUNTS)
    latencies: list[float] = []
    calls = 0
    for record in records:
        calls += 1
        for name in SUMMED_COUNTS:
            value = record.get(name)
            if value is not None:
                counts[name] = (counts[name] or 0) + value
        latency = record.get("latency_total_ms")
        if latency is not None:
            latencies.append(latency)
    return {**counts, "latency_total_ms": compensated_sum(latencies) if latencies else None, "num_calls": calls}


def compensated_sum(values: Iterable[float]) -> float:
    """The sum of `values`, with the low-order bits that each addition loses added at the end (Neumaier).

    It is what `sum()` returns from Python 3.12 on; Python 3.11's would differ in the last digits, and the same log
    must merge into the same record everywhere.
    """
    total = lost = 0.0
    for value in values:
        grown = total + value
        if abs(total) >= abs(value):
            lost += (total - grown) + value
        else:
            lost += (value - grown) + total
        total = grown
    return total + lost if isfinite(lost) else total
