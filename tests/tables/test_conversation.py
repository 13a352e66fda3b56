"""Which messages an exchange holds, in every dialect, and which of them it added."""

from __future__ import annotations

from typing import Any

import pytest

from gym_capture.tables.conversation import Conversation, Message, request_messages, response_messages

CALL = ("c1", "look", '{"at": "x"}')
TOLD = {"id": "c1", "function": {"name": "look", "arguments": '{"at": "x"}'}}


def chat(*messages: Any, answer: Any = None) -> dict[str, Any]:
    return {"request": {"messages": list(messages)}, "response": {"choices": [{"message": answer}]}}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_each_call_adds_what_no_earlier_one_had_at_its_place() -> None:
    conversation = Conversation()
    first = list(conversation.added(chat(user("a"), answer=said("b"))))
    second = list(conversation.added(chat(user("a"), said("b"), user("a"), answer=said("c"))))
    branch = list(conversation.added(chat(user("a"), said("other"), answer=said("b"))))
    again = list(conversation.added(chat(user("a"), answer=said("b"))))
    assert first == [(0, "request", Message("user", "a")), (1, "response", Message("assistant", "b"))]
    assert second == [(2, "request", Message("user", "a")), (3, "response", Message("assistant", "c"))]
    assert branch == [(1, "request", Message("assistant", "other")), (2, "response", Message("assistant", "b"))]
    assert again == []


def test_reasoning_that_is_not_sent_back_makes_no_new_message() -> None:
    conversation = Conversation()
    answer = {**said("b"), "reasoning_content": "because"}
    assert list(conversation.added(chat(user("a"), answer=answer)))[1][2].reasoning == "because"
    assert list(conversation.added(chat(user("a"), said("b")))) == []


@pytest.mark.parametrize(
    ("request_body", "expected"),
    [
        ({"messages": [{"role": "assistant", "tool_calls": [TOLD]}]}, [Message("assistant", None, None, (CALL,))]),
        (
            {"messages": [{"role": "tool", "tool_call_id": "c1", "content": "y"}]},
            [Message("tool", "y", None, (), "c1")],
        ),
        (
            {"system": [{"type": "text", "text": "s"}], "messages": [user("a")]},
            [Message("system", "s"), Message("user", "a")],
        ),
        (
            {"messages": [{"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "y"}]},
                {"type": "image"}, {"type": "text", "text": "go on"}]}]},
            [Message("tool", "y", None, (), "c1"), Message("user", "[image]\ngo on")],
        ),
        (
            {"messages": [{"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "t"},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "x"}}]}]},
            [Message("assistant", "t", "hm", (CALL,))],
        ),
        ({"instructions": "s", "input": "a"}, [Message("system", "s"), Message("user", "a")]),
        (
            {"input": [
                {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": "x"}'},
                {"type": "function_call_output", "call_id": "c1", "output": "y"},
                {"type": "reasoning", "summary": [{"text": "hm"}]}]},
            [Message("user", "a"), Message("assistant", None, None, (CALL,)), Message("tool", "y", None, (), "c1"),
             Message("assistant", None, "hm")],
        ),
        ({"prompt": "\ud800"}, [Message("user", "\\ud800")]),
        ({"messages": [7, None, {}, {"role": 3, "content": 2**80}]}, [Message(None, None), Message(None, str(2**80))]),
        (["no", "object"], []),
    ],
    ids=range(10),
)  # fmt: skip
def test_requests_of_every_dialect(request_body: Any, expected: list[Message]) -> None:
    assert list(request_messages(request_body)) == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ({"choices": [{"message": {"role": "assistant", "content": "b", "tool_calls": [TOLD]}}]},
         [Message("assistant", "b", None, (CALL,))]),
        ({"output": [{"type": "message", "content": [{"type": "output_text", "text": "b"}]}]},
         [Message("assistant", "b")]),
        ({"role": "assistant", "content": [{"type": "text", "text": "b"}]}, [Message("assistant", "b")]),
        ({"choices": []}, []),
        ("text", []),
    ],
    ids=range(5),
)  # fmt: skip
def test_responses_of_every_dialect(response: Any, expected: list[Message]) -> None:
    assert list(response_messages(response)) == expected
