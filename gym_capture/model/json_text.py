"""JSON text, kept as it was: encoding values without loss, and telling text that the standard refuses.

A fast encoder does the common case. It has two habits that would lose evidence (NaN becomes null; integers beyond
64 bits pass unmarked), so its output is checked, and whatever it can't say goes through the standard library's
encoder instead and is flagged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from gym_capture.errors import InvalidExchange

_encode_msgpack = msgspec.msgpack.Encoder(enc_hook=lambda value: _plain(value)).encode
# In msgpack a float64 is 0xcb and eight bytes; NaN and infinities have all exponent bits set. UTF-8 text can't match.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
_LONG_DIGITS = re.compile(rb"\d{19}")
_INT64 = (-(2**63), 2**64 - 1)


def _plain(value: Any) -> Any:
    """What a value that JSON does not know stands for (models of SDKs, numbers of array libraries)."""
    for name in ("model_dump", "to_dict", "tolist", "item"):
        method = getattr(value, name, None)
        if callable(method):
            return method(mode="json") if name == "model_dump" else method()
    raise TypeError(f"a {type(value).__name__} is not a JSON value")


def encode_json(value: Any) -> tuple[bytes, bool, bool]:
    """A value as compact JSON text in UTF-8, with key order, numbers and strings as they are.

    Returns:
        The text; whether it is nonstandard (NaN, infinities, integers over 64 bits, lone surrogates); and whether it
        holds objects that were converted (`model_dump()` and the like), so that reading the text back gives more
        than the value itself.

    Raises:
        InvalidExchange: something in the value has no JSON form, or it refers to itself.
    """
    converted = False

    def plain(item: Any) -> Any:
        nonlocal converted
        converted = True
        return _plain(item)

    try:
        try:
            text = msgspec.json.encode(value, enc_hook=plain)
        except UnicodeEncodeError:
            return _encode_slowly(value, plain), True, converted
        if b"null" in text and _may_hold_nan(value):
            text = _encode_slowly(value, plain)
            return text, _has_constants(text), converted
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidExchange(
            f"the value cannot be written as JSON: {error}. Give JSON values (dict, list, str, numbers, bool, None), "
            "an object with model_dump(), or the body's bytes."
        ) from error
    return text, _has_long_integers(text), converted


def _encode_slowly(value: Any, plain: Callable[[Any], Any]) -> bytes:
    return json.dumps(value, default=plain, separators=(",", ":")).encode("ascii")


def _may_hold_nan(value: Any) -> bool:
    try:
        return _NOT_FINITE.search(_encode_msgpack(value)) is not None
    except OverflowError:
        return True


def _has_constants(text: bytes) -> bool:
    found = False

    def constant(name: str) -> None:
        nonlocal found
        found = True

    json.loads(text, parse_constant=constant)
    return found or _has_long_integers(text)


def _has_long_integers(text: bytes) -> bool:
    if _LONG_DIGITS.search(text) is None:
        return False
    found = False

    def integer(digits: str) -> int:
        nonlocal found
        if len(digits) > 20 or not _INT64[0] <= int(digits) <= _INT64[1]:
            found = True
        return 0

    json.loads(text, parse_int=integer)
    return found


_NOT_DECODED = object()


def decode_json(text: bytes) -> tuple[Any, bool]:
    """The value of JSON text, also where the standard refuses it, and whether it does.

    Integers of more than 4,300 digits, which Python does not convert, come back as their text.

    Raises:
        ValueError: not JSON text at all, or nested deeper than the interpreter can follow.
    """
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        value = _NOT_DECODED
    if value is not _NOT_DECODED:
        return value, _has_long_integers(text)
    try:
        return json.loads(text, parse_int=_integer), True
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _integer(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:
        return digits
