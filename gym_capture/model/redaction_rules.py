"""The rules of `capture.redact`, and how each is compiled."""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import Any

import msgspec

_MAX_PATH_DEPTH = 400
"""Deeper values than `$..` follows are withheld."""


class RedactionRules(msgspec.Struct, frozen=True):
    """The rules of `capture.redact`, as they travel.

    Args:
        paths: JSON paths (RFC 9535), rooted at the exchange.
        patterns: regular expressions.
    """

    paths: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()


def compile_path(path: str) -> Any:
    """A JSON path, compiled.

    Raises:
        ValueError: it is none by RFC 9535, or matches the whole exchange.
    """
    try:
        compiled = _environment().compile(path)
        root = not getattr(compiled, "segments", True)
    except Exception as error:
        try:
            why = str(error).partition("\n")[0]
        except Exception:  # noqa: BLE001 - jsonpath cannot show where an error at the end of a path stands
            why = "it ends too early"
        raise ValueError(
            f"{path!r} is not a JSON path by RFC 9535 ({why}): write it from the exchange's root, $.request.user or "
            "$..api_key say"
        ) from error
    if root:
        raise ValueError(f"{path!r} is the whole exchange: name what is to be taken out of it, $.request.user say")
    return compiled


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A regular expression, compiled.

    Raises:
        ValueError: it is none, or matches the empty text.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(
            f"{pattern!r} is not a regular expression ({error}): write it as Python's re module reads it, and quote it "
            "in YAML with single quotes"
        ) from error
    if compiled.search("") is not None:
        raise ValueError(f"{pattern!r} matches the empty text: let it match at least one character")
    return compiled


@lru_cache(maxsize=1)
def _environment() -> Any:
    # Loaded only where paths are configured.
    from jsonpath import JSONPathEnvironment

    class Deep(JSONPathEnvironment):
        max_recursion_depth = _MAX_PATH_DEPTH

    return Deep(strict=True)
