"""Where the messages of a request lie in its text, found without changing or trusting anything of it.

Whatever is returned lies in the text and does not overlap, so cutting there and joining again gives the same bytes.
What is missed costs room, never exactness.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import NamedTuple

import msgspec

MIN_ELEMENT_BYTES = 32
"""Shorter elements stay text: referring to them would save nothing."""

_LISTS = ("messages", "input", "tools")
_VALUES = ("system", "instructions")
_KEYS = {key: key in _LISTS for key in (*_LISTS, *_VALUES)}
_LIST_STARTS = {key: re.compile(rb'"%s"\s*:\s*\[\s*' % key.encode()) for key in _LISTS}
_VALUE_STARTS = {key: re.compile(rb'"%s"\s*:\s*' % key.encode()) for key in _VALUES}
_GAP = re.compile(rb"[\s,]*")
_SPACE = re.compile(r"[ \t\r\n]*")
_KEY_TRIES = 4

_NO_VALUE = msgspec.Raw()


class _Payload(msgspec.Struct):
    messages: list[msgspec.Raw] | None = None
    input: list[msgspec.Raw] | str | None = None
    tools: list[msgspec.Raw] | None = None
    system: msgspec.Raw = _NO_VALUE
    instructions: msgspec.Raw = _NO_VALUE


_decode_payload = msgspec.json.Decoder(_Payload).decode
_scan = json.JSONDecoder(strict=False, parse_int=len, parse_float=len).raw_decode


class Element(NamedTuple):
    """A message of a request: its first byte, the byte after its last, and its bytes."""

    start: int
    end: int
    data: bytes


def find_elements(text: bytes) -> list[Element]:
    """The elements of a request's messages, inputs and tools, and its system prompt, in the order of the text.

    Args:
        text: a request as JSON, of any kind and quality.

    Returns:
        Elements of at least `MIN_ELEMENT_BYTES`; none where the text cannot be followed.
    """
    try:
        found = _found_fast(text)
    except (ValueError, RecursionError):  # msgspec's own are ValueErrors
        found = None
    return _found_slowly(text) if found is None else found


def _found_fast(text: bytes) -> list[Element] | None:
    payload = _decode_payload(text)
    found: list[Element] = []
    for key in _LISTS:
        raws = getattr(payload, key)
        if raws and type(raws) is list and not _locate(text, _LIST_STARTS[key], key, raws, found):
            return None
    for key in _VALUES:
        raw = getattr(payload, key)
        if len(memoryview(raw)) >= MIN_ELEMENT_BYTES and not _locate(text, _VALUE_STARTS[key], key, [raw], found):
            return None
    found.sort()
    # A key that stands twice may have led to the same bytes twice.
    return found if all(one.end <= other.start for one, other in pairwise(found)) else None


def _locate(text: bytes, start: re.Pattern[bytes], key: str, raws: list[msgspec.Raw], found: list[Element]) -> bool:
    """Find elements that follow each other. False: they are not where they are looked for."""
    first = bytes(raws[0])
    at = _first_place(text, start, key, first)
    if at is None:
        return False
    starts_with = text.startswith
    for raw in raws:
        data = bytes(raw)
        if not starts_with(data, at):
            # Behind what precedes stand a comma and perhaps space.
            gap = _GAP.match(text, at)
            at = gap.end() if gap is not None else at
            if not starts_with(data, at):
                return False
        end = at + len(data)
        if len(data) >= MIN_ELEMENT_BYTES:
            found.append(Element(at, end, data))
        at = end + 1
    return True


def _first_place(text: bytes, start: re.Pattern[bytes], key: str, data: bytes) -> int | None:
    quoted = b'"%s"' % key.encode()
    at = text.find(quoted)
    for _ in range(_KEY_TRIES):
        if at < 0:
            return None
        begun = start.match(text, at)
        if begun is not None and text.startswith(data, begun.end()):
            return begun.end()
        at = text.find(quoted, at + 1)
    return None


def _found_slowly(text: bytes) -> list[Element]:
    """The same by walking the object with the standard library, which follows NaN, surrogates and huge integers.

    It reads the bytes as Latin-1, where a character is a byte: JSON's own characters are ASCII, and those of the
    strings do not matter here.
    """
    found: list[Element] = []
    try:
        _walk(text, text.decode("latin-1"), found)
    except (ValueError, StopIteration, IndexError, RecursionError):
        return []
    return found


def _walk(data: bytes, text: str, found: list[Element]) -> None:
    at = _skip(text, _past(text, _skip(text, 0), "{"))
    while text[at] != "}":
        key, at = _scan(text, at)
        at = _skip(text, _past(text, _skip(text, at), ":"))
        listed = _KEYS.get(key)
        start = at
        if listed and text[at] == "[":
            at = _walk_list(data, text, at, found)
        else:
            at = _value_end(text, at)
            if listed is False and at - start >= MIN_ELEMENT_BYTES:
                found.append(Element(start, at, data[start:at]))
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _walk_list(data: bytes, text: str, at: int, found: list[Element]) -> int:
    at = _skip(text, at + 1)
    while text[at] != "]":
        end = _value_end(text, at)
        if end - at >= MIN_ELEMENT_BYTES:
            found.append(Element(at, end, data[at:end]))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return at + 1


def _value_end(text: str, at: int) -> int:
    return _scan(text, at)[1]


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def _past(text: str, at: int, character: str) -> int:
    if text[at] != character:
        raise ValueError(f"no {character}")
    return at + 1
