"""Tool calls and reasoning, in the shape of each dialect."""

from __future__ import annotations

from typing import Any

import pytest

from gym_capture.model.json_values import MAX_DEPTH, is_standard
from gym_capture.model.tool_calls import tool_calls_and_reasoning


def arguments_of(given: Any) -> Any:
    call = {"id": "c", "function": {"name": "f", "arguments": given}}
    calls, _ = tool_calls_and_reasoning({"choices": [{"message": {"tool_calls": [call]}}]})
    return calls[0]["arguments"]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_responses_shape() -> None:
    output = [
        {"type": "reasoning", "summary": [{"text": "first"}, {"text": ""}, {"text": "second"}]},
        {"type": "function_call", "call_id": "c1", "id": "fc", "name": "bash", "arguments": '{"cmd": "ls"}'},
        {"type": "function_call", "id": "fc2", "name": "bash", "arguments": {"cmd": "pwd"}},
    ]
    assert tool_calls_and_reasoning({"output": output}) == (
        [
            {"call_id": "c1", "name": "bash", "arguments": {"cmd": "ls"}},
            {"call_id": "fc2", "name": "bash", "arguments": {"cmd": "pwd"}},
        ],
        "first\nsecond",
    )


def test_chat_shape_reads_every_choice() -> None:
    message = {"reasoning": "why", "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}]}
    calls, reasoning = tool_calls_and_reasoning({"choices": [{"message": message}, {"message": message}]})
    assert calls == [{"call_id": "c1", "name": "f", "arguments": {}}] * 2
    assert reasoning == "why\nwhy"


def test_reasoning_content_goes_before_reasoning() -> None:
    message = {"reasoning_content": "older name", "reasoning": "newer name"}
    assert tool_calls_and_reasoning({"choices": [{"message": message}]})[1] == "older name"


def test_messages_shape() -> None:
    content = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "tool_use", "id": "t1", "name": "grep", "input": {"q": "x"}},
        {"type": "tool_use", "id": "t2", "name": "grep"},
    ]
    assert tool_calls_and_reasoning({"content": content}) == (
        [
            {"call_id": "t1", "name": "grep", "arguments": {"q": "x"}},
            {"call_id": "t2", "name": "grep", "arguments": {}},
        ],
        "hm",
    )


def test_the_shape_decides_in_the_order_responses_chat_messages() -> None:
    content = [{"type": "thinking", "thinking": "messages"}]
    assert tool_calls_and_reasoning({"output": [], "content": content}) == ([], None)
    assert tool_calls_and_reasoning({"output": None, "choices": {}, "content": content}) == ([], "messages")
    assert tool_calls_and_reasoning({}) == ([], None)


@pytest.mark.parametrize("part", [None, 3, "text", [], {"type": "function_call", "arguments": 7}, {"type": []}])
def test_a_malformed_part_costs_no_other(part: object) -> None:
    good = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    calls, _ = tool_calls_and_reasoning({"output": [part, {"type": "reasoning", "summary": 5}, good]})
    assert calls[-1] == {"call_id": "c", "name": "f", "arguments": {}}


@pytest.mark.parametrize("text", ["", "not json", "{", '{"x": NaN}', "[1e999]", '"\\ud800"', "-Infinity", "9" * 5000])
def test_arguments_that_are_no_standard_json_are_kept_as_their_text(text: str) -> None:
    assert arguments_of(text) == {"_raw": text}


def test_arguments_of_any_json_type_are_parsed() -> None:
    assert arguments_of("null") is None
    assert arguments_of("[1, 2.0]") == [1, 2.0]
    assert arguments_of("123456789012345678901234567890") == 123456789012345678901234567890


def test_arguments_nested_too_deeply_are_kept_as_their_text() -> None:
    assert arguments_of("[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH) == nested(MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 100_000):
        text = "[" * depth + "1" + "]" * depth
        assert arguments_of(text) == {"_raw": text}


@pytest.mark.parametrize("given", [None, 5, True, [1]])
def test_arguments_that_are_neither_text_nor_object_are_empty(given: object) -> None:
    assert arguments_of(given) == {}


def test_arguments_given_as_values_that_json_cannot_carry_become_text() -> None:
    assert arguments_of({"x": float("nan")}) == {"_raw": '{"x": NaN}'}
    assert arguments_of({"x": "\ud800"}) == {"_raw": '{"x": "\\ud800"}'}
    assert arguments_of({"x": object}) == {"_raw": '{"x": "<class \'object\'>"}'}
    assert arguments_of({"x": nested(100_000)}) == {}


def test_ids_and_names_keep_the_type_they_were_sent_with() -> None:
    calls, _ = tool_calls_and_reasoning({"content": [{"type": "tool_use", "id": 3, "name": {"x": 1}}]})
    assert calls == [{"call_id": 3, "name": {"x": 1}, "arguments": {}}]


def test_lone_surrogates_are_written_out() -> None:
    content = [{"type": "thinking", "thinking": "a\ud800"}, {"type": "tool_use", "id": "\udfff", "name": "é"}]
    calls, reasoning = tool_calls_and_reasoning({"content": content})
    assert reasoning == "a\\ud800"
    assert calls == [{"call_id": "\\udfff", "name": "é", "arguments": {}}]
    assert is_standard(calls)
