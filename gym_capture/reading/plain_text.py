"""Captured text made safe to show: what steers a terminal, reorders a line or floods a screen is written out.

A model, a tool and whoever wrote a prompt decide what a payload says. Shown as it is, it could move the cursor, rename
the window, hide text behind a bidirectional override, or answer for the terminal. Nothing is dropped in silence: what
cannot be shown is shown as `\\x1b`, `\\u202e` and the like, and what is cut says how long it was.
"""

from __future__ import annotations

import re
import unicodedata

MAX_LINE_CHARACTERS = 2000
"""A longer line is cut; nobody reads it on a terminal, and drawing it may take a minute."""

MAX_LINES = 200

_PLAIN = re.compile(r"[\x20-\x7e]*")
_SUSPECT = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # controls, C1 among them: 0x9b alone begins a terminal sequence
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202f\u205f-\u206f"  # invisible, line separators, bidirectional controls
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff"
    "\ud800-\udfff\U000e0000-\U000e0fff]"  # lone surrogates; tags and variation selectors, which can carry hidden text
)
_SHORT = {"\t": "    ", "\n": "\\n", "\r": "\\r"}
_MARKS_IN_A_ROW = 8


def plain_line(text: str, max_characters: int = MAX_LINE_CHARACTERS) -> str:
    """Text as one line: line breaks are written out, too.

    Args:
        text: anything.
        max_characters: where it is cut; what was cut is counted.
    """
    shown = text[:max_characters]
    if not (_PLAIN.fullmatch(shown)):
        shown = _SUSPECT.sub(_written, _thinned(shown))
    hidden = len(text) - max_characters
    return f"{shown}… ({hidden:,} more characters)" if hidden > 0 else shown


def plain_block(text: str, max_lines: int = MAX_LINES, max_characters: int = MAX_LINE_CHARACTERS) -> str:
    """Text with its line breaks, each line made plain and cut, and as many lines as anybody would read.

    Args:
        text: anything; `\\r\\n` and `\\n` end a line, a lone `\\r` is written out.
        max_lines: where it is cut; what was cut is counted.
        max_characters: where a line is cut.
    """
    # A text of a gigabyte is not split to show its beginning.
    lines = text.split("\n", max_lines)
    rest = lines[max_lines:]
    shown = [plain_line(line.removesuffix("\r"), max_characters) for line in lines[:max_lines]]
    if rest:
        shown.append(f"… ({rest[0].count(chr(10)) + 1:,} more lines)")
    return "\n".join(shown)


def _written(found: re.Match[str]) -> str:
    character = found[0]
    short = _SHORT.get(character)
    if short is not None:
        return short
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _thinned(text: str) -> str:
    """Letters with a tower of marks on them, which would be drawn over other lines, keep a few of them."""
    if not any(unicodedata.combining(each) for each in set(text)):
        return text
    kept: list[str] = []
    marks = 0
    for each in text:
        marks = marks + 1 if unicodedata.combining(each) else 0
        if marks <= _MARKS_IN_A_ROW:
            kept.append(each)
        elif marks == _MARKS_IN_A_ROW + 1:
            kept.append("…")
    return "".join(kept)


__all__ = ["MAX_LINES", "MAX_LINE_CHARACTERS", "plain_block", "plain_line"]
