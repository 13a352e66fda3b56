"""The streams with right answers, fed in every way."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import read_cases
from tests.recording.streams import assert_chunks_change_nothing, cut_places, see

CASES = read_cases("streams.jsonl")
BODIES = [base64.b64decode(case["body"]) for case in CASES]


def _expected(case: dict[str, Any]) -> tuple[Any, Any]:
    return case["expected"]["ok"]["response"], case["expected"]["ok"]["terminal"]


def test_there_are_cases_of_every_dialect() -> None:
    assert {case["dialect"] for case in CASES} == {"chat", "messages", "responses"}
    assert len(CASES) > 100


@pytest.mark.parametrize("number", range(len(CASES)))
def test_response_and_terminal_are_those_expected_whole_and_byte_by_byte(number: int) -> None:
    case, body = CASES[number], BODIES[number]
    for cuts in ((), range(len(body)), range(0, len(body), 7)):
        seen = see(case["dialect"], body, cuts)
        assert (seen.response, seen.terminal) == _expected(case)
        assert not seen.overflowed


@settings(max_examples=150, deadline=None)
@given(number=st.integers(0, len(CASES) - 1), cuts=cut_places())
def test_chunking_changes_nothing(number: int, cuts: list[int]) -> None:
    assert_chunks_change_nothing(CASES[number]["dialect"], BODIES[number], cuts)
    assert_chunks_change_nothing(CASES[number]["dialect"], BODIES[number], cuts, keep_raw=True)


@settings(max_examples=150, deadline=None)
@given(number=st.integers(0, len(CASES) - 1), at=st.integers(0, 4000), cuts=cut_places())
def test_a_stream_cut_anywhere_is_read_alike_in_any_chunks(number: int, at: int, cuts: list[int]) -> None:
    assert_chunks_change_nothing(CASES[number]["dialect"], BODIES[number][:at], cuts)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_what_was_whole_keeps_no_raw_bytes(number: int) -> None:
    case = CASES[number]
    if case["kind"] not in ("whole", "comments") or case["expected"]["ok"]["terminal"] == "error":
        return
    seen = see(case["dialect"], BODIES[number])
    assert seen.raw is None
    assert seen.understood
    assert seen.first_token_seen == bool(_generated(seen.response))


def _generated(response: Any) -> Any:
    return response.get("output") or response.get("choices") or response.get("content") or True


@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_hold_begins_at_the_terminal_event(number: int) -> None:
    case, body = CASES[number], BODIES[number]
    hold = see(case["dialect"], body).hold_at
    if case["expected"]["ok"]["terminal"] is None:
        assert hold is None
        return
    assert hold is not None
    assert body[hold:].startswith((b"data: [DONE]", b"event: message_stop", b"event: response.", b'data: {"error"'))
    assert see(case["dialect"], body[:hold]).terminal is None
