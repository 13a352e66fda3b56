"""JSON values as the page gets them: captured text made plain and bounded, numbers that JSON has."""

from __future__ import annotations

import math
from typing import Any

from gym_capture.reading.plain_text import plain_block, plain_line

PIECE_CHARACTERS = 60_000
PIECE_LINES = 2_000
LINE_CHARACTERS = 4_000
"""What of one text the page is given; the rest is counted. A browser takes a while to lay out more."""

_MOST_WHOLE = 2**53
"""Whole numbers beyond it are text, because a page's numbers would round them."""


def shown(value: Any) -> Any:
    """A JSON value for the page: texts are plain and cut, what is no finite number is unknown."""
    if isinstance(value, str):
        return shown_text(value)
    if isinstance(value, dict):
        return {plain_line(str(key)): shown(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [shown(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _MOST_WHOLE:
        return plain_line(str(value)) if value.bit_length() < 10_000 else "a number of thousands of digits"
    return value


def shown_text(
    text: str,
    max_characters: int = PIECE_CHARACTERS,
    max_lines: int = PIECE_LINES,
    line_characters: int = LINE_CHARACTERS,
) -> str:
    """Text with its line breaks; controls, invisible and reordering characters are written out.

    Args:
        text: anything.
        max_characters, max_lines, line_characters: where it is cut; what was cut is counted.
    """
    shown = plain_block(text[:max_characters], max_lines, line_characters)
    hidden = len(text) - max_characters
    return f"{shown}\n… ({hidden:,} more characters)" if hidden > 0 else shown


__all__ = ["LINE_CHARACTERS", "PIECE_CHARACTERS", "PIECE_LINES", "shown", "shown_text"]
