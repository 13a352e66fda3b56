"""JSON text, kept as it was: encoding values without loss, and telling text that the standard refuses.

A fast encoder does the common case. It has habits that would lose evidence (NaN becomes null, bytes become base64,
keys 1 and "1" become one key, objects of unknown types become whatever they look like). Where long text stands in few
values, these are looked at: of JSON's own types exactly, nothing is lost. Else what it wrote is read back and compared
with what was given, which is cheaper for many short values. Only what differs is looked at piece by piece.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any

import msgspec

from gym_capture.errors import InvalidExchange

_BYTES = (bytes, bytearray, memoryview)
_HUGE_BITS = 14_000
"""Fewer bits than 4,300 digits have, which is where Python refuses to convert integers."""
_CONVERSIONS = ("model_dump", "to_dict", "tolist", "item")
_encode_msgpack = msgspec.msgpack.Encoder().encode
_encode = msgspec.json.Encoder().encode
_decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode

_LOOKED_AT_BYTES = 1024
_BYTES_A_VALUE = 32
"""Looking at each value takes less time than reading back texts of that length that have so many bytes a value."""
_LOOKED_AT_DEPTH = 64
"""What is nested deeper is read back, so that nothing is written that cannot be read."""
_MIN_INTEGER, _MAX_INTEGER = -(1 << 63), (1 << 64) - 1

_UNREAD = object()


class JsonText:
    """A value as JSON text.

    Attributes:
        text: the text.
        nonstandard: it holds NaN, infinities, integers over 64 bits or lone surrogates.
        converted: something in the value was (`model_dump()`, tuples, numbers as keys), so that reading the text back
            gives other types than were given.
    """

    __slots__ = ("_value", "converted", "nonstandard", "text")

    def __init__(self, text: bytes, nonstandard: bool, converted: bool, value: Any = _UNREAD) -> None:
        self.text = text
        self.nonstandard = nonstandard
        self.converted = converted
        self._value = value

    @property
    def value(self) -> Any:
        """What reading the text back gives; it shares nothing with what was given. Read when first asked for."""
        if self._value is _UNREAD:
            self._value = _decode(self.text)
        return self._value


def encode_json(value: Any) -> tuple[bytes, bool, bool]:
    """A value as compact JSON text in UTF-8, with key order, numbers and strings as they are.

    Returns:
        The text, whether it is nonstandard, and whether something was converted (`JsonText`).

    Raises:
        InvalidExchange: something in the value has no JSON form, or it refers to itself.
    """
    encoded = to_json(value)
    return encoded.text, encoded.nonstandard, encoded.converted


def to_json(value: Any) -> JsonText:
    """Like `encode_json`, with the value that reading the text back gives."""
    try:
        text = _encode(value)
        if len(text) >= _LOOKED_AT_BYTES and _is_plain(value, len(text) // _BYTES_A_VALUE):
            return JsonText(text, False, False)
        again = _decode(text)
        if again == value:
            return JsonText(text, exceeds_64_bits(again), False, again)
    except Exception:  # noqa: BLE001 - values of any type, their own methods may raise anything: looked at below
        pass
    try:
        return _to_json_slowly(value)
    except InvalidExchange:
        raise
    except RecursionError as error:
        raise InvalidExchange(
            "the value cannot be written as JSON: it refers to itself or is nested too deeply. Give a plain JSON value "
            "or the body's bytes."
        ) from error
    except Exception as error:  # methods of the caller's objects (model_dump and the like) may raise anything
        raise _refusal(str(error)) from error


def _is_plain(value: Any, at_most: int) -> bool:
    """Whether a value is made of dicts with text as keys, lists, texts, finite numbers of at most 64 bits, truth values
    and null, of exactly these types. False also where it has more than `at_most` values, or is nested deeply.
    """
    level: list[Any] = [[value]]
    for _ in range(_LOOKED_AT_DEPTH):
        below: list[Any] = []
        for each in level:
            at_most -= len(each)
            if at_most < 0:
                return False
            items = each
            if type(each) is dict:
                for key in each:
                    if type(key) is not str:
                        return False
                items = each.values()
            for item in items:
                kind = type(item)
                if kind is str:
                    continue
                if kind is dict or kind is list:
                    below.append(item)
                elif kind is int:
                    if not _MIN_INTEGER <= item <= _MAX_INTEGER:
                        return False
                elif kind is float:
                    if not isfinite(item):
                        return False
                elif item is not None and kind is not bool:
                    return False
        if not below:
            return True
        level = below
    return False


def _to_json_slowly(value: Any) -> JsonText:
    copier = _Copier()
    plain = copier.copy(value)
    if copier.huge:
        text = json.dumps(plain, separators=(",", ":")).encode("ascii")
        for stand_in, digits in copier.huge.items():
            text = text.replace(b'"%s"' % stand_in.encode("ascii"), digits)
        return JsonText(text, True, True, _parse_nonstandard(text))
    try:
        text = msgspec.json.encode(plain)
        again = msgspec.json.decode(text)
        if again == plain:
            return JsonText(text, exceeds_64_bits(again), copier.converted, again)
    except (UnicodeEncodeError, msgspec.MsgspecError):
        pass  # lone surrogates
    # NaN, infinities and surrogates; ASCII, so surrogates are escapes.
    text = json.dumps(plain, separators=(",", ":")).encode("ascii")
    return JsonText(text, True, copier.converted, json.loads(text))


class _Copier:
    """Copies a value into plain dicts, lists, strings, numbers, bools and None."""

    def __init__(self) -> None:
        self.converted = False
        self.huge: dict[str, bytes] = {}

    def copy(self, value: Any) -> Any:
        kind = type(value)
        if kind is int and value.bit_length() > _HUGE_BITS:
            return self._huge_integer(value)
        if value is None or kind in (str, int, float, bool):
            return value
        if kind is dict:
            return self._mapping(value)
        if kind is list:
            return [self.copy(item) for item in value]
        self.converted = True
        if isinstance(value, _BYTES):
            raise _refusal("bytes inside a value have no JSON form")
        if isinstance(value, Enum):
            return self.copy(value.value)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list | tuple | set | frozenset):
            return [self.copy(item) for item in value]
        return self._object(value)

    def _huge_integer(self, value: int) -> str:
        """A stand-in for an integer that the interpreter refuses to write; `Decimal` does write it."""
        stand_in = f"integer-{secrets.token_hex(16)}"
        self.huge[stand_in] = format(Decimal(value), "f").encode("ascii")
        return stand_in

    def _mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, item in value.items():
            if type(key) is not str:
                self.converted = True
            name = key if type(key) is str else _key_text(key)
            if name in plain:
                raise _refusal(f"two keys of an object are both written as {name[:80]!r}")
            plain[name] = self.copy(item)
        return plain

    def _object(self, value: Any) -> Any:
        """What a value that JSON does not know stands for (models of SDKs, numbers of array libraries, dates)."""
        for name in _CONVERSIONS:
            method = getattr(value, name, None)
            if callable(method) and not isinstance(value, type):
                return self.copy(method(mode="json") if name == "model_dump" else method())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: self.copy(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return self.copy(msgspec.to_builtins(value, builtin_types=_BYTES))


def _key_text(key: Any) -> str:
    """A key that is no string, as JSON writes it."""
    if isinstance(key, Enum):
        return _key_text(key.value)
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or isinstance(key, int | float):
        return json.dumps(key)
    plain = None if isinstance(key, _BYTES) else msgspec.to_builtins(key)
    if not isinstance(plain, str):
        raise _refusal(f"a {type(key).__name__} cannot be the key of an object")
    return plain


def _refusal(what: str) -> InvalidExchange:
    return InvalidExchange(
        f"the value cannot be written as JSON: {what}. Give JSON values (dict, list, str, numbers, bool, None), an "
        "object with model_dump(), or the body's bytes."
    )


def exceeds_64_bits(value: Any) -> bool:
    """Whether a plain JSON value holds an integer that neither int64 nor uint64 holds."""
    try:
        _encode_msgpack(value)
    except OverflowError:
        return True
    return False


def decode_json(text: bytes) -> tuple[Any, bool]:
    """The value of JSON text, also where the standard refuses it, and whether it does.

    Raises:
        ValueError: as `parse_json`.
    """
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return _parse_nonstandard(text), True
    try:
        return value, exceeds_64_bits(value)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_json(text: bytes) -> Any:
    """The value of JSON text, also where the standard refuses it.

    Integers of more than 4,300 digits, which Python does not convert, come back as their text.

    Raises:
        ValueError: not JSON text at all, or nested deeper than the interpreter can follow.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return _parse_nonstandard(text)


def _parse_nonstandard(text: bytes) -> Any:
    try:
        return json.loads(text, parse_int=parse_integer)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_integer(digits: str) -> int | str:
    """An integer's value; its text where it has more digits than Python converts."""
    try:
        return int(digits)
    except ValueError:
        return digits
