"""What an earlier run left, and where the next one begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_capture.collect.resume import Resume, failures_path
from tests.collect.fakes import input_row


def line(**record: Any) -> bytes:
    return json.dumps(record).encode()


def test_a_finished_row_is_not_tried_again() -> None:
    resume = Resume()
    resume.read_finished(line(_ng_task_index=0, _ng_rollout_index=0))
    assert resume.attempt_of(input_row(0), retries=1) is None
    assert resume.attempt_of(input_row(1), retries=1) is not None


def test_a_row_that_a_retry_finished_is_finished() -> None:
    resume = Resume()
    resume.read_failure(line(_ng_task_index=0, _ng_rollout_index=0))
    resume.read_finished(line(_ng_task_index=0, _ng_rollout_index=0, _ng_attempt_index=1))
    assert resume.attempt_of(input_row(0), retries=1) is None
    assert resume.finished["0-0"].rollout_id == "0-0-a1"


def test_a_failed_row_goes_on_under_the_attempt_after_the_highest() -> None:
    resume = Resume()
    resume.read_failure(line(_ng_task_index=0, _ng_rollout_index=0, _ng_attempt_index=3))
    resume.read_failure(line(_ng_task_index=0, _ng_rollout_index=0, _ng_attempt_index=1))
    attempt = resume.attempt_of(input_row(0), retries=2)
    assert attempt is not None
    assert (attempt.rollout_id, attempt.tries_left) == ("0-0-a4", 2)


def test_an_attempt_that_was_cut_short_keeps_its_id() -> None:
    attempt = Resume().attempt_of(input_row(5), retries=0)
    assert attempt is not None
    assert attempt.rollout_id == "5-0"


def test_a_row_that_begins_at_a_later_attempt_never_goes_back() -> None:
    resume = Resume()
    row = input_row(0, {"_ng_attempt_index": 2})
    begun = resume.attempt_of(row, retries=0)
    assert begun is not None
    assert begun.rollout_id == "0-0-a2"
    resume.read_failure(line(**begun.fields))
    again = resume.attempt_of(row, retries=0)
    assert again is not None
    assert again.rollout_id == "0-0-a3"


def test_a_second_record_of_a_rollout_is_refused() -> None:
    resume = Resume()
    resume.read_finished(line(_ng_task_index=0, _ng_rollout_index=0))
    with pytest.raises(ValueError, match="a second record of rollout 0-0"):
        resume.read_finished(line(_ng_task_index=0, _ng_rollout_index=0, _ng_attempt_index=1))


@pytest.mark.parametrize(
    ("text", "said"),
    [(b"{", "Expecting"), (b"[]", "not a JSON object"), (b"{}", "names no rollout"), (b"", "Expecting value")],
)
def test_lines_that_are_no_records_are_refused(text: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Resume().read_finished(text)


def test_calls_tokens_and_gaps_of_finished_rows_are_remembered() -> None:
    capture = {
        "metrics": {"tokens_in": 10, "tokens_out": 3, "tokens_reasoning": None, "cached_tokens": 2},
        "calls": [{"error_category": None}, {"error_category": "rate_limit"}],
        "gaps": [{"code": "model_call_capture_incomplete", "detail": "lost=1"}],
    }
    resume = Resume()
    resume.read_finished(line(_ng_task_index=0, _ng_rollout_index=0, ng_model_call_capture=capture))
    rollout = resume.finished["0-0"]
    assert (rollout.calls, rollout.errors, rollout.tokens) == (2, 1, (10, 3, None, 2))
    assert rollout.gaps == (("model_call_capture_incomplete", "lost=1"),)


@pytest.mark.parametrize("capture", [None, 3, [], {"calls": 1, "gaps": {}, "metrics": []}, {"gaps": [1, {"code": 2}]}])
def test_a_capture_of_any_shape_is_counted_without_raising(capture: Any) -> None:
    resume = Resume()
    resume.read_finished(line(_ng_task_index=0, _ng_rollout_index=0, ng_model_call_capture=capture))
    assert resume.finished["0-0"].gaps == ()
    assert resume.finished["0-0"].tokens == (None, None, None, None)


def test_references_that_name_no_captured_call_are_gaps_of_the_rollout() -> None:
    observations = {"gaps": [{"code": "model_call_reference_unmatched", "detail": "capture:x"}, {"code": "slept"}]}
    resume = Resume()
    resume.read_finished(line(_ng_task_index=0, _ng_rollout_index=0, ng_agent_observations=observations))
    assert resume.finished["0-0"].gaps == (("model_call_reference_unmatched", "capture:x"),)


def test_failures_lie_beside_the_output() -> None:
    assert failures_path(Path("/runs/7/rollouts.jsonl")) == Path("/runs/7/rollouts.failures.jsonl")
