"""Text of others for a terminal: nothing in it moves the cursor, colours, or hides what stands beside it."""

from __future__ import annotations

import unicodedata

_KEPT = "\n\t"
_ESCAPED = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def plain(text: str) -> str:
    """The text with control, formatting and private characters written as escapes; line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        letter if letter in _KEPT or unicodedata.category(letter) not in _ESCAPED else _escaped(letter)
        for letter in text
    )


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
