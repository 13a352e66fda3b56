"""JSON values that arrive in pieces: put together as they come, joined when they are read, bounded in size."""

from __future__ import annotations

import json
from typing import Any

import msgspec

_DEEPEST = 16
_WHOLE = frozenset({"id", "type", "role", "format"})
"""Strings that providers repeat whole, never in pieces."""

# What a growing response counts for, in bytes: what these take in memory, beside the text in them.
OBJECT_BYTES = 250
_FIELD_BYTES = 40
_TEXT_BYTES = 100
_ENTRY_BYTES = 12
_CONTAINER_BYTES = 12
_KEY_BYTES = 10
_PLACE_BYTES = 4
"""Those of values that come whole are a quarter of what they take: text has braces and commas, too."""


class Growth:
    """How much the values of one response have grown, in bytes, and what happened to them.

    `overflowed`: they reached the limit, and what came after that was left out. `odd`: a piece did not fit what was
    there (a list where text was, say) and was left out.
    """

    __slots__ = ("limit", "odd", "overflowed", "spent")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0
        self.overflowed = False
        self.odd = False

    def spend(self, size: int) -> bool:
        """Whether `size` more bytes may be kept; counts them."""
        if self.overflowed:
            return False
        if self.spent + size > self.limit:
            self.overflowed = True
            return False
        self.spent += size
        return True


def size_of(value: Any) -> int:
    """About how long a value's JSON text is, in bytes, and a part of what it takes in memory beyond that."""
    kind = type(value)
    if kind is str:
        return len(value) + 2
    if kind is dict or kind is list:
        if not value:
            return 2 + _CONTAINER_BYTES
        try:
            text = msgspec.json.encode(value)
        except (msgspec.MsgspecError, ValueError):
            text = json.dumps(value).encode("ascii")
        containers = text.count(b"{") + text.count(b"[")
        places = text.count(b",")
        return len(text) + containers * _CONTAINER_BYTES + places * _PLACE_BYTES + text.count(b":") * _KEY_BYTES
    return 8


class Text:
    """A string that grows at its end: one buffer, whatever the number of pieces. Lone surrogates come back."""

    __slots__ = ("_utf8",)

    def __init__(self, begun: str = "") -> None:
        self._utf8 = bytearray(begun.encode("utf-8", "surrogatepass"))

    def append(self, piece: str, growth: Growth) -> None:
        try:
            encoded = piece.encode()
        except UnicodeEncodeError:
            encoded = piece.encode("utf-8", "surrogatepass")
        if growth.spend(len(encoded)):
            self._utf8 += encoded

    def equals(self, text: str) -> bool:
        """Whether it is this text; costs no more than that is long."""
        return len(self._utf8) <= 4 * len(text) and self._utf8 == text.encode("utf-8", "surrogatepass")

    def value(self) -> str:
        return self._utf8.decode("utf-8", "surrogatepass")


class Listing:
    """A list that grows at its end; entries with an integer `index` are put together by it."""

    __slots__ = ("_by_index", "_depth", "_entries", "_growth", "_joins")

    def __init__(self, growth: Growth, joins: bool, depth: int) -> None:
        self._growth = growth
        self._joins = joins
        self._depth = depth
        self._entries: list[Any] = []
        self._by_index: dict[int, Fragments] = {}

    def extend(self, items: list[Any]) -> None:
        for item in items:
            if self._joins and self._depth < _DEEPEST and type(item) is dict and type(item.get("index")) is int:
                self._merge_indexed(item["index"], item)
            elif self._growth.spend(size_of(item) + _ENTRY_BYTES):
                self._entries.append(item)

    def _merge_indexed(self, index: int, item: dict[str, Any]) -> None:
        entry = self._by_index.get(index)
        if entry is None:
            if not self._growth.spend(OBJECT_BYTES):
                return
            entry = self._by_index[index] = Fragments(self._growth, depth=self._depth + 1)
            self._entries.append(entry)
        entry.merge(item)

    def value(self) -> list[Any]:
        return [read(entry) for entry in self._entries]


class Fragments:
    """An object whose fields arrive in pieces.

    Strings are appended to what is there (`joins`), or replace it; lists are extended, objects merged, numbers and
    bools replaced; null says nothing about what is there.
    """

    __slots__ = ("_depth", "_fields", "_growth", "_joins")

    def __init__(self, growth: Growth, joins: bool = True, depth: int = 0) -> None:
        self._growth = growth
        self._joins = joins
        self._depth = depth
        self._fields: dict[str, Any] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._fields

    def merge(self, pieces: dict[str, Any]) -> None:
        for key, value in pieces.items():
            self.add(key, value)

    def add(self, key: str, value: Any) -> None:
        """Take one piece of a field."""
        kind = type(value)
        if value is None:
            if key not in self._fields:
                self.put(key, None)
        elif kind is str and self._joins and key not in _WHOLE:
            self.append_text(key, value)
        elif kind is dict and self._depth < _DEEPEST:
            self._merge_object(key, value)
        elif kind is list:
            self.extend(key, value)
        elif key in self._fields and isinstance(self._fields[key], (Text, Listing, Fragments)):
            self._growth.odd = True
        else:
            self.put(key, value)

    def put(self, key: str, value: Any) -> None:
        """Set a field to a whole value, whatever was there."""
        fields = self._fields
        held = fields.get(key)
        if type(held) is str and held == value:
            return
        if key in fields:
            growth = size_of(value) - (size_of(held) if not isinstance(held, (Text, Listing, Fragments)) else 0)
        else:
            growth = len(key) + _FIELD_BYTES + size_of(value)
        if self._growth.spend(growth if growth > 0 else 0):
            fields[key] = value

    def append_text(self, key: str, piece: str) -> None:
        """Append to a field that is text, or begin it."""
        held = self._fields.get(key)
        if type(held) is Text:
            held.append(piece, self._growth)
            return
        if held is not None and type(held) is not str:
            self._growth.odd = True
            return
        if held is None and not self._growth.spend(len(key) + _TEXT_BYTES):
            return
        text = self._fields[key] = Text(held or "")
        text.append(piece, self._growth)

    def extend(self, key: str, items: list[Any]) -> None:
        """Append to a field that is a list, or begin it."""
        held = self._fields.get(key)
        if type(held) is not Listing:
            if held is not None and type(held) is not list:
                self._growth.odd = True
                return
            if not self._growth.spend(len(key) + OBJECT_BYTES):
                return
            begun, held = held, Listing(self._growth, self._joins, self._depth)
            self._fields[key] = held
            if begun:
                held.extend(begun)
        held.extend(items)

    def _merge_object(self, key: str, value: dict[str, Any]) -> None:
        held = self._fields.get(key)
        if type(held) is not Fragments:
            if held is not None:
                self._growth.odd = True
                return
            if not self._growth.spend(len(key) + OBJECT_BYTES):
                return
            held = self._fields[key] = Fragments(self._growth, self._joins, self._depth + 1)
        held.merge(value)

    def is_text(self, key: str, text: str) -> bool:
        """Whether a field is this text so far; costs no more than that is long."""
        held = self._fields.get(key)
        return held.equals(text) if type(held) is Text else held == text

    def object(self, key: str) -> Fragments | None:
        """A field that is an object in pieces."""
        held = self._fields.get(key)
        return held if type(held) is Fragments else None

    def get(self, key: str) -> Any:
        """A field as it is so far; None when it is absent."""
        return read(self._fields.get(key))

    def value(self) -> dict[str, Any]:
        return {key: read(value) for key, value in self._fields.items()}


def read(value: Any) -> Any:
    """A value as it is so far, its pieces joined."""
    return value.value() if isinstance(value, (Text, Listing, Fragments)) else value
