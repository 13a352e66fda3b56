"""Which rows the messages of exchanges are, in every dialect, and which of them each call added."""

from __future__ import annotations

from typing import Any

import pytest

from gym_capture.tables.message_rows import MessageRows

CALL = {"call_id": "c1", "name": "look", "arguments": '{"at": "x"}'}
TOLD = {"id": "c1", "function": {"name": "look", "arguments": '{"at": "x"}'}}

Json = dict[str, Any]


def chat(*messages: Any, answer: Json | None = None) -> Json:
    response = None if answer is None else {"choices": [{"message": answer}]}
    return {"dialect": "chat", "request": {"messages": list(messages)}, "response": response}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def said(text: str) -> Json:
    return {"role": "assistant", "content": text}


def told(rows: Any) -> list[tuple[int, str, str, str | None]]:
    return [(row["position"], row["source"], row["role"], row["content"]) for row in rows]


def row(role: str, content: str | None, reasoning: str | None = None, **others: Any) -> Json:
    return {
        "role": role,
        "content": content,
        "reasoning": reasoning,
        "tool_calls": [],
        "tool_call_id": None,
        **others,
    }


def test_each_call_adds_what_no_earlier_one_had_at_its_place() -> None:
    rows = MessageRows()
    assert told(rows.of(0, chat(user("a"), answer=said("b")))) == [
        (0, "request", "user", "a"),
        (1, "response", "assistant", "b"),
    ]
    assert told(rows.of(1, chat(user("a"), said("b"), user("a"), user("x"), answer=said("c")))) == [
        (2, "request", "user", "a"),
        (3, "request", "user", "x"),
        (4, "response", "assistant", "c"),
    ]
    assert told(rows.of(2, chat(user("a"), said("other")))) == [(1, "request", "assistant", "other")]
    assert told(rows.of(3, chat(user("a"), said("b"), user("a"), user("y")))) == [(3, "request", "user", "y")]


def test_every_answer_is_its_calls_own_also_of_a_step_that_was_sampled_twice() -> None:
    rows = MessageRows()
    list(rows.of(0, chat(user("a"), answer=said("b"))))
    assert told(rows.of(1, chat(user("a"), answer=said("b")))) == [(1, "response", "assistant", "b")]


def test_reasoning_that_is_not_sent_back_makes_no_new_message() -> None:
    rows = MessageRows()
    first = list(rows.of(0, chat(user("a"), answer={**said("b"), "reasoning_content": "because"})))
    assert first[1]["reasoning"] == "because"
    assert list(rows.of(1, chat(user("a"), said("b")))) == []


def test_results_in_one_message_are_rows_and_count_in_the_places_behind_them() -> None:
    results = [{"type": "tool_result", "tool_use_id": each, "content": each} for each in "xy"]
    history = [user("a"), {"role": "user", "content": [*results, {"type": "text", "text": "go on"}]}]
    rows = MessageRows()
    request = {"dialect": "messages", "request": {"messages": history}}
    assert told(rows.of(0, request)) == [
        (0, "request", "user", "a"),
        (1, "request", "tool", "x"),
        (2, "request", "tool", "y"),
        (3, "request", "user", "go on"),
    ]
    longer = {"dialect": "messages", "request": {"messages": [*history, user("b")]}}
    assert told(rows.of(1, longer)) == [(4, "request", "user", "b")]


@pytest.mark.parametrize(
    ("dialect", "request_body", "expected"),
    [
        ("chat", {"messages": [{"role": "assistant", "tool_calls": [TOLD]}]},
         [row("assistant", None, tool_calls=[CALL])]),
        ("chat", {"messages": [{"role": "tool", "tool_call_id": "c1", "content": "y"}]},
         [row("tool", "y", tool_call_id="c1")]),
        ("messages", {"system": [{"type": "text", "text": "s"}], "messages": [user("a")]},
         [row("system", "s"), row("user", "a")]),
        ("messages", {"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "y"}]},
            {"type": "image"}, {"type": "text", "text": "go on"}]}]},
         [row("tool", "y", tool_call_id="c1"), row("user", "[image]\ngo on")]),
        ("messages", {"messages": [{"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm"}, {"type": "redacted_thinking", "data": "zzz"},
            {"type": "text", "text": "t"}, {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "x"}}]}]},
         [row("assistant", "t", "hm", tool_calls=[CALL])]),
        ("responses", {"instructions": "s", "input": "a"}, [row("system", "s"), row("user", "a")]),
        ("responses", {"input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": "x"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "y"},
            {"type": "reasoning", "summary": [{"text": "hm"}]}]},
         [row("user", "a"), row("assistant", None, tool_calls=[CALL]), row("tool", "y", tool_call_id="c1"),
          row("assistant", None, "hm")]),
        ("chat", {"messages": [user("\ud800"), {"role": 3, "content": 2**80}, 7]},
         [row("user", "\\ud800"), row("assistant", str(2**80)), row("unknown", "7")]),
        (None, ["no", "history"], [row("request", '["no", "history"]')]),
        (None, None, []),
    ],
    ids=range(10),
)  # fmt: skip
def test_requests_of_every_dialect(dialect: str | None, request_body: Any, expected: list[Json]) -> None:
    found = list(MessageRows().of(0, {"dialect": dialect, "request": request_body}))
    places = [{"position": place, "source": "request"} for place in range(len(expected))]
    assert found == [place | each for place, each in zip(places, expected, strict=True)]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ({"choices": [{"message": {"role": "assistant", "content": "b", "tool_calls": [TOLD]}}]},
         [row("assistant", "b", tool_calls=[CALL])]),
        ({"output": [{"type": "message", "content": [{"type": "output_text", "text": "b"}]}]}, [row("assistant", "b")]),
        ({"role": "assistant", "content": [{"type": "text", "text": "b"}]}, [row("assistant", "b")]),
        ({"error": {"message": "too many"}}, [row("error", '{"message": "too many"}')]),
        ("text", [row("response", "text")]),
        (None, []),
    ],
    ids=range(6),
)  # fmt: skip
def test_responses_of_every_dialect(response: Any, expected: list[Json]) -> None:
    found = list(MessageRows().of(0, {"response": response}))
    assert [{**each, "source": "response", "position": place} for place, each in enumerate(expected)] == found
