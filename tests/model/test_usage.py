"""Token accounting over the providers' usage shapes."""

from __future__ import annotations

from typing import Any

import pytest

from gym_capture.model.usage import cached_tokens, extract_token_stats

UNKNOWN = dict.fromkeys(("tokens_in", "tokens_out", "tokens_reasoning", "tokens_total", "cache_creation_tokens"))


def test_anthropic_cached_tokens_are_added_to_the_prompt() -> None:
    usage = {"input_tokens": 5, "output_tokens": 7, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}
    assert extract_token_stats(usage) == {
        "tokens_in": 125,
        "tokens_out": 7,
        "tokens_reasoning": None,
        "tokens_total": 132,
        "cache_creation_tokens": 20,
    }
    assert cached_tokens(usage) == 100


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": 50, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 40}},
        {"prompt_tokens": 50, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 40}},
    ],
)
def test_openai_cached_tokens_are_in_the_prompt_already(usage: dict[str, Any]) -> None:
    assert extract_token_stats(usage) == {**UNKNOWN, "tokens_in": 50, "tokens_out": 1, "tokens_total": 51}
    assert cached_tokens(usage) == 40


def test_cache_reads_alone_make_a_prompt_but_zeros_do_not() -> None:
    assert extract_token_stats({"cache_read_input_tokens": 3})["tokens_in"] == 3
    zeros = extract_token_stats({"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0})
    assert zeros == {**UNKNOWN, "cache_creation_tokens": 0}


def test_the_providers_total_stands_even_where_it_disagrees() -> None:
    assert extract_token_stats({"input_tokens": 1, "output_tokens": 1, "total_tokens": 9})["tokens_total"] == 9


def test_a_total_needs_both_sides() -> None:
    assert extract_token_stats({"output_tokens": 4}) == {**UNKNOWN, "tokens_out": 4}


def test_reasoning_tokens_come_from_either_details_or_beside_them() -> None:
    for usage in (
        {"output_tokens_details": {"reasoning_tokens": 6}},
        {"output_tokens_details": [], "completion_tokens_details": {"reasoning_tokens": 6}},
        {"reasoning_output_tokens": 6},
    ):
        assert extract_token_stats(usage)["tokens_reasoning"] == 6


@pytest.mark.parametrize("count", [True, -1, 1.0, "1", None, [], {}])
def test_a_count_that_is_no_count_is_unknown_and_the_next_name_is_asked(count: object) -> None:
    assert extract_token_stats({"input_tokens": count})["tokens_in"] is None
    assert extract_token_stats({"input_tokens": count, "prompt_tokens": 8})["tokens_in"] == 8
    assert cached_tokens({"cache_read_input_tokens": count}) is None


def test_zero_cached_tokens_are_known() -> None:
    assert cached_tokens({"input_tokens_details": {"cached_tokens": 0}}) == 0


@pytest.mark.parametrize("usage", [None, 3, "x", [], [{"input_tokens": 1}]])
def test_a_usage_that_is_no_object_is_unknown(usage: object) -> None:
    assert extract_token_stats(usage) == UNKNOWN
    assert cached_tokens(usage) is None
