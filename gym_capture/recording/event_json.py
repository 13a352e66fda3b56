"""The JSON object that an event carries."""

from __future__ import annotations

import json
from itertools import chain
from math import isfinite
from typing import Any

import msgspec

from gym_capture.model.json_text import parse_integer

MAX_DEPTH = 200
"""Deepest nesting of an event: encoders and readers further on give up not far beyond."""

_CONTAINERS = (dict, list)
_decode = msgspec.json.Decoder().decode


def event_object(data: bytes) -> dict[str, Any] | None:
    """The object in an event's data, also where the JSON standard refuses it (NaN, lone surrogates, long integers).

    A number that no float holds (1e400) comes back as its text.

    Returns:
        The object; None for anything else: other values, text that is no JSON or no UTF-8, nesting over `MAX_DEPTH`.
    """
    try:
        value = _decode(data)
    except (msgspec.MsgspecError, RecursionError):
        value = _nonstandard(data)
    if type(value) is not dict:
        return None
    return None if data.count(b"{") + data.count(b"[") > MAX_DEPTH and _too_deep(value) else value


def _nonstandard(data: bytes) -> Any:
    try:
        text = data.decode("utf-8")
        # Anything but an opening brace (a byte order mark, NULs) would let the parser guess at another encoding.
        if not text.lstrip(" \t\r\n").startswith("{") or "\0" in text:
            return None
        return json.loads(text, parse_int=parse_integer, parse_float=_parse_float)
    except (ValueError, RecursionError):
        return None


def _parse_float(text: str) -> float | str:
    value = float(text)
    return value if isfinite(value) else text


def _too_deep(value: dict[str, Any]) -> bool:
    """Whether a value nests deeper than `MAX_DEPTH`; level by level, as a stack of calls is what is to be spared."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner = chain.from_iterable(held.values() if type(held) is dict else held for held in level)
        level = [held for held in inner if type(held) in _CONTAINERS]
        if not level:
            return False
    return True
