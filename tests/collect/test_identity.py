"""Who a row is, and that records keep it."""

from __future__ import annotations

from typing import Any

import pytest

from gym_capture.collect.identity import identify, record_identity
from gym_capture.errors import InvalidRolloutId
from gym_capture.model.ids import rollout_id_from_record


def test_a_row_without_indices_gets_its_line_and_repeat() -> None:
    identity = identify({"question": "?"}, line=7, repeat=2)
    assert identity.key == "7-2"
    assert identity.fields(0) == {"_ng_task_index": 7, "_ng_rollout_index": 2}


def test_a_rows_own_indices_win_over_its_line() -> None:
    assert identify({"_ng_task_index": 40}, line=7, repeat=2).key == "40-2"
    assert identify({"_ng_task_index": 40, "_ng_rollout_index": 5}, line=7, repeat=0).key == "40-5"


def test_a_row_that_holds_a_record_takes_its_identity() -> None:
    row = {"record": {"_ng_task_index": 12, "_ng_rollout_index": 3, "reward": 1.0}, "exchanges": []}
    assert identify(row, line=0, repeat=0).key == "12-3"


def test_a_record_without_indices_says_nothing() -> None:
    assert identify({"record": {"title": "vinyl"}}, line=4, repeat=0).key == "4-0"
    assert identify({"record": "vinyl"}, line=4, repeat=0).key == "4-0"


def test_an_explicit_id_is_the_key_and_attempts_are_appended() -> None:
    identity = identify({"_ng_rollout_id": "maths.17"}, line=3, repeat=0)
    assert identity.key == "maths.17"
    assert identity.rollout_id(2) == "maths.17-a2"


def test_a_row_may_begin_at_a_later_attempt() -> None:
    identity = identify({"_ng_attempt_index": "2"}, line=3, repeat=0)
    assert (identity.key, identity.first_attempt) == ("3-0", 2)


@pytest.mark.parametrize("bad", [{"_ng_rollout_id": "a/b"}, {"_ng_attempt_index": "soon"}, {"_ng_task_index": [1]}])
def test_keys_that_give_no_id_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRolloutId):
        identify(bad, line=0, repeat=0)


@pytest.mark.parametrize(
    "brought",
    [
        {},
        {"_ng_task_index": 9, "_ng_rollout_index": 9},
        {"_ng_rollout_id": "3-0-a1", "_ng_attempt_index": 1},
        {"_ng_rollout_id": "another"},
        {"_ng_attempt_index": 4},
    ],
)
@pytest.mark.parametrize("attempt", [0, 1])
def test_whatever_a_record_brings_it_carries_the_id_that_it_was_captured_under(
    brought: dict[str, Any], attempt: int
) -> None:
    identity = identify({}, line=3, repeat=0)
    record = identity.imprint({**brought, "response": {"_ng_rollout_id": "inside"}, "reward": 0.5}, attempt)
    assert rollout_id_from_record(record) == identity.rollout_id(attempt)
    assert record_identity(record) == ("3-0", attempt)
    assert record["response"] == {"_ng_rollout_id": "inside"}
    assert record["reward"] == 0.5


def test_a_record_that_agrees_is_left_exactly_as_it_is() -> None:
    record = {"reward": 1.0, "_ng_rollout_index": 0, "_ng_attempt_index": 0, "_ng_task_index": 3}
    before = list(record.items())
    assert list(identify({}, line=3, repeat=0).imprint(record, 0).items()) == before


def test_a_record_without_identity_has_none() -> None:
    assert record_identity({"reward": 1.0}) is None
