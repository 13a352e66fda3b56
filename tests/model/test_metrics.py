"""Sums over records, and how gaps are worded."""

from __future__ import annotations

from typing import Any

from gym_capture.model.gaps import gap, incomplete_detail
from gym_capture.model.metrics import aggregate, compensated_sum
from tests.model.exact import exact


def test_unknown_is_null_and_never_zero() -> None:
    assert exact(aggregate([])) == exact(
        {
            "tokens_in": None,
            "tokens_out": None,
            "tokens_reasoning": None,
            "tokens_total": None,
            "cached_tokens": None,
            "latency_total_ms": None,
            "num_calls": 0,
        }
    )


def test_the_known_ones_are_summed_and_every_call_counted() -> None:
    records: list[dict[str, Any]] = [
        {"tokens_in": 3, "cached_tokens": 0},
        {"tokens_in": None},
        {"tokens_in": 4, "latency_total_ms": 1.5},
    ]
    metrics = aggregate(records)
    assert exact(metrics) == exact(
        {
            "tokens_in": 7,
            "tokens_out": None,
            "tokens_reasoning": None,
            "tokens_total": None,
            "cached_tokens": 0,
            "latency_total_ms": 1.5,
            "num_calls": 3,
        }
    )


def test_float_sums_do_not_depend_on_the_python_version() -> None:
    assert compensated_sum([8132.64, 7108.42, 6726.1]) == 21967.16
    assert compensated_sum([1e16, 1.0, -1e16]) == 1.0
    assert compensated_sum([1e308, 1e308]) == float("inf")


def test_a_gap_without_detail_has_no_such_key() -> None:
    assert gap("x") == {"code": "x"}
    assert gap("x", "count=2") == {"code": "x", "detail": "count=2"}


def test_reasons_of_incompleteness_are_sorted_by_name() -> None:
    assert incomplete_detail({"released": 1, "lost": 2}) == "lost=2, released=1"
    assert incomplete_detail({"released": 1, "lost": 0}) == "released=1"
    assert incomplete_detail({}) is None


def test_a_mark_that_names_no_reason_is_not_one_of_them() -> None:
    assert incomplete_detail({"": 1}) is None
    assert incomplete_detail({"": 1, "lost": 2}) == "lost=2"
