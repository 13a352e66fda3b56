"""Bins and ticks: every value in one bin, round edges, and nothing that a broken clock could break."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_capture.viewer.plots import TimeBin, log_ticks, spread_plot, time_plot, time_step
from gym_capture.viewer.shown import shown, shown_text


@pytest.mark.parametrize(
    ("length_s", "step_s"), [(0.0, 1), (80, 1), (81, 2), (1200, 15), (86400, 1800), (86400 * 400, 86400 * 5)]
)
def test_a_span_of_time_gets_a_round_step(length_s: float, step_s: float) -> None:
    assert time_step(length_s) == step_s


def test_calls_fall_into_the_bin_in_which_they_ended() -> None:
    found = time_plot([(100.5, False, 10, 1), (100.9, True, None, 2), (102.0, False, 5, None)])
    assert (found.start, found.step_s) == (100.0, 1.0)
    assert found.bins == [TimeBin(2, 1, 10, 3), TimeBin(0, 0, 0, 0), TimeBin(1, 0, 5, 0)]


def test_a_bin_begins_at_a_whole_multiple_of_its_length() -> None:
    found = time_plot([(3601.0, False, 0, 0), (3601.0 + 1200, False, 0, 0)])
    assert (found.step_s, found.start) == (15.0, 3600.0)
    assert sum(each.calls for each in found.bins) == 2


def test_calls_without_a_time_are_counted_apart() -> None:
    ends = (None, -1.0, 1e300, math.nan, math.inf, 7.0)
    found = time_plot([(end, False, 1, 1) for end in ends])
    assert (found.untimed, found.bins) == (5, [TimeBin(1, 0, 1, 1)])
    assert time_plot([]).bins == []


@given(st.lists(st.floats(0, 4e9), min_size=1, max_size=50))
def test_every_call_is_in_one_of_not_too_many_bins(ends: list[float]) -> None:
    found = time_plot([(end, False, None, None) for end in ends])
    assert sum(each.calls for each in found.bins) == len(ends)
    assert len(found.bins) <= 82


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=50))
def test_every_finite_value_is_in_one_bin_of_a_histogram(values: list[float]) -> None:
    found = spread_plot(values)
    finite = [value for value in values if math.isfinite(value)]
    assert sum(found.counts) == (len(finite) if any(value > 0 for value in finite) else 0)
    assert len(found.edges) == (len(found.counts) + 1 if found.counts else 0)
    assert found.edges == sorted(found.edges)
    assert all(found.edges[0] <= tick <= found.edges[-1] for tick in found.ticks)


def test_a_histogram_has_its_values_between_its_edges() -> None:
    found = spread_plot([10.0] * 5 + [1000.0])
    assert (found.counts[0], found.counts[-1], sum(found.counts)) == (5, 1, 6)
    assert found.edges[0] == pytest.approx(10.0)
    assert found.edges[-1] == pytest.approx(1000.0)
    assert [tick for tick in found.ticks if 15 < tick < 900] == [20.0, 50.0, 100.0, 200.0, 500.0]


def test_a_value_beyond_all_sense_counts_at_the_end() -> None:
    found = spread_plot([5e-324, 1.0, 1.7e308])
    assert found.edges[0] == pytest.approx(1e-6)
    assert found.edges[-1] == pytest.approx(1e12)
    assert (found.counts[0], found.counts[-1], sum(found.counts)) == (1, 1, 3)


def test_ticks_are_few_and_round() -> None:
    assert log_ticks(1, 100) == [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
    assert log_ticks(1, 10_000) == [1.0, 10.0, 100.0, 1000.0, 10_000.0]
    assert log_ticks(3, 4) == []
    assert len(log_ticks(1e-300, 1e300)) <= 7


def test_what_json_has_not_is_shown_all_the_same() -> None:
    given_value = {"a\x1b": [math.nan, math.inf, 2**60, -1, True, None, "\u202e"], "b": ("x",)}
    assert shown(given_value) == {
        "a\\x1b": [None, None, str(2**60), -1, True, None, "\\u202e"],
        "b": ["x"],
    }
    assert shown(10**5000) == "a number of thousands of digits"


def test_a_text_that_is_cut_says_by_how_much() -> None:
    assert shown_text("abcdef", max_characters=4) == "abcd\n… (2 more characters)"
    assert shown_text("a\nb\nc", max_lines=1) == "a\n… (2 more lines)"
