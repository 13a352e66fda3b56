"""Rollouts as conversations for training: each leaf once, whole, in OpenAI's shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.sealed.writer import SealedWriter
from gym_capture.transfer.chat_lines import ChatLine, chat_lines
from gym_capture.transfer.export import export
from tests.reading.calls import SYSTEM, assistant, chat, user
from tests.storage.captured_rollouts import call, rollout

Json = dict[str, Any]
TOLD = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "x"}'}}
LOOK = {"name": "look", "description": "looks", "parameters": {"type": "object"}}


def lines(*exchanges: Json) -> list[ChatLine]:
    return list(chat_lines(call(index, each) for index, each in enumerate(exchanges)))


def test_a_conversation_is_told_once_with_its_last_answer() -> None:
    history = [SYSTEM, user("one"), assistant("answer a"), user("two")]
    assert lines(chat("a", history[:2]), chat("b", history)) == [
        ChatLine({"messages": [*history, assistant("answer b")]})
    ]


def test_samples_of_a_step_and_an_answer_that_was_not_taken_are_conversations_of_their_own() -> None:
    found = lines(
        chat("a", [user("one")]),
        chat("b", [user("one")]),
        chat("c", [user("one"), assistant("answer b"), user("two")]),
    )
    assert [each.line["messages"][-1]["content"] for each in found if each.line] == ["answer a", "answer c"]


def test_each_choice_is_a_conversation() -> None:
    choices = [{"message": assistant("x")}, {"message": assistant("y")}]
    found = lines(chat("a", [user("one")], response={"choices": choices}))
    assert found == [ChatLine({"messages": [user("one"), assistant(each)]}) for each in "xy"]


def test_failed_calls_and_verifiers_calls_are_none() -> None:
    failed = chat("a", [user("one")], response=None, error_category="timeout", status_code=504)
    judged = chat("b", [user("judge")], verifier_invocation={"invocation_id": "v", "name": "judge"})
    cut = chat("d", [user("one")], error_category="stream_truncated")
    assert lines(failed, judged, cut, chat("c", [user("one")])) == [
        ChatLine({"messages": [user("one"), assistant("answer c")]})
    ]


def test_a_failed_or_verifying_call_that_goes_on_from_a_conversation_leaves_it_whole() -> None:
    first, history = chat("a", [user("one")]), [user("one"), assistant("answer a"), user("two")]
    told = [ChatLine({"messages": [user("one"), assistant("answer a")]})]
    assert lines(first, chat("b", history, response=None, error_category="timeout", status_code=504)) == told
    assert lines(first, chat("b", history, verifier_invocation={"invocation_id": "v", "name": "judge"})) == told


@pytest.mark.parametrize("failures", [1, 2])
def test_a_call_that_is_made_again_after_it_failed_takes_the_place_of_what_it_goes_on_from(failures: int) -> None:
    history = [user("one"), assistant("answer a"), user("two")]
    failed = [chat(f"f{n}", history, response=None, status_code=500) for n in range(failures)]
    again = chat("b", history)
    assert lines(chat("a", history[:1]), *failed, again) == [ChatLine({"messages": [*history, assistant("answer b")]})]
    on = [*history, assistant("answer b"), user("three")]
    assert lines(chat("a", history[:1]), *failed, again, chat("c", on)) == [
        ChatLine({"messages": [*on, assistant("answer c")]})
    ]


def test_a_status_alone_tells_that_a_call_failed() -> None:
    history = [user("one"), assistant("answer a"), user("two")]
    refused = chat("b", history, status_code=500)
    assert lines(chat("a", [user("one")]), refused) == [
        ChatLine({"messages": [user("one"), assistant("answer a")]}),
    ]


def test_what_goes_on_from_a_failed_calls_answer_goes_on_from_all_before_it() -> None:
    history = [user("one"), assistant("answer a"), user("two"), assistant("answer b"), user("three")]
    found = lines(chat("a", history[:1]), chat("b", history[:3], error_category="stream_truncated"), chat("c", history))
    assert found == [ChatLine({"messages": [*history, assistant("answer c")]})]


EXPECTED: list[Json] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "where?"},
    {"role": "assistant", "content": "let me look", "tool_calls": [TOLD]},
    {"role": "tool", "tool_call_id": "c1", "content": "there"},
    {"role": "assistant", "content": "there"},
]


@pytest.mark.parametrize(
    "exchange",
    [
        {
            "request": {"messages": EXPECTED[:4], "tools": [{"type": "function", "function": LOOK}]},
            "response": {"choices": [{"message": {**EXPECTED[4], "reasoning_content": "hm"}}]},
        },
        {
            "dialect": "responses",
            "request": {
                "instructions": "be brief",
                "input": [
                    user("where?"),
                    {"type": "reasoning", "summary": [{"text": "hm"}]},
                    {"type": "message", **assistant("let me look")},
                    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": "x"}'},
                    {"type": "function_call_output", "call_id": "c1", "output": "there"},
                ],
                "tools": [{"type": "function", **LOOK}, {"type": "web_search"}],
            },
            "response": {"output": [{"type": "message", "content": [{"type": "output_text", "text": "there"}]}]},
        },
        {
            "dialect": "messages",
            "request": {
                "system": "be brief",
                "messages": [
                    user("where?"),
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "hm"},
                            {"type": "text", "text": "let me look"},
                            {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "x"}},
                        ],
                    },
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "there"}]},
                ],
                "tools": [{"name": "look", "description": "looks", "input_schema": {"type": "object"}}],
            },
            "response": {"role": "assistant", "content": [{"type": "text", "text": "there"}]},
        },
    ],
    ids=["chat", "responses", "messages"],
)
def test_every_dialect_gives_the_same_conversation(exchange: Json) -> None:
    assert lines(exchange) == [
        ChatLine({"messages": EXPECTED, "tools": [{"type": "function", "function": LOOK}]}),
    ]


def test_a_request_that_refers_to_a_response_has_that_ones_history() -> None:
    first: Json = {
        "dialect": "responses",
        "request": {"input": "one"},
        "response": {"id": "r1", "output": [{"type": "message", "content": [{"type": "output_text", "text": "x"}]}]},
    }
    second = {
        **first,
        "request": {"input": "two", "previous_response_id": "r1"},
        "response": {**first["response"], "id": "r2"},
    }
    assert lines(first, second) == [
        ChatLine({"messages": [user("one"), assistant("x"), user("two"), assistant("x")]}),
    ]
    assert lines(second) == [ChatLine(None, "unknown_history")]


def test_what_is_no_text_leaves_its_conversation_out() -> None:
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}
    assert lines(chat("a", [image])) == [ChatLine(None, "not_text")]
    assert lines({"request": {"prompt": "?"}, "response": {"choices": [{"text": "x"}]}}) == [
        ChatLine(None, "unknown_history")
    ]


def test_one_conversation_a_line(tmp_path: Path) -> None:
    sealed = tmp_path / "sealed"
    sealed.mkdir()
    writer = SealedWriter(PosixFiles(sealed))
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    writer.add(rollout("a", [chat("a", [user("a\nb \ud800")])]))
    writer.add(rollout("b", [chat("a", [user("c")]), chat("b", [image])]))
    writer.commit()
    out = tmp_path / "deeper" / "train.jsonl"
    assert export(sealed, out, "openai-chat") == (2, 3, {"conversations": 2, "not_text": 1})
    told = [json.loads(line)["messages"][0]["content"] for line in out.read_bytes().splitlines()]
    assert told == ["a\nb \ud800", "c"]
    assert [path.name for path in out.parent.iterdir()] == ["train.jsonl"]
