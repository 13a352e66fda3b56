"""JSON text is what the value was, or there is an error: nothing changes on the way without being told."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given, settings
from pydantic import BaseModel

from gym_capture.errors import InvalidExchange
from gym_capture.model import json_text
from gym_capture.model.json_text import decode_json, encode_json, to_json
from tests.model.exact import exact

any_text = st.text(st.characters(exclude_categories=()), max_size=20)
"""Lone surrogates included."""
numbers = st.integers(-(2**70), 2**70) | st.integers(-(10**31), 10**31) | st.floats()
values = st.recursive(
    st.none() | st.booleans() | numbers | any_text,
    lambda children: st.lists(children, max_size=5) | st.dictionaries(any_text, children, max_size=5),
    max_leaves=20,
)


PAD = "p" * 20_000
"""Beside so much text in few values, values are looked at instead of read back."""


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in [key, *leaves(item)]]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def is_nonstandard(value: Any) -> bool:
    for leaf in leaves(value):
        if isinstance(leaf, float) and not math.isfinite(leaf):
            return True
        if isinstance(leaf, int) and not -(2**63) <= leaf < 2**64:
            return True
        if isinstance(leaf, str) and any(0xD800 <= ord(character) < 0xE000 for character in leaf):
            return True
    return False


@settings(max_examples=200, deadline=None)
@given(values)
@example({"a": [math.nan, None], "b": None})
@example([10**30, -(10**30), 2**64, 2**64 - 1, -(2**63), -(2**63) - 1])
@example(["\ud800", {"\udfff": "\ud83d\ude00"}])
@example([-0.0, 5e-324, 1.7976931348623157e308, 0.1])
def test_any_json_value_comes_back_as_it_was_and_is_flagged_right(value: Any) -> None:
    text, nonstandard, converted = encode_json(value)
    assert nonstandard == is_nonstandard(value)
    assert not converted
    decoded, flagged = decode_json(text)
    assert exact(decoded) == exact(value)
    assert flagged == nonstandard
    assert exact(json.loads(text)) == exact(value)
    assert exact(to_json(value).value) == exact(value)
    padded = to_json({"pad": PAD, "value": value})
    assert (padded.nonstandard, padded.converted) == (nonstandard, False)
    assert exact(padded.value) == exact({"pad": PAD, "value": value})
    assert exact(json.loads(padded.text)) == exact(padded.value)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:0123456789.eE-+ntfNaIi\\u', max_size=30).map(str.encode))
@example(b"1e400")
@example(b'{"a":1,"a":2}')
@example(b"\xef\xbb\xbf{}")
@example('"é"'.encode("utf-16"))
def test_text_is_read_like_the_standard_library_reads_it_or_is_no_json(text: bytes) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"."):
            decode_json(text)
        return
    value, _ = decode_json(text)
    assert exact(value) == exact(expected)


@pytest.mark.parametrize(
    ("text", "value", "nonstandard"),
    [
        (b"null", None, False),
        (b" [1, 2.50] ", [1, 2.5], False),
        (b"NaN", math.nan, True),
        (b"[-Infinity]", [-math.inf], True),
        (b"1e400", math.inf, True),
        (b'"\\ud800"', "\ud800", True),
        (b'"\\ud83d\\ude00"', "\U0001f600", False),
        (b"18446744073709551615", 2**64 - 1, False),
        (b"18446744073709551616", 2**64, True),
        (b"-9223372036854775809", -(2**63) - 1, True),
        (b'"123456789012345678901234567890"', "123456789012345678901234567890", False),
        (b"1" * 5000, "1" * 5000, True),
        (b'{"b":1,"a":2,"b":3}', {"b": 3, "a": 2}, False),
    ],
)
def test_what_text_holds_and_whether_the_standard_refuses_it(text: bytes, value: Any, nonstandard: bool) -> None:
    decoded, flagged = decode_json(text)
    assert exact(decoded) == exact(value)
    assert flagged is nonstandard


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[1,]", b"\xff", b'"\xff"', b"upstream error", b'"\x01"', b"{}{}", b"[" * 100_000]
)
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_json(text)


def nested(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = {"a": [value]}
    return value


def test_deep_nesting_and_long_strings_are_kept() -> None:
    deep = nested(100)
    assert decode_json(encode_json(deep)[0]) == (deep, False)
    long = {"text": "ab\u00e9\n" * 2_500_000, "nothing": None}
    text, nonstandard, converted = encode_json(long)
    assert decode_json(text) == (long, False)
    assert not nonstandard
    assert not converted


@pytest.mark.parametrize("value", [math.nan, [None, math.nan], {"a": None, "b": {"c": -math.inf}}, (math.inf, None)])
def test_what_is_not_finite_never_becomes_null(value: Any) -> None:
    text, nonstandard, _ = encode_json(value)
    assert nonstandard
    assert text.decode() == json.dumps(value, separators=(",", ":"))


def test_text_that_looks_like_a_number_that_is_not_finite_costs_nothing() -> None:
    # The msgpack bytes of this text hold what the bytes of a NaN begin with.
    assert encode_json({"a": None, "b": "\u02ff\u02f0\u02f8"}) == (
        '{"a":null,"b":"\u02ff\u02f0\u02f8"}'.encode(),
        False,
        False,
    )


# -- values that are not JSON -------------------------------------------------------------------------------------


class Usage(BaseModel):
    tokens: int
    share: float = 0.5


@dataclass
class Point:
    x: int
    y: Any = None


class Number:
    """A scalar of an array library."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        return self.value


class Array:
    def tolist(self) -> list[Any]:
        return [Number(1), 2.5]

    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


class Model:
    def to_dict(self) -> dict[str, Any]:
        return {"usage": Usage(tokens=3), "at": (1, 2)}


class Half(float):
    """A float of an array library: a subclass, whose repr need not be a number."""

    def __repr__(self) -> str:
        return f"half({float(self)})"


class Color(Enum):
    RED = "red"


class Role(StrEnum):
    USER = "user"


class Level(IntEnum):
    HIGH = 3


class Word(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Usage(tokens=3), '{"tokens":3,"share":0.5}'),
        ({"usage": Usage(tokens=3, share=math.nan)}, '{"usage":{"tokens":3,"share":NaN}}'),
        (Model(), '{"usage":{"tokens":3,"share":0.5},"at":[1,2]}'),
        ([Number(7), Number(math.inf), None], "[7,Infinity,null]"),
        ({"ids": Array()}, '{"ids":[1,2.5]}'),
        (Half(1.5), "1.5"),
        ({"x": Half(math.nan)}, '{"x":NaN}'),
        (Word("w"), '"w"'),
        (Point(1, Point(2)), '{"x":1,"y":{"x":2,"y":null}}'),
        ((1, (2,)), "[1,[2]]"),
        ({1}, "[1]"),
        (Color.RED, '"red"'),
        (Decimal("1.50"), '"1.50"'),
        (datetime(2026, 1, 2, tzinfo=UTC), '"2026-01-02T00:00:00Z"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        ({1: "a", 2.5: "b", False: "c", None: "d"}, '{"1":"a","2.5":"b","false":"c","null":"d"}'),
        ({Color.RED: 1, Role.USER: 2, Level.HIGH: 3, Word("w"): 4}, '{"red":1,"user":2,"3":3,"w":4}'),
        ({UUID(int=1): 1}, '{"00000000-0000-0000-0000-000000000001":1}'),
        ({1: math.nan}, '{"1":NaN}'),
    ],
)
def test_objects_are_what_they_stand_for_and_that_is_told(value: Any, text: str) -> None:
    encoded = to_json(value)
    assert encoded.text.decode() == text
    assert encoded.converted
    assert exact(encoded.value) == exact(json.loads(text))
    padded = to_json([PAD, {"inside": [value]}])
    assert padded.text.decode() == f'["{PAD}",{{"inside":[{text}]}}]'
    assert (padded.nonstandard, padded.converted) == (encoded.nonstandard, True)
    assert exact(padded.value) == exact([PAD, {"inside": [json.loads(text)]}])


@pytest.mark.parametrize("value", [OrderedDict(b=1, a=2), {"role": Role.USER, "level": Level.HIGH}, [True, 1, 1.0]])
def test_subclasses_that_equal_what_was_written_are_no_conversion(value: Any) -> None:
    text, nonstandard, converted = encode_json(value)
    assert exact(json.loads(text)) == exact(value)
    assert (nonstandard, converted) == (False, False)


def looped() -> Any:
    value: list[Any] = []
    value.append({"again": value})
    return value


class Raises:
    def model_dump(self, mode: str) -> Any:
        raise KeyError("broken model")


class Endless:
    def item(self) -> Any:
        return self


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1: "a", "1": "b"}, "two keys of an object are both written as '1'"),
        ({"a": b"bytes"}, "bytes inside a value"),
        ([bytearray(b"x")], "bytes inside a value"),
        ({b"key": 1}, "a bytes cannot be the key"),
        ({(1, 2): 1}, "a tuple cannot be the key"),
        ({"a": object()}, "object"),
        (1j, "complex"),
        (Usage, "type|Model"),
        (looped(), "refers to itself or is nested too deeply"),
        (Raises(), "broken model"),
        (Endless(), "refers to itself"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_json_form_is_refused_with_a_reason(value: Any, message: str) -> None:
    for each in (value, [PAD, {"inside": [value]}]):
        with pytest.raises(InvalidExchange, match=message):
            encode_json(each)


def test_what_is_nested_too_deeply_is_refused_with_a_reason() -> None:
    test_what_has_no_json_form_is_refused_with_a_reason(nested(50_000), "nested too deeply")


@pytest.mark.parametrize("content", ["short", PAD])
def test_what_was_encoded_shares_nothing_with_what_was_given(content: str) -> None:
    value = {"messages": [{"role": "user", "content": content}]}
    encoded = to_json(value)
    value["messages"][0]["role"] = "changed"
    assert encoded.value == {"messages": [{"role": "user", "content": content}]}
    assert msgspec.json.decode(encoded.text) == encoded.value


class Sly(dict[str, Any]):
    """Says that it equals anything, and is written as something else than its items."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("not to be compared")

    def __iter__(self) -> Any:
        raise ValueError("not to be gone through")

    __hash__ = None


def test_values_whose_own_methods_raise_are_refused_or_kept_as_what_they_hold() -> None:
    value = [PAD, Sly(a=1)]
    encoded = to_json(value)
    assert encoded.text.decode() == f'["{PAD}",{{"a":1}}]'
    assert encoded.converted


@pytest.mark.parametrize("deep", [60, 70, 150])
def test_nesting_beside_long_text_is_kept(deep: int) -> None:
    value = {"pad": PAD, "value": nested(deep // 2)}
    encoded = to_json(value)
    assert (encoded.value, encoded.nonstandard, encoded.converted) == (value, False, False)


@pytest.mark.parametrize(
    ("value", "read_back"),
    [
        ({"pad": PAD, "n": [2**64 - 1, -(2**63), 0.5, True, None, "é", {"k": []}]}, 0),
        ([PAD, 2**64], 1),
        ([PAD, -(2**63) - 1], 1),
        ([PAD, (1,)], 1),
        ([PAD, OrderedDict(a=1)], 1),
        ({"pad": PAD, Word("w"): 1}, 1),
        ([PAD, Role.USER], 1),
        ([PAD, *range(len(PAD))], 1),
        ({"pad": "short"}, 1),
        ([PAD, nested(40)], 1),
    ],
    ids=range(10),
)
def test_only_what_is_not_json_of_few_values_is_read_back(
    value: Any, read_back: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []

    def noting(text: bytes) -> Any:
        decoded.append(text)
        return msgspec.json.decode(text)

    monkeypatch.setattr(json_text, "_decode", noting)
    encode_json(value)
    assert len(decoded) == read_back


def test_integers_that_the_interpreter_refuses_to_write_keep_every_digit() -> None:
    text, nonstandard, _ = encode_json({"n": 10**5000 + 7, "m": [-(10**4400)], "s": "x"})
    assert text == b'{"n":1' + b"0" * 4999 + b'7,"m":[-1' + b"0" * 4400 + b'],"s":"x"}'
    assert nonstandard
    # Reading gives their text: Python cannot convert them either.
    assert decode_json(text)[0]["n"] == "1" + "0" * 4999 + "7"
