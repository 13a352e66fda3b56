"""Rollout ids and tokens: what is an id, which id a record has, and what splits a token."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_capture.errors import InvalidRolloutId
from gym_capture.model.ids import (
    MAX_ROLLOUT_ID_BYTES,
    join_rollout_token,
    rollout_id_from_record,
    split_rollout_token,
    validate_rollout_id,
)

ID_TEXT = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", fullmatch=True)


def body(**fields: Any) -> dict[str, Any]:
    return {f"_ng_{name}": value for name, value in fields.items()}


@pytest.mark.parametrize("value", ["0", "a.b_c-d", "A" * MAX_ROLLOUT_ID_BYTES, "1-2-a3"])
def test_an_id_is_returned_as_it_is(value: str) -> None:
    assert validate_rollout_id(value) == value


@pytest.mark.parametrize(
    "value",
    ["", ".a", "-a", "_a", "a/b", "a b", "a~1", "a\n", "é", "٤", "a\ud800", "A" * (MAX_ROLLOUT_ID_BYTES + 1)],
)
def test_text_that_is_no_id_is_refused_with_what_is_allowed(value: str) -> None:
    with pytest.raises(InvalidRolloutId, match="letters, digits"):
        validate_rollout_id(value)


@pytest.mark.parametrize("value", [None, 7, True, b"a", ["a"], 10**5000, object()], ids=range(7))
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not a rollout id"):
        validate_rollout_id(value)


def test_a_refusal_stays_short_whatever_was_given() -> None:
    with pytest.raises(InvalidRolloutId) as refused:
        validate_rollout_id("/" * 1_000_000)
    assert len(str(refused.value)) < 400
    assert refused.value.length == 1_000_000


def test_no_indices_no_id() -> None:
    assert rollout_id_from_record(body(task_index=1)) is None
    assert rollout_id_from_record(body(attempt_index="x")) is None


def test_what_is_no_mapping_has_no_id() -> None:
    assert rollout_id_from_record(["_ng_rollout_id"]) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("attempt", "expected"), [(0, "1-2"), (-3, "1-2"), (" 12 ", "1-2-a12"), (2.0, "1-2-a2")])
def test_only_an_attempt_above_zero_is_part_of_the_id(attempt: object, expected: str) -> None:
    assert rollout_id_from_record(body(task_index=1, rollout_index=2, attempt_index=attempt)) == expected


@pytest.mark.parametrize(
    "attempt",
    ["x", "", "1" * 5000, "1_0", "٤", "0x2", 2.5, float("nan"), float("inf"), 10**5000, [1], {}, "1" * 19],
    ids=range(13),
)
def test_an_odd_attempt_is_a_clear_error(attempt: object) -> None:
    with pytest.raises(InvalidRolloutId, match="_ng_attempt_index is"):
        rollout_id_from_record(body(task_index=1, rollout_index=2, attempt_index=attempt))


@pytest.mark.parametrize("task", [[1], {}, 10**5000, b"1"], ids=range(4))
def test_an_index_that_is_no_number_or_text_is_a_clear_error(task: object) -> None:
    with pytest.raises(InvalidRolloutId, match="_ng_task_index is"):
        rollout_id_from_record(body(task_index=task, rollout_index=2))


@pytest.mark.parametrize("task", ["../up", "", -1, "a b", "x" * 300])
def test_indices_that_make_no_path_segment_are_refused(task: object) -> None:
    with pytest.raises(InvalidRolloutId):
        rollout_id_from_record(body(task_index=task, rollout_index=2))


def test_the_attempt_counts_towards_the_length() -> None:
    longest = "x" * MAX_ROLLOUT_ID_BYTES
    assert rollout_id_from_record(body(rollout_id=longest)) == longest
    with pytest.raises(InvalidRolloutId, match="203 characters"):
        rollout_id_from_record(body(rollout_id=longest, attempt_index=1))


@given(ID_TEXT, st.integers(0, 2**63 - 1))
def test_a_token_splits_into_what_it_was_joined_from(rollout_id: str, generation: int) -> None:
    assert split_rollout_token(join_rollout_token(rollout_id, generation)) == (rollout_id, generation)
    assert split_rollout_token(rollout_id) == (rollout_id, None)


@pytest.mark.parametrize(
    "text",
    [
        *("", "~", "~1", "a~", "a~1~2", "a~-1", "a~+1", "a~01", "a~1.0", "a~x", "a~ 1", "a~٤", "a~1\n", "a b~1"),
        *("a~" + "9" * 19, "a~" + "9" * 5000),
    ],
)
def test_a_malformed_token_is_a_clear_error(text: str) -> None:
    with pytest.raises(InvalidRolloutId, match="rollout"):
        split_rollout_token(text)


@pytest.mark.parametrize("generation", [-1, 2**63, True, 1.0, None, "1"])
def test_a_token_needs_a_generation(generation: Any) -> None:
    with pytest.raises(InvalidRolloutId, match="generation of rollout 'a'"):
        join_rollout_token("a", generation)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@given(st.fixed_dictionaries({}, optional=body(rollout_id=ANYTHING, task_index=ANYTHING, rollout_index=ANYTHING)))
def test_a_record_has_a_valid_id_or_none_or_a_clear_error(record: dict[str, Any]) -> None:
    try:
        rollout_id = rollout_id_from_record(record)
    except InvalidRolloutId as refused:
        json.dumps(str(refused))
    else:
        assert rollout_id is None or validate_rollout_id(rollout_id) == rollout_id
