"""Token accounting over the usage shapes of the three dialects.

OpenAI's two shapes count cached tokens inside the prompt; Anthropic's leaves cache reads and writes out of
`input_tokens`, so they are added. Null is unknown, never 0. `tokens_in` is the prompt's size, not its price.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_capture.model.json_values import MAX_INTEGER_BITS

_TOO_LARGE = 1 << MAX_INTEGER_BITS
_PROMPT_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_OUTPUT_DETAILS = ("output_tokens_details", "completion_tokens_details")


def _count(value: Any) -> int | None:
    # bool is an int to isinstance, and True tokens is malformed, not one token.
    return value if type(value) is int and 0 <= value < _TOO_LARGE else None


def _first_count(usage: Mapping[str, Any], name: str, other: str) -> int | None:
    count = _count(usage.get(name))
    return _count(usage.get(other)) if count is None else count


def _first_detail(usage: Mapping[str, Any], groups: tuple[str, str], name: str, other: str | None = None) -> int | None:
    for group in groups:
        details = usage.get(group)
        if details is not None and (type(details) is dict or isinstance(details, Mapping)):
            count = _count(details.get(name))
            if count is None and other is not None:
                count = _count(details.get(other))
            if count is not None:
                return count
    return None


def extract_token_stats(usage: Any) -> dict[str, int | None]:
    """Token counts of one response.

    Args:
        usage: the response's `usage` in the shape of any dialect; what is malformed counts as unknown.

    Returns:
        `tokens_in`, `tokens_out`, `tokens_reasoning`, `tokens_total` and `cache_creation_tokens`, each None when
        unknown. The total is the provider's, else the sum of both sides when both are known.
    """
    if type(usage) is not dict and not isinstance(usage, Mapping):
        return {
            "tokens_in": None,
            "tokens_out": None,
            "tokens_reasoning": None,
            "tokens_total": None,
            "cache_creation_tokens": None,
        }
    tokens_in = _first_count(usage, "input_tokens", "prompt_tokens")
    tokens_out = _first_count(usage, "output_tokens", "completion_tokens")
    cache_creation = _count(usage.get("cache_creation_input_tokens"))
    beside = (_count(usage.get("cache_read_input_tokens")) or 0) + (cache_creation or 0)
    if beside:
        tokens_in = (tokens_in or 0) + beside
    tokens_total = _count(usage.get("total_tokens"))
    if tokens_total is None and tokens_in is not None and tokens_out is not None:
        tokens_total = tokens_in + tokens_out
    tokens_reasoning = _first_detail(usage, _OUTPUT_DETAILS, "reasoning_tokens")
    if tokens_reasoning is None:
        tokens_reasoning = _count(usage.get("reasoning_output_tokens"))
    return {
        "tokens_in": tokens_in,
        "tokens_out": tokens_out,
        "tokens_reasoning": tokens_reasoning,
        "tokens_total": tokens_total,
        "cache_creation_tokens": cache_creation,
    }


def cached_tokens(usage: Any) -> int | None:
    """Prompt tokens that the provider served from its cache; None when it does not say."""
    if type(usage) is not dict and not isinstance(usage, Mapping):
        return None
    count = _first_detail(usage, _PROMPT_DETAILS, "cached_tokens", "cached_input_tokens")
    if count is None:
        count = _first_count(usage, "cache_read_input_tokens", "cached_input_tokens")
    return count
