"""Payloads as redaction looks at them: parsed, as text, unescaped; and what is no single JSON value."""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, NamedTuple

from gym_capture.model.json_text import parse_integer

EVENT_STREAM = re.compile(r"(?:^|[\r\n])\ufeff?(?:(?:data|event|id|retry)[ \t]*:|:)")
_FIELD = re.compile(r"(?:^|[\r\n])\ufeff?([\w-]{1,64})[ \t]*:")
_BETWEEN_VALUES = " \t\r\n\x1e,"
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([\"\\/'bfnrt]))")
_SHORT_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
MOST_ESCAPING = 64
"""Unescaping at least halves the backslashes of what it changes, so no text that fits into memory needs more."""


class ParsedJson(NamedTuple):
    """JSON bytes, parsed; `repeats`: a key stands twice in an object, so that the bytes hold more than the value."""

    value: Any
    repeats: bool


def parse_bytes(data: bytes) -> ParsedJson | None:
    repeats = False

    def entries(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeats
        found = dict(pairs)
        repeats = repeats or len(found) < len(pairs)
        return found

    try:
        return ParsedJson(json.loads(data, object_pairs_hook=entries, parse_int=parse_integer), repeats)
    except (ValueError, RecursionError):
        return None


def as_text(data: bytes) -> str | None:
    """Bytes as text, the last character may be cut; None for what is no UTF-8 (another encoding, compressed)."""
    try:
        text, read = codecs.utf_8_decode(data, "strict", False)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text + data[read:].decode("utf-8", "surrogateescape")


def unescaped(text: str) -> str:
    plain = _ESCAPE.sub(_character, text)
    # Two escaped halves are one character.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _character(escape: re.Match[str]) -> str:
    digits = escape[1] or escape[2]
    return chr(int(digits, 16)) if digits else _SHORT_ESCAPES.get(escape[3], escape[3])


def repeats_a_field(text: str) -> bool:
    """Whether lines look like events of some stream: the same field name stands before a colon twice."""
    seen: set[str] = set()
    for found in _FIELD.finditer(text):
        if found[1] in seen:
            return True
        seen.add(found[1])
    return False


def has_several_values(text: str) -> bool:
    """Whether a text that is no JSON value is several, on lines of their own or one behind the other."""
    stripped = text.lstrip(_BETWEEN_VALUES)
    try:
        _, end = _decode_first(stripped)
    except (ValueError, RecursionError):
        pass
    else:
        if stripped[end:].lstrip(_BETWEEN_VALUES)[:1] in ("{", "[", '"'):
            return True
    lines = [line for line in map(_plain_line, text.splitlines()) if line]
    return len(lines) > 1 and any(line[0] + line[-1] in ("{}", "[]") and len(line) > 2 for line in lines)


def _plain_line(line: str) -> str:
    return line.strip(_BETWEEN_VALUES)


_decode_first = json.JSONDecoder(parse_int=parse_integer).raw_decode
