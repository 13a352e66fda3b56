"""What standard JSON can carry, and how one value of any type is read."""

from __future__ import annotations

import json
from enum import IntEnum
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from gym_capture.model import scalars
from gym_capture.model.json_values import (
    MAX_DEPTH,
    MAX_INTEGER_BITS,
    clean_text,
    is_standard,
    parse_standard,
    plain_copy,
)
from tests.model.exact import exact


class Level(IntEnum):
    HIGH = 3


def nested(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = {"x": value}
    return value


@pytest.mark.parametrize("value", [None, True, 1, 2**70, 1.5, "é🙂", [], {}, {"a": [{"b": None}]}, nested(MAX_DEPTH)])
def test_json_values_are_standard(value: object) -> None:
    assert is_standard(value)


@pytest.mark.parametrize(
    "value",
    [
        *(float("nan"), float("-inf"), "\ud800", {"\ud800": 1}, {1: 2}, (1,), b"x", Level.HIGH, object()),
        *([[float("nan")]], nested(MAX_DEPTH + 1), nested(100_000), 2**MAX_INTEGER_BITS, -(10**5000)),
    ],
    ids=range(14),
)
def test_what_some_encoder_refuses_is_not_standard(value: object) -> None:
    assert not is_standard(value)


def test_clean_text_changes_lone_surrogates_only() -> None:
    assert clean_text("naïve 🙂") == "naïve 🙂"
    assert clean_text("a\ud800b\udfff") == "a\\ud800b\\udfff"


@pytest.mark.parametrize(
    "text", ["", "NaN", "[Infinity]", "1e999", '"\\udc00"', "9" * 5000, "[" * 100_000, "\ufeff1"], ids=range(8)
)
def test_text_of_what_is_not_standard_is_not_parsed(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        parse_standard(text)


def test_a_plain_copy_reads_past_overridden_methods() -> None:
    class Odd(dict[str, Any]):
        def get(self, *_: object) -> Any:
            raise RuntimeError

    assert plain_copy(Odd(a=[Level.HIGH, 1, object()], b=Odd(c="x"))) == {"a": [None, 1, None], "b": {"c": "x"}}
    assert plain_copy({1: 2, "a": nested(MAX_DEPTH * 2)})["a"]["x"]["x"] is not None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((200, "200"), ("200", "200"), (" -7 ", "-7"), ("200.0", "200"), (200.0, "200"), (True, "1")),
        (2**80, str(2**80)),
        *((2.5, "null"), ("2.5", "null"), ("1_0", "null"), ("٤", "null"), ("", "null"), (None, "null"), ([], "null")),
        *((float("nan"), "null"), (float("inf"), "null"), ("9" * 5000, "null")),
    ],
    ids=range(17),
)
def test_integer(value: object, expected: str) -> None:
    assert exact(scalars.integer(value)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((1.5, "1.5"), (2, "2.0"), ("1.5", "1.5"), (" .5e1 ", "5.0"), (True, "1.0"), (-0.25, "-0.25")),
        *((None, "null"), ("x", "null"), ("nan", "null"), ("1e999", "null"), (10**400, "null"), ({}, "null")),
    ],
    ids=range(12),
)
def test_number(value: object, expected: str) -> None:
    assert exact(scalars.number(value)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((True, True), (False, False), (1, True), (0.0, False), ("Yes", True), ("off", False)),
        *((2, None), ("maybe", None), (None, None), ([], None), (float("nan"), None)),
    ],
)
def test_boolean(value: object, expected: bool | None) -> None:
    assert scalars.boolean(value) is expected


@pytest.mark.parametrize(("value", "expected"), [("x", "x"), ("", ""), ("\ud800", "\\ud800"), (5, None), (b"x", None)])
def test_text(value: object, expected: str | None) -> None:
    assert scalars.text(value) == expected


def read_by_the_standard_library(text: str) -> str | None:
    """The value as exact text; None where it is not standard."""

    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        value = json.JSONDecoder(parse_constant=refuse).decode(text)
    except (ValueError, RecursionError):
        return None
    return exact(value) if is_standard(value) else None


@settings(deadline=None)
@given(st.text(alphabet='{}[]",:0123456789.eE-+ntfNaIi\\u \ud800é', max_size=30) | st.text(max_size=20).map(json.dumps))
@example('{"a":"\ud800","a":1}')
@example('{"a":"\\ud800","a":1}')
@example("1e400")
@example(str(2**64))
@example("1" * 4000)
@example("\ufeff{}")
@example('{"a":%s,"a":1}' % ("[" * 900 + "]" * 900))
@example("[" * 100_000)
def test_arguments_are_what_the_standard_library_reads_in_them(text: str) -> None:
    try:
        found = exact(parse_standard(text))
    except (ValueError, RecursionError):
        found = None
    assert found == read_by_the_standard_library(text)
