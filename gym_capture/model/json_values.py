"""Values that standard JSON can carry, and the text of those it cannot.

What a model server sent may hold NaN, lone surrogates, or nesting that no encoder follows. A derived record must
still be storable by any strict encoder, so such a part is kept as text.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

import msgspec

MAX_DEPTH = 200
"""Deepest nesting of a value inside a derived record; strict encoders give up a little beyond."""

MAX_INTEGER_BITS = 10_000
"""Longest integer: about 3,000 digits, which Python still writes in decimal (its own limit is 4,300 digits)."""


def is_standard(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether every JSON encoder can write `value`: exact JSON types, finite numbers, text that is valid UTF-8.

    Integers may have more than 64 bits (JSON has no limit); encoders that refuse those need their own way out.
    """
    kind = type(value)
    if kind is str:
        return is_unicode(value)
    if value is None or kind is bool:
        return True
    if kind is int:
        return bool(value.bit_length() <= MAX_INTEGER_BITS)
    if kind is float:
        return isfinite(value)
    if depth == 0:
        return False
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not is_unicode(key) or not is_standard(item, depth - 1):
                return False
        return True
    if kind is list:
        return all(is_standard(item, depth - 1) for item in value)
    return False


def is_unicode(text: str) -> bool:
    """Whether `text` has no lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def clean_text(text: str) -> str:
    """`text` as it is, but lone surrogates written out as `\\udXXX`."""
    text = str.__str__(text)
    return text if is_unicode(text) else text.encode(errors="backslashreplace").decode()


def plain_copy(value: Any, depth: int = MAX_DEPTH) -> Any:
    """What is plain JSON in `value`, read past any method that a subclass of its type may have replaced.

    Entries whose key is no text are left out; values of other types, and what is nested deeper, are None.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if issubclass(kind, str):
        return str.__str__(value)
    if depth == 0:
        return None
    if issubclass(kind, dict):
        return {key: plain_copy(item, depth - 1) for key, item in dict.items(value) if type(key) is str}
    if issubclass(kind, list):
        return [plain_copy(item, depth - 1) for item in list.__iter__(value)]
    return None


def as_text(value: Any) -> str:
    """The JSON text of a value that is not standard; ASCII, so surrogates are escapes, and NaN is written as such.

    Raises:
        ValueError, RecursionError: the value refers to itself, or is nested too deeply to be written.
    """
    return json.dumps(value, default=str)


def parse_standard(text: str) -> Any:
    """The value of JSON text.

    Raises:
        ValueError: the text is not standard JSON, or its value is not standard (`is_standard`).
        RecursionError: it is nested too deeply to be parsed.
    """
    try:
        value = _decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        # It is no JSON, or the standard library can follow it further.
        value = _decoder.decode(text)
    if not is_standard(value):
        raise ValueError("not standard JSON")
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not standard JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse)
_decode = msgspec.json.Decoder().decode
