"""Responses put together from events: what is kept, what is bounded, and that nothing raises."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gym_capture.recording.reassembly import StreamReassembly
from tests.recording.streams import (
    DIALECTS,
    DONE,
    LIMIT,
    assert_chunks_change_nothing,
    chat,
    cut_places,
    deltas,
    event,
    named,
    see,
)

STOP = {"type": "message_stop"}
START = {
    "type": "message_start",
    "message": {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 1}},
}
CREATED = {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}}


def message(body: bytes) -> dict[str, Any]:
    """The message of the first choice."""
    response = see("chat", body).response
    assert isinstance(response, dict)
    found = response["choices"][0]["message"]
    assert isinstance(found, dict)
    return found


def block_events(block: dict[str, Any], *given_deltas: dict[str, Any], index: int = 0) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in given_deltas),
        {"type": "content_block_stop", "index": index},
    ]


def blocks(*events: dict[str, Any]) -> Any:
    return see("messages", named(START, *events, STOP)).response["content"]


# The face.


def test_an_unknown_dialect_is_refused() -> None:
    with pytest.raises(ValueError, match="give one of chat, messages, responses"):
        StreamReassembly("completions", limit_bytes=LIMIT)


@pytest.mark.parametrize(
    ("dialect", "before", "terminal"),
    [
        ("chat", deltas({"content": "a"}, done=False), DONE),
        ("chat", deltas({"content": "a"}, done=False), b"data: [DONE]\r\n"),
        ("chat", deltas({"content": "a"}, done=False), event({"error": {"message": "x"}})),
        ("messages", named(START), named(STOP)),
        ("messages", named(START), named({"type": "error", "error": {}})),
        ("responses", named(CREATED), named({"type": "response.completed", "response": {"id": "r"}})),
        ("responses", named(CREATED), named({"type": "error", "code": "x"})),
    ],
)
def test_the_terminal_event_is_held_from_where_it_begins(dialect: str, before: bytes, terminal: bytes) -> None:
    stream = StreamReassembly(dialect, limit_bytes=LIMIT)
    assert stream.feed(before + b": ping\n\n" + terminal + b"data: [DONE]\n\n") == len(before) + 8
    assert stream.feed(terminal) is None

    in_two = StreamReassembly(dialect, limit_bytes=LIMIT)
    assert in_two.feed(before + terminal[:5]) is None
    assert in_two.feed(terminal[5:]) == 0
    assert in_two.terminal is not None


def test_the_end_of_a_chat_is_known_by_its_line_not_by_the_blank_line_after_it() -> None:
    stream = StreamReassembly("chat", limit_bytes=LIMIT)
    stream.feed(deltas({"content": "a"}, done=False))
    assert stream.feed(b"data: [DONE]") is None
    assert stream.feed(b"\n") == 0
    assert stream.terminal == "complete"


@pytest.mark.parametrize("ending", [b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n"])
def test_a_body_may_end_with_the_end_of_the_chat(ending: bytes) -> None:
    seen = see("chat", deltas({"content": "a"}, done=False) + ending)
    assert (seen.terminal, seen.raw, seen.understood) == ("complete", None, True)


def test_a_last_event_without_its_blank_line_counts_when_its_json_is_whole() -> None:
    whole = named(START, *block_events({"type": "text", "text": "a"}), STOP)
    seen = see("messages", whole.rstrip(b"\n"))
    assert (seen.terminal, seen.raw) == ("complete", None)
    cut = see("messages", whole.rstrip(b"\n")[:-1])
    assert (cut.terminal, cut.understood) == (None, True)
    assert cut.raw == b'event: message_stop\ndata: {"type": "message_stop"'


def test_what_comes_after_the_terminal_event_changes_nothing() -> None:
    body = deltas({"content": "a"})
    more = chat({"index": 0, "delta": {"content": "b"}}) + event({"error": "x"}) + b"junk\n\n"
    assert see("chat", body + more) == see("chat", body)


def test_the_response_so_far_may_be_read_at_any_time() -> None:
    stream = StreamReassembly("chat", limit_bytes=LIMIT)
    assert stream.response is None
    assert not stream.first_token_seen
    stream.feed(deltas({"role": "assistant", "content": ""}, done=False))
    assert not stream.first_token_seen
    stream.feed(deltas({"content": "ab"}, done=False))
    first = stream.response
    stream.feed(deltas({"content": "cd"}))
    assert stream.first_token_seen
    assert first is not None
    assert first["choices"][0]["message"]["content"] == "ab"
    assert stream.response is not None
    assert stream.response["choices"][0]["message"]["content"] == "abcd"


# Raw bytes.


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "odd",
    [
        b"data: not json\n\n",
        b"data: [1]\n\n",
        b'data: {"un": "known"}\n\n',
        b'data: {"a": "\xff"}\n\n',
        b"event: x\r\ndata: 5\r\n\r\n",
        b"no field\n\n",
        b"data: " + '{"error": "in UTF-16"}'.encode("utf-16-le") + b"\n\n",
    ],
)
def test_raw_bytes_are_kept_from_what_is_not_understood_on(dialect: str, odd: bytes) -> None:
    before = {"chat": deltas({"content": "a"}, done=False), "messages": named(START), "responses": named(CREATED)}
    after = {
        "chat": deltas({"content": "b"}),
        "messages": named(*block_events({"type": "text", "text": "b"}), STOP),
        "responses": named({"type": "response.completed", "response": {"id": "b", "output": []}}),
    }
    body = before[dialect] + odd + after[dialect]
    seen = see(dialect, body)
    assert not seen.understood
    assert seen.raw == odd + after[dialect]
    assert seen.terminal == "complete"
    assert "b" in json.dumps(seen.response)
    assert see(dialect, body, range(len(body))).raw == seen.raw
    assert see(dialect, before[dialect] + after[dialect]).raw is None


def test_everything_is_kept_when_it_is_asked_for_up_to_the_limit() -> None:
    body = deltas({"content": "a"}) + b": more\n"
    assert see("chat", body, keep_raw=True).raw == body
    assert see("chat", body, limit=150, keep_raw=True).raw == body[:150]
    assert see("chat", b"", keep_raw=True).raw == b""


def test_an_error_event_is_kept_raw_with_its_payload() -> None:
    failure = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    body = named(START, *block_events({"type": "text", "text": ""}, {"type": "text_delta", "text": "ab"}), failure)
    seen = see("messages", body)
    assert (seen.terminal, seen.error, seen.understood) == ("error", failure, True)
    assert seen.raw == named(failure)
    assert seen.response["content"] == [{"type": "text", "text": "ab"}]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_event_named_error_is_one_whatever_it_carries(dialect: str) -> None:
    plain = see(dialect, b"event: error\ndata: out of memory\n\n")
    assert (plain.terminal, plain.error, plain.understood) == ("error", "out of memory", False)
    other = see(dialect, event({"message": "x"}, "error"))
    assert (other.terminal, other.error) == ("error", {"message": "x"})


def test_a_chunk_with_an_error_keeps_what_it_says_besides() -> None:
    body = chat({"index": 0, "delta": {"content": "ab"}, "finish_reason": "error"}, error={"code": 502})
    seen = see("chat", body)
    assert seen.terminal == "error"
    assert seen.error["error"] == {"code": 502}
    assert seen.response["choices"][0]["finish_reason"] == "error"
    assert "error" not in seen.response
    assert see("chat", chat({"index": 0, "delta": {"content": "ab"}}, error=None)).terminal == "complete"


# Chat Completions.


def test_choices_are_put_together_each_by_its_index() -> None:
    given_choices = [(1, "x"), (0, "a"), (1, "y"), (0, "b"), (2, "")]
    body = chat(*({"index": index, "delta": {"content": text}} for index, text in given_choices))
    assert [(choice["index"], choice["message"]["content"]) for choice in see("chat", body).response["choices"]] == [
        (0, "ab"),
        (1, "xy"),
        (2, None),
    ]


def call(index: int | None, arguments: str, **given: Any) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": given.pop("name")} if "name" in given else {})
    return ({} if index is None else {"index": index}) | given | {"function": function}


def called(*chunks: list[dict[str, Any]]) -> list[tuple[Any, Any, Any]]:
    calls = message(deltas(*({"tool_calls": chunk} for chunk in chunks)))["tool_calls"]
    assert not any("index" in one for one in calls)
    return [(one.get("id"), one["function"].get("name"), one["function"]["arguments"]) for one in calls]


def test_parallel_tool_calls_are_put_together_by_index() -> None:
    assert called(
        [call(1, "", id="b", name="g"), call(0, "", id="a", name="f")],
        [call(0, '{"x"')],
        [call(1, "{}"), call(0, ":1}")],
    ) == [("a", "f", '{"x":1}'), ("b", "g", "{}")]


def test_tool_calls_of_servers_that_send_no_index_or_one_for_all_stay_apart() -> None:
    assert called([call(None, "{}", id="a", name="f"), call(None, "{}", id="b", name="g")]) == [
        ("a", "f", "{}"),
        ("b", "g", "{}"),
    ]
    assert called([call(None, "{", id="a", name="f")], [call(None, "}")], [call(None, "[]", id="b", name="g")]) == [
        ("a", "f", "{}"),
        ("b", "g", "[]"),
    ]
    assert called([call(0, "{}", id="a", name="f")], [call(0, "[]", id="b", name="g")]) == [
        ("a", "f", "{}"),
        ("b", "g", "[]"),
    ]


def test_ids_and_names_that_are_repeated_do_not_grow() -> None:
    assert called([call(0, "{", id="a", name="f")], [call(0, "}", id="a", name="f")]) == [("a", "f", "{}")]
    assert message(deltas({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"})) == {
        "role": "assistant",
        "content": "ab",
    }


def test_refusals_logprobs_audio_and_unknown_fields_are_kept() -> None:
    token = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    body = chat(
        {"index": 0, "delta": {"content": None, "refusal": "I "}, "logprobs": {"content": [token], "refusal": None}},
        {"index": 0, "delta": {"refusal": "can't", "audio": {"id": "au", "data": "QUJD", "transcript": "a"}}},
        {"index": 0, "delta": {"audio": {"data": "REVG", "transcript": "b", "expires_at": 7}}, "stop_reason": 3},
        {"index": 0, "delta": {"new": {"text": "x", "n": 1}}, "logprobs": {"content": [token]}},
        {"index": 0, "delta": {"new": {"text": "y", "n": 2}, "parts": [{"a": 1}]}, "finish_reason": "stop"},
        {"index": 0, "delta": {"parts": [{"a": 2}], "details": [{"index": 0, "type": "t", "text": "p"}]}},
        {"index": 0, "delta": {"details": [{"index": 0, "type": "t", "text": "q"}]}, "token_ids": [1]},
        {"index": 0, "delta": {}, "token_ids": [2], "matched": "</s>"},
    )
    seen = see("chat", body)
    assert seen.understood
    assert seen.response["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": "I can't",
                "audio": {"id": "au", "data": "QUJDREVG", "transcript": "ab", "expires_at": 7},
                "new": {"text": "xy", "n": 2},
                "parts": [{"a": 1}, {"a": 2}],
                "details": [{"index": 0, "type": "t", "text": "pq"}],
            },
            "finish_reason": "stop",
            "logprobs": {"content": [token, token], "refusal": None},
            "stop_reason": 3,
            "token_ids": [1, 2],
            "matched": "</s>",
        }
    ]


def test_usage_and_what_stands_beside_the_choices_is_what_was_said_last() -> None:
    body = (
        chat({"index": 0, "delta": {"content": "a"}}, usage=None, system_fingerprint="f", service_tier=None, done=False)
        + chat({"index": 0, "delta": {}}, usage={"prompt_tokens": 1}, obfuscation="zz", created=5, done=False)
        + event({"id": "c1", "object": "chat.completion.chunk", "choices": [], "usage": {"prompt_tokens": 2}})
        + DONE
    )
    assert see("chat", body).response == {
        "object": "chat.completion",
        "id": "c1",
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": None}],
        "system_fingerprint": "f",
        "usage": {"prompt_tokens": 2},
    }


def test_reasoning_has_one_name_unless_it_says_two_things() -> None:
    assert message(deltas({"reasoning": "a"}, {"reasoning": "b"}))["reasoning_content"] == "ab"
    both_alike = message(deltas({"reasoning": "a", "reasoning_content": "a"}))
    assert both_alike["reasoning_content"] == "a"
    assert "reasoning" not in both_alike
    differ = message(deltas({"reasoning": "a", "reasoning_content": "b"}))
    assert (differ["reasoning"], differ["reasoning_content"]) == ("a", "b")


def test_surrogates_split_over_two_deltas_are_both_kept() -> None:
    chunk = b'data: {"choices": [{"delta": {"content": "%s"}}]}\n\n'
    body = chunk % b"\\ud83d" + chunk % b"\\ude42"
    assert message(body)["content"] == "\ud83d\ude42"
    assert see("chat", body).understood


def test_a_malformed_part_costs_only_itself() -> None:
    body = chat(
        {"index": 0, "delta": {"content": "a"}},
        {"index": 0, "delta": {"content": ["list"]}},
        {"index": 0, "delta": {"content": 5, "refusal": "r"}},
        {"index": 0, "delta": "text"},
        {"index": "x", "delta": {"content": "b"}},
        {"index": 0, "delta": {"tool_calls": [None, {"index": 0, "function": {"arguments": "{}"}}]}},
    )
    body = event({"choices": [None, {"index": 0, "delta": {"content": "z"}}]}) + body
    seen = see("chat", body)
    assert not seen.understood
    assert seen.raw == body
    assert seen.response["choices"][0]["message"] == {
        "role": "assistant",
        "content": "zab",
        "refusal": "r",
        "tool_calls": [{"function": {"arguments": "{}"}}],
    }


# Messages.


def test_blocks_of_every_kind_are_put_together() -> None:
    citation = {"type": "char_location", "cited_text": "x"}
    result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "web_search_result"}]}
    assert blocks(
        *block_events(
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "a"},
            {"type": "thinking_delta", "thinking": "b"},
            {"type": "signature_delta", "signature": "sig"},
        ),
        *block_events({"type": "redacted_thinking", "data": "xx"}, index=1),
        *block_events(
            {"type": "text", "text": "", "citations": None},
            {"type": "citations_delta", "citation": citation},
            {"type": "text_delta", "text": "c"},
            {"type": "citations_delta", "citation": citation},
            index=2,
        ),
        *block_events(
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"q": '},
            {"type": "input_json_delta", "partial_json": '"x"}'},
            index=3,
        ),
        *block_events(result, index=4),
        *block_events(
            {"type": "new", "x": {"y": 1}},
            {"type": "new_delta", "z": "a", "n": 1},
            {"type": "new_delta", "z": "b", "n": 2},
            index=5,
        ),
    ) == [
        {"type": "thinking", "thinking": "ab", "signature": "sig"},
        {"type": "redacted_thinking", "data": "xx"},
        {"type": "text", "text": "c", "citations": [citation, citation]},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": "x"}},
        result,
        {"type": "new", "x": {"y": 1}, "z": "ab", "n": 2},
    ]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([], {"given": 1}),
        ([""], {"given": 1}),
        (['{"a"', ": 1}"], {"a": 1}),
        (['{"a"'], {"_raw": '{"a"'}),
        (["NaN"], {"_raw": "NaN"}),
        (["[1]"], [1]),
        (["[" * 10_000], {"_raw": "[" * 10_000}),
    ],
)
def test_a_tools_input_is_the_value_of_its_pieces(parts: list[str], expected: Any) -> None:
    given_deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
    [block] = blocks(*block_events({"type": "tool_use", "id": "t", "name": "f", "input": {"given": 1}}, *given_deltas))
    assert block["input"] == expected


def test_blocks_that_arrive_interleaved_are_told_apart() -> None:
    text, tool = block_events({"type": "text", "text": ""}), block_events({"type": "tool_use", "input": {}}, index=1)
    piece = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
    part = {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "[]"}}
    assert blocks(tool[0], text[0], piece, part, piece) == [
        {"type": "text", "text": "aa"},
        {"type": "tool_use", "input": []},
    ]


def test_what_the_message_delta_says_replaces_what_was_known_and_null_tokens_do_not() -> None:
    start = {
        "type": "message_start",
        "message": {
            "id": "m",
            "content": [],
            "stop_reason": None,
            "usage": {"input_tokens": 3, "cache_read_input_tokens": 2, "output_tokens": 1},
        },
    }
    delta = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 9, "cache_read_input_tokens": None, "server_tool_use": {"web_search_requests": 1}},
        "context_management": {"applied_edits": []},
    }
    assert see("messages", named(start, delta, STOP)).response == {
        "id": "m",
        "content": [],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 3,
            "cache_read_input_tokens": 2,
            "output_tokens": 9,
            "server_tool_use": {"web_search_requests": 1},
        },
        "context_management": {"applied_edits": []},
    }


def test_a_delta_whose_block_never_started_is_kept_and_marked() -> None:
    body = named(START, {"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta", "text": "a"}}, STOP)
    seen = see("messages", body)
    assert seen.response["content"] == [{"type": "text", "text": "a"}]
    assert (seen.understood, seen.terminal) == (False, "complete")


# Responses.


def items(*events: dict[str, Any]) -> list[dict[str, Any]]:
    """Events about the item at index 0, then those as they are that have a place of their own."""
    return [{"output_index": 0} | given_event for given_event in events]


MESSAGE = {"type": "message", "id": "i", "role": "assistant", "status": "in_progress", "content": []}
ADDED = {"type": "response.output_item.added", "item": MESSAGE}
PART = {
    "type": "response.content_part.added",
    "content_index": 0,
    "part": {"type": "output_text", "text": "", "annotations": []},
}


def text_delta(text: str, **given: Any) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "content_index": 0, "delta": text} | given


def test_a_cut_response_is_pieced_together_from_what_passed() -> None:
    body = named(
        CREATED,
        *items(
            {"type": "response.output_item.added", "item": {"type": "reasoning", "id": "g", "summary": []}},
            {
                "type": "response.reasoning_summary_part.added",
                "summary_index": 0,
                "part": {"type": "summary_text", "text": ""},
            },
            {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": "th"},
            {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": "ink"},
            {"type": "response.reasoning_text.delta", "content_index": 0, "delta": "deep"},
            ADDED | {"output_index": 1},
            PART | {"output_index": 1},
            text_delta("ab", output_index=1, logprobs=[{"token": "ab"}]),
            text_delta("cd", output_index=1, logprobs=[{"token": "cd"}]),
            {
                "type": "response.output_text.annotation.added",
                "output_index": 1,
                "content_index": 0,
                "annotation": {"n": 1},
            },
            {"type": "response.refusal.delta", "output_index": 1, "content_index": 1, "delta": "no"},
            {
                "type": "response.output_item.added",
                "output_index": 2,
                "item": {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""},
            },
            {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"x"'},
            {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": ": 1"},
        ),
    )
    seen = see("responses", body)
    assert (seen.terminal, seen.understood, seen.raw) == (None, True, None)
    assert seen.response == {
        "id": "r",
        "status": "in_progress",
        "output": [
            {
                "type": "reasoning",
                "id": "g",
                "summary": [{"type": "summary_text", "text": "think"}],
                "content": [{"type": "reasoning_text", "text": "deep"}],
            },
            MESSAGE
            | {
                "content": [
                    {
                        "type": "output_text",
                        "text": "abcd",
                        "annotations": [{"n": 1}],
                        "logprobs": [{"token": "ab"}, {"token": "cd"}],
                    },
                    {"type": "refusal", "refusal": "no"},
                ]
            },
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x": 1'},
        ],
    }


def test_a_part_or_an_item_that_is_done_replaces_its_pieces() -> None:
    done = MESSAGE | {"status": "completed", "content": [{"type": "output_text", "text": "whole"}]}
    pieces = items(
        ADDED, PART, text_delta("ab"), {"type": "response.output_text.done", "content_index": 0, "text": "abc"}
    )
    after = named(CREATED, *pieces)
    assert see("responses", after).response["output"][0]["content"][0]["text"] == "abc"
    after += named(
        *items(
            {"type": "response.content_part.done", "content_index": 0, "part": {"type": "output_text", "text": "abcd"}}
        )
    )
    assert see("responses", after).response["output"][0]["content"] == [{"type": "output_text", "text": "abcd"}]
    after += named(*items({"type": "response.output_item.done", "item": done}))
    assert see("responses", after).response["output"] == [done]


def test_the_final_response_is_what_it_says() -> None:
    pieces = items(ADDED, PART, text_delta("ab"))
    final = {"type": "response.completed", "response": {"id": "r", "output": [{"type": "message", "id": "other"}]}}
    assert see("responses", named(CREATED, *pieces, final)).response == final["response"]
    empty = {"type": "response.completed", "response": {"id": "r", "output": []}}
    assert see("responses", named(CREATED, *pieces, empty)).response == empty["response"]


def test_a_failed_response_without_output_keeps_what_had_passed() -> None:
    failed = {
        "type": "response.failed",
        "response": {"id": "r", "status": "failed", "error": {"code": "x"}, "output": []},
    }
    seen = see("responses", named(CREATED, *items(ADDED, PART, text_delta("ab")), failed))
    assert (seen.terminal, seen.error) == ("error", failed)
    assert seen.response["status"] == "failed"
    assert seen.response["output"][0]["content"][0]["text"] == "ab"


def test_a_completed_response_without_an_output_field_has_the_items_that_were_done() -> None:
    done = {"type": "response.output_item.done", "item": MESSAGE}
    final = {"type": "response.completed", "response": {"id": "r", "usage": {}}}
    body = named(CREATED, *items(ADDED, done, ADDED | {"output_index": 1}), final)
    assert see("responses", body).response == {"id": "r", "usage": {}, "output": [MESSAGE]}


def test_deltas_of_items_nobody_announced_are_raw_until_a_final_response_has_them() -> None:
    loose = named(*items(text_delta("ab")))
    cut = see("responses", named(CREATED) + loose)
    assert (cut.response, cut.raw, cut.understood) == (CREATED["response"], loose, True)
    final = named({"type": "response.completed", "response": {"id": "r", "output": []}})
    whole = see("responses", named(CREATED) + loose + final)
    assert (whole.raw, whole.terminal) == (None, "complete")
    assert see("responses", named(CREATED) + loose + final, keep_raw=True).raw == named(CREATED) + loose + final


# Bounds.


def test_a_response_over_the_limit_is_kept_up_to_it_and_its_end_is_still_seen() -> None:
    chunk = deltas({"content": "x" * 100}, done=False)
    stream = StreamReassembly("chat", limit_bytes=2000)
    for _ in range(50):
        assert stream.feed(chunk) is None
    assert stream.overflowed
    assert stream.understood
    assert stream.feed(b": a\n\n" + DONE) == 5
    assert stream.terminal == "complete"
    assert stream.response is not None
    kept = stream.response["choices"][0]["message"]["content"]
    assert 1000 < len(kept) <= 2000
    assert stream.raw is None


def test_an_end_that_is_itself_over_the_limit_is_still_an_end() -> None:
    big = {"type": "response.completed", "response": {"id": "r", "output": ["x" * 5000]}}
    for body in (named(CREATED, big), named(CREATED) + event(big)):
        seen = see("responses", body, range(0, len(body), 100), limit=1000)
        assert (seen.terminal, seen.overflowed, seen.understood) == ("complete", True, False)
        assert seen.response == CREATED["response"]
        assert seen.raw is not None
        assert len(seen.raw) == 1000


def test_a_final_response_within_the_limit_makes_good_what_was_left_out() -> None:
    stream = StreamReassembly("responses", limit_bytes=2000)
    stream.feed(named(CREATED, *items(ADDED, PART)))
    for _ in range(30):
        stream.feed(named(*items(text_delta("x" * 100))))
    assert stream.overflowed
    final = {"type": "response.completed", "response": {"id": "r", "output": [{"text": "x" * 1500}]}}
    stream.feed(named(final))
    assert (stream.response, stream.overflowed, stream.terminal) == (final["response"], False, "complete")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_memory_follows_the_response_not_the_events(dialect: str) -> None:
    # Ten thousand events, two megabytes, of which sixty kilobytes are the response.
    beginning = {
        "chat": b"",
        "messages": named(START, *block_events({"type": "text", "text": ""})),
        "responses": named(CREATED, *items(ADDED, PART)),
    }[dialect]
    one = {
        "chat": chat({"index": 0, "delta": {"content": " token"}, "logprobs": None}, done=False, padding="p" * 100),
        "messages": named(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": " token"},
                "p": "p" * 100,
            }
        ),
        "responses": named(*items(text_delta(" token", logprobs=[], obfuscation="p" * 100))),
    }[dialect]
    stream = StreamReassembly(dialect, limit_bytes=LIMIT)
    stream.feed(beginning + one)
    tracemalloc.start()
    try:
        for _ in range(10_000):
            stream.feed(one)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert " token" * 10_000 in json.dumps(stream.response)
    assert held < 150_000


def test_many_pieces_take_linear_time() -> None:
    def seconds(count: int) -> float:
        stream = StreamReassembly("chat", limit_bytes=1 << 30)
        chunk = deltas({"content": "x" * 1000}, done=False) * 100
        began = time.process_time()
        for _ in range(count):
            stream.feed(chunk)
        return time.process_time() - began

    seconds(2)
    # Forty megabytes of text; were each piece to copy the text so far, the second would take a hundred times the first.
    assert seconds(400) < 40 * max(seconds(40), 0.02)


# Anything at all.

_KEYS = st.sampled_from(
    [
        "type",
        "index",
        "delta",
        "content_block",
        "choices",
        "message",
        "usage",
        "error",
        "response",
        "output_index",
        "item",
        "part",
        "content_index",
        "object",
        "content",
        "text",
        "tool_calls",
        "function",
        "arguments",
        "name",
        "id",
        "partial_json",
        "citation",
        "input",
        "summary_index",
        "x",
    ]
)
_TYPES = st.sampled_from(
    [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "message_delta",
        "message_stop",
        "text_delta",
        "input_json_delta",
        "citations_delta",
        "signature_delta",
        "new_delta",
        "response.created",
        "response.completed",
        "response.failed",
        "error",
        "response.output_item.added",
        "response.output_item.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.added",
        "response.function_call_arguments.delta",
        "response.refusal.done",
        "response.output_text.annotation.added",
        "response.custom_tool_call_input.delta",
    ]
)
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.just(10**400),
    st.floats(),
    st.text(max_size=4),
    st.just("\ud83d"),
    _TYPES,
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=5,
)
_SHAPED = st.fixed_dictionaries(
    {"type": _TYPES},
    optional={
        "index": st.integers(0, 1) | _LEAVES,
        "output_index": st.integers(0, 1) | _LEAVES,
        "content_index": st.integers(0, 1) | _LEAVES,
        "delta": st.fixed_dictionaries({"type": _TYPES}, optional={"text": _VALUES, "partial_json": _VALUES}) | _VALUES,
        "choices": st.lists(st.dictionaries(_KEYS, _VALUES, max_size=4) | _VALUES, max_size=3),
        "content_block": _VALUES,
        "message": _VALUES,
        "item": _VALUES,
        "part": _VALUES,
        "text": _VALUES,
        "response": _VALUES,
        "usage": _VALUES,
        "error": _VALUES,
    },
)
_EVENTS = st.lists(_SHAPED | st.dictionaries(_KEYS, _VALUES, max_size=5) | _VALUES, max_size=8).map(
    lambda payloads: b"".join(b"data: %s\n\n" % json.dumps(payload).encode() for payload in payloads)
)


@settings(max_examples=400, deadline=None)
@given(dialect=st.sampled_from(DIALECTS), body=st.binary(max_size=200), cuts=cut_places(200))
@example(dialect="chat", body=b'data: {"choices"\x00: []}\n\n', cuts=[])
@example(dialect="chat", body=b"data: {\x00}\x00\n\n", cuts=[])
def test_any_bytes_are_read_without_raising(dialect: str, body: bytes, cuts: list[int]) -> None:
    assert_chunks_change_nothing(dialect, body, cuts)
    assert_chunks_change_nothing(dialect, b"data: " + body + b"\n\n", cuts)


@settings(max_examples=150, deadline=None)
@given(dialect=st.sampled_from(DIALECTS), body=_EVENTS, cuts=cut_places(800), limit=st.sampled_from([LIMIT, 300, 20]))
def test_any_events_are_read_without_raising(dialect: str, body: bytes, cuts: list[int], limit: int) -> None:
    assert_chunks_change_nothing(dialect, body, cuts, limit=limit)
    response = see(dialect, body, limit=limit).response
    assert response is None or isinstance(json.dumps(response), str)


@settings(max_examples=50, deadline=None)
@given(dialect=st.sampled_from(DIALECTS), body=_EVENTS)
def test_whatever_came_before_a_good_end_is_seen(dialect: str, body: bytes) -> None:
    if see(dialect, body).terminal is not None:
        return
    end = {
        "chat": DONE,
        "messages": named(STOP),
        "responses": named({"type": "response.incomplete", "response": {"id": "the end", "output": [1]}}),
    }[dialect]
    seen = see(dialect, body + end)
    assert seen.terminal == ("incomplete" if dialect == "responses" else "complete")
    assert seen.hold_at == len(body)
    if dialect == "responses":
        assert seen.response == {"id": "the end", "output": [1]}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "text",
    [
        b'{"choices": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"a": ' * 10_000 + b"1" + b"}" * 10_000,
        b'{"type": "message_start", "message": ' + b'{"a": ' * 250 + b"1" + b"}" * 251,
        b"[" * 100_000,
    ],
)
def test_deep_nesting_is_not_understood_and_costs_only_itself(dialect: str, text: bytes) -> None:
    good = {"chat": deltas({"content": "a"}), "messages": named(START, STOP), "responses": named(CREATED)}[dialect]
    body = b"data: " + text + b"\n\n"
    seen = see(dialect, body + good)
    assert not seen.understood
    assert seen.raw == body + good
    assert seen.response == see(dialect, good).response


def test_brackets_inside_of_strings_are_no_nesting() -> None:
    text = '[{"' * 5000 + "\\"
    assert message(deltas({"content": text}))["content"] == text


def test_numbers_and_text_that_the_standard_refuses_come_back() -> None:
    body = (
        b'data: {"choices": [{"index": 0, "delta": {"content": "\\ud83d"}, "logprobs": {"content": [NaN, -Infinity]}}],'
        b' "usage": {"n": 1' + b"0" * 400 + b"}}\n\n"
    )
    seen = see("chat", body)
    assert seen.understood
    [choice] = seen.response["choices"]
    assert choice["message"]["content"] == "\ud83d"
    assert [str(number) for number in choice["logprobs"]["content"]] == ["nan", "-inf"]
    assert seen.response["usage"]["n"] == 10**400
