"""Sums over derived records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

SUMMED_FIELDS = ("tokens_in", "tokens_out", "tokens_reasoning", "tokens_total", "cached_tokens", "latency_total_ms")


def aggregate(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The `metrics` object of a set of calls.

    Args:
        records: derived records, in call order (floating-point sums depend on it).

    Returns:
        The sum of each of `SUMMED_FIELDS` over the records that know it (None when none does), then `num_calls`.
    """
    sums: dict[str, Any] = dict.fromkeys(SUMMED_FIELDS)
    calls = 0
    for record in records:
        calls += 1
        for name in SUMMED_FIELDS:
            value = record.get(name)
            if value is not None:
                # Added one by one: sum() rounds floats differently from Python 3.12 on.
                known = sums[name]
                sums[name] = value if known is None else known + value
    sums["num_calls"] = calls
    return sums
