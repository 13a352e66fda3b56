"""Reading one value of an exchange that may be of any type: the value in its field's type, or None.

What plainly means the value is taken for it (`"200"` and `200.0` for 200), as NeMo Gym's record does; what does
not is unknown. None of these raises on a value that JSON can carry.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

from gym_capture.model.json_values import MAX_INTEGER_BITS, clean_text

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,64}(\.0+)?")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TRUE_TEXT = frozenset(("1", "on", "t", "true", "y", "yes"))
_FALSE_TEXT = frozenset(("0", "off", "f", "false", "n", "no"))


def text(value: Any) -> str | None:
    """Text as it is; anything else is None."""
    if value is None:
        return None
    if type(value) is str and value.isascii():
        return value
    return clean_text(value) if isinstance(value, str) else None


def integer(value: Any) -> int | None:
    """An integer, or a number, truth value or text that is one."""
    if value is None or (type(value) is int and 0 <= value < 1000):
        return value
    if isinstance(value, str):
        stripped = value.strip()
        return int(stripped.partition(".")[0]) if _WHOLE_NUMBER.fullmatch(stripped) else None
    if isinstance(value, float):
        return int(value) if isfinite(value) and value.is_integer() else None
    if isinstance(value, int) and value.bit_length() <= MAX_INTEGER_BITS:
        return int(value)
    return None


def number(value: Any) -> float | None:
    """A finite number as a float, or text that is one."""
    if value is None:
        return None
    if type(value) is float:
        return value if isfinite(value) else None
    if isinstance(value, str):
        stripped = value.strip()
        if len(stripped) > 400 or not _NUMBER.fullmatch(stripped):
            return None
    elif not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if isfinite(result) else None


def boolean(value: Any) -> bool | None:
    """A truth value, or a 0 or 1, or one of the usual words for one."""
    if value is None or type(value) is bool:
        return value
    if isinstance(value, str):
        word = value.lower()
        return True if word in _TRUE_TEXT else False if word in _FALSE_TEXT else None
    if isinstance(value, int | float):
        return True if value == 1 else False if value == 0 else None
    return None
