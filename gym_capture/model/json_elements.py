"""Where the messages of a request lie in its text, found without changing or trusting anything of it.

Whatever is returned lies in the text and does not overlap, so cutting there and joining again gives the same bytes.
What is missed costs room, never exactness.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

import msgspec

MIN_ELEMENT_BYTES = 32
"""Shorter elements stay text: referring to them would save nothing."""

_LISTS = ("messages", "input", "tools")
_VALUES = ("system", "instructions")
_KEYS = {key: key in _LISTS for key in (*_LISTS, *_VALUES)}
_QUOTED = {key: b'"%s"' % key.encode() for key in _KEYS}
_STARTS = {key: re.compile(rb"%s\s*:\s*%s" % (_QUOTED[key], rb"\[\s*" if _KEYS[key] else b"")) for key in _KEYS}
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


Element = tuple[int, int, bytes]
"""A message of a request: its first byte, the byte after its last, and its bytes."""


class Known(NamedTuple):
    """The elements that a list is known to begin with: `length` bytes from `at` on, which are `listed` elements."""

    at: int
    length: int
    listed: int


NOTHING_KNOWN: Mapping[str, Known] = MappingProxyType({})


class Region(NamedTuple):
    """Where elements lie.

    Fields: the `key` of the list whose elements they are, else empty; the first byte, and the byte after the last, of
    all the list's elements; how many these are; how many bytes at the beginning were known before; and the `elements`
    behind them, of at least `MIN_ELEMENT_BYTES`.
    """

    key: str
    start: int
    end: int
    listed: int
    known_bytes: int
    elements: list[Element]


def find_regions(text: bytes, known: Mapping[str, Known] = NOTHING_KNOWN) -> list[Region]:
    """Where the elements of a request's messages, inputs and tools, and its system prompt are, in the text's order.

    Args:
        text: a request as JSON, of any kind and quality.
        known: what lists begin with, by key; it is not looked into.

    Returns:
        Regions that do not overlap; none where the text cannot be followed.
    """
    try:
        found = _found_around(text, known) if known else None
        if found is None:
            found = _found_fast(text, {})
    except (ValueError, RecursionError):  # msgspec's own are ValueErrors
        found = None
    return _found_slowly(text) if found is None else found


def last_list(text: bytes, key: str) -> int:
    """Where the first element of the last list of that key begins, if it has one; -1: there is no such list."""
    begun = _STARTS[key].match(text, max(text.rfind(_QUOTED[key]), 0))
    return -1 if begun is None else begun.end()


def _found_around(text: bytes, known: Mapping[str, Known]) -> list[Region] | None:
    """Where they are, found without looking into what is known. None: that is not where lists begin."""
    pieces: list[bytes] = []
    starts: dict[str, int] = {}
    moves: list[tuple[int, int]] = []
    at = left_out = 0
    for key, (start, length, _) in sorted(known.items(), key=itemgetter(1)):
        if start < at:
            return None
        pieces.append(text[at:start])
        gap = _GAP.match(text, start + length)
        at = start + length if gap is None else gap.end()
        starts[key] = start - left_out
        left_out += at - start
        moves.append((starts[key], left_out))
    pieces.append(text[at:])
    found = _found_fast(b"".join(pieces), starts)
    return None if found is None else _moved(found, moves, known)


def _moved(found: list[Region], moves: list[tuple[int, int]], known: Mapping[str, Known]) -> list[Region] | None:
    """Where regions are in the whole text.

    Args:
        found: regions of the text without what is known.
        moves: from which byte of that text on how many bytes are left out before.
    """
    moved: list[Region] = []
    for key, start, end, listed, _, elements in found:
        by = 0
        for place, left_out in moves:
            if start < place < end:
                return None
            if place <= start:
                by = left_out
        elements = [(one + by, other + by, data) for one, other, data in elements]
        begins = known.get(key)
        if begins is None:
            moved.append(Region(key, start + by, end + by, listed, 0, elements))
        else:
            last = end + by if listed else begins.at + begins.length
            moved.append(Region(key, begins.at, last, begins.listed + listed, begins.length, elements))
    # Lists that are known may follow each other with nothing but space and commas between, as if one held the other.
    return moved if _in_order(moved) else None


def _in_order(regions: list[Region]) -> bool:
    """Whether each region begins where the one before has ended, or later."""
    return all(one.end <= other.start for one, other in pairwise(regions))


def _found_fast(text: bytes, starts: Mapping[str, int]) -> list[Region] | None:
    """Where they are, as msgspec reads the text.

    Args:
        starts: where lists begin of which elements were left out, by key.
    """
    payload = _decode_payload(text)
    found: list[Region] = []
    for key in _LISTS:
        raws = getattr(payload, key)
        at = starts.get(key)
        if at is None:
            if not raws or type(raws) is not list:
                continue
            at = _first_place(text, key, bytes(raws[0]))
        region = None if at is None or type(raws) is not list else _list_region(text, key, at, raws)
        if region is None:
            return None
        found.append(region)
    for key in _VALUES:
        data = bytes(getattr(payload, key))
        if len(data) >= MIN_ELEMENT_BYTES:
            at = _first_place(text, key, data)
            if at is None:
                return None
            found.append(Region("", at, at + len(data), 1, 0, [(at, at + len(data), data)]))
    found.sort(key=lambda region: region.start)
    # A key that stands twice may have led to the same bytes twice.
    return found if _in_order(found) else None


def _list_region(text: bytes, key: str, start: int, raws: list[msgspec.Raw]) -> Region | None:
    """The elements of a list, which follow each other. None: they are not where they are looked for."""
    end = start
    gap = 0
    elements: list[Element] = []
    starts_with = text.startswith
    for data in map(bytes, raws):
        at = end + gap
        if not starts_with(data, at):
            # Behind what precedes stand a comma and perhaps space, and mostly the same between any two.
            between = _GAP.match(text, end)
            at = end if between is None else between.end()
            if not starts_with(data, at):
                return None
            gap = at - end
        end = at + len(data)
        if len(data) >= MIN_ELEMENT_BYTES:
            elements.append((at, end, data))
    return Region(key, start, end, len(raws), 0, elements)


def _first_place(text: bytes, key: str, data: bytes) -> int | None:
    quoted, start = _QUOTED[key], _STARTS[key]
    at = text.find(quoted)
    for _ in range(_KEY_TRIES):
        if at < 0:
            return None
        begun = start.match(text, at)
        if begun is not None and text.startswith(data, begun.end()):
            return begun.end()
        at = text.find(quoted, at + 1)
    return None


def _found_slowly(text: bytes) -> list[Region]:
    """The same by walking the object with the standard library, which follows NaN, surrogates and huge integers.

    It reads the bytes as Latin-1, where a character is a byte: JSON's own characters are ASCII, and those of the
    strings do not matter here.
    """
    found: list[Element] = []
    try:
        _walk(text, text.decode("latin-1"), found)
    except (ValueError, StopIteration, IndexError, RecursionError):
        return []
    return [Region("", found[0][0], found[-1][1], len(found), 0, found)] if found else []


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
                found.append((start, at, data[start:at]))
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _walk_list(data: bytes, text: str, at: int, found: list[Element]) -> int:
    at = _skip(text, at + 1)
    while text[at] != "]":
        end = _value_end(text, at)
        if end - at >= MIN_ELEMENT_BYTES:
            found.append((at, end, data[at:end]))
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
