"""The JSON object that an event carries."""

from __future__ import annotations

from typing import Any

import msgspec

from gym_capture.model.json_text import parse_json

MAX_DEPTH = 200
"""Deepest nesting of an event: encoders and readers further on give up not far beyond."""

_decode = msgspec.json.Decoder().decode


def event_object(data: bytes) -> dict[str, Any] | None:
    """The object in an event's data, also where the JSON standard refuses it (NaN, lone surrogates, long integers).

    Returns:
        The object; None for anything else: other values, text that is no JSON or no UTF-8, nesting over `MAX_DEPTH`.
    """
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and _too_deep(data):
        return None
    try:
        value = _decode(data)
    except (msgspec.MsgspecError, RecursionError):
        value = _nonstandard(data)
    return value if type(value) is dict else None


def _nonstandard(data: bytes) -> Any:
    try:
        text = data.decode("utf-8")
        # Anything but an opening brace (a byte order mark, NULs) would let the parser guess at another encoding.
        if not text.lstrip(" \t\r\n").startswith("{") or "\0" in text:
            return None
        return parse_json(data)
    except (ValueError, RecursionError):
        return None


def _too_deep(data: bytes) -> bool:
    """Whether brackets outside of strings nest deeper than `MAX_DEPTH`; malformed text may be called either."""
    depth = 0
    in_string = escaped = False
    for byte in data:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in b"{[":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif byte in b"}]":
            depth -= 1
    return False
