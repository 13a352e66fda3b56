"""The same streams, read by the real SDKs: what their users get is what is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lazily import lazily
from tests.recording.streams import DONE, LIMIT, cut_places, event, named, see

if TYPE_CHECKING:
    import anthropic
    import openai
else:
    anthropic, openai = lazily("anthropic"), lazily("openai")

_MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]


class Server:
    """Answers every request with one body."""

    def __init__(self) -> None:
        self.body = b""

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=self.body)

    def client(self) -> httpx2.Client:
        return httpx2.Client(transport=httpx2.MockTransport(self.answer))


@dataclass
class OpenAIEnd:
    server: Server = field(default_factory=Server)

    def __post_init__(self) -> None:
        self.sdk = openai.OpenAI(
            api_key="k", base_url="http://model/v1", http_client=self.server.client(), max_retries=0
        )

    def chat(self, body: bytes) -> dict[str, Any]:
        self.server.body = body
        with self.sdk.chat.completions.stream(model="m", messages=_MESSAGES) as stream:
            return stream.get_final_completion().model_dump()

    def chunks(self, body: bytes) -> list[dict[str, Any]]:
        self.server.body = body
        return [
            chunk.to_dict() for chunk in self.sdk.chat.completions.create(model="m", messages=_MESSAGES, stream=True)
        ]

    def response(self, body: bytes) -> dict[str, Any]:
        self.server.body = body
        with self.sdk.responses.stream(model="m", input="hello") as stream:
            return stream.get_final_response().model_dump()

    def response_events(self, body: bytes) -> list[Any]:
        self.server.body = body
        with self.sdk.responses.stream(model="m", input="hello") as stream:
            return list(stream)


@dataclass
class AnthropicEnd:
    server: Server = field(default_factory=Server)

    def __post_init__(self) -> None:
        self.sdk = anthropic.Anthropic(
            api_key="k", base_url="http://model", http_client=self.server.client(), max_retries=0
        )

    def message(self, body: bytes) -> dict[str, Any]:
        self.server.body = body
        with self.sdk.messages.stream(model="m", max_tokens=9, messages=_MESSAGES) as stream:
            return stream.get_final_message().to_dict()


@pytest.fixture(scope="module")
def openai_end() -> Iterator[OpenAIEnd]:
    end = OpenAIEnd()
    with end.sdk:
        yield end


@pytest.fixture(scope="module")
def anthropic_end() -> Iterator[AnthropicEnd]:
    end = AnthropicEnd()
    with end.sdk:
        yield end


# Scripts: what a model might say, in pieces.

_TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('é東🙂\n\r\u2028\0"\\'), max_size=6)
_PIECES = st.lists(_TEXT, max_size=4)
_ARGUMENTS = st.dictionaries(_TEXT, _TEXT | st.integers() | st.lists(st.booleans(), max_size=2), max_size=2)
_COUNTS = st.integers(0, 10_000)
_ENDS = st.sampled_from(["\n", "\r\n"])


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[str, str, list[str]]]:
    """Tool calls: id, name, and their arguments' text in pieces."""
    made = []
    for number in range(draw(st.integers(0, 3))):
        text = json.dumps(draw(_ARGUMENTS))
        at = draw(st.integers(0, len(text)))
        made.append((f"call_{number}", draw(st.sampled_from(["search", "run"])), [text[:at], text[at:]]))
    return made


@st.composite
def chat_streams(draw: st.DrawFn) -> bytes:
    end = draw(_ENDS)
    reasoning = draw(st.sampled_from(["reasoning_content", "reasoning"]))
    bodies = []
    for index in range(draw(st.integers(1, 3))):
        chunks: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": "", "refusal": None}}]
        chunks += [{"delta": {reasoning: text}} for text in draw(_PIECES)]
        token = {"token": "t", "logprob": -1.5, "bytes": None, "top_logprobs": []}
        chunks += [
            {"delta": {"content": text}, "logprobs": {"content": [token], "refusal": None}} for text in draw(_PIECES)
        ]
        chunks += [{"delta": {"refusal": text}} for text in draw(st.just([]) | _PIECES)]
        given_calls = draw(calls())
        for number, (call_id, name, arguments) in enumerate(given_calls):
            function = {"name": name, "arguments": ""}
            begun = {"index": number, "id": call_id, "type": "function", "function": function}
            chunks.append({"delta": {"tool_calls": [begun]}})
            chunks += [
                {"delta": {"tool_calls": [{"index": number, "function": {"arguments": text}}]}} for text in arguments
            ]
        chunks.append({"delta": {}, "finish_reason": draw(st.sampled_from(["stop", "tool_calls"]))})
        bodies += [{"index": index, "finish_reason": None} | chunk for chunk in chunks]
    top = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "m", "system_fingerprint": "f"}
    usage = {"prompt_tokens": draw(_COUNTS), "completion_tokens": draw(_COUNTS), "total_tokens": draw(_COUNTS)}
    events = [event(top | {"choices": [choice]}, end=end) for choice in bodies]
    return b"".join(events) + event(top | {"choices": [], "usage": usage}, end=end) + DONE


@settings(max_examples=25, deadline=None)
@given(body=chat_streams(), cuts=cut_places())
def test_chat_completions_are_what_openais_sdk_returns(openai_end: OpenAIEnd, body: bytes, cuts: list[int]) -> None:
    theirs = openai_end.chat(body)
    seen = see("chat", body, cuts)
    assert (seen.terminal, seen.understood, seen.raw) == ("complete", True, None)
    ours = seen.response
    for key in ("id", "object", "model", "system_fingerprint"):
        assert ours[key] == theirs[key]
    assert ours["usage"].items() <= theirs["usage"].items()
    assert len(ours["choices"]) == len(theirs["choices"])
    for our_choice, their_choice in zip(ours["choices"], theirs["choices"], strict=True):
        ours_said, theirs_said = our_choice["message"], their_choice["message"]
        assert our_choice["index"] == their_choice["index"]
        assert our_choice["finish_reason"] == their_choice["finish_reason"]
        assert ours_said["role"] == theirs_said["role"]
        assert (ours_said["content"] or "") == theirs_said["content"]
        assert (ours_said["refusal"] or None) == (theirs_said["refusal"] or None)
        their_reasoning = theirs_said.get("reasoning_content", theirs_said.get("reasoning"))
        assert ours_said.get("reasoning_content") == their_reasoning
        assert _calls(ours_said) == _calls(theirs_said)
        our_tokens, their_tokens = our_choice.get("logprobs"), their_choice.get("logprobs")
        assert bool(our_tokens) == bool(their_tokens)
        if our_tokens:
            assert our_tokens["content"] == their_tokens["content"]


def _calls(said: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    return [
        (call["id"], call["type"], call["function"]["name"], call["function"]["arguments"])
        for call in said.get("tool_calls") or []
    ]


@settings(max_examples=20, deadline=None)
@given(body=chat_streams(), at=st.integers(0, 3000))
def test_a_cut_chat_holds_the_text_of_the_chunks_that_the_sdk_saw(openai_end: OpenAIEnd, body: bytes, at: int) -> None:
    body = body.replace(b"\r\n", b"\n")
    whole_events = body[: body.rfind(b"\n\n", 0, at) + 2] if b"\n\n" in body[:at] else b""
    text = ""
    for chunk in openai_end.chunks(whole_events):
        for choice in chunk["choices"]:
            text += (choice["delta"].get("content") or "") if choice["index"] == 0 else ""
    response = see("chat", whole_events).response
    assert text == ("" if response is None else response["choices"][0]["message"]["content"] or "")


@st.composite
def messages_streams(draw: st.DrawFn) -> bytes:
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for _ in range(draw(st.integers(0, 2))):
        thoughts = [{"type": "thinking_delta", "thinking": text} for text in draw(_PIECES)]
        signed = [{"type": "signature_delta", "signature": draw(st.sampled_from(["sig", "+/="]))}]
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, thoughts + signed))
    for _ in range(draw(st.integers(0, 2))):
        said = [{"type": "text_delta", "text": text} for text in draw(_PIECES)]
        source = {"type": "char_location", "cited_text": "x", "document_index": 0, "document_title": None}
        citation = source | {"start_char_index": 0, "end_char_index": 1, "file_id": None}
        cited = [{"type": "citations_delta", "citation": citation}] * draw(st.integers(0, 2))
        blocks.append(({"type": "text", "text": "", "citations": []}, said + cited))
    for call_id, name, arguments in draw(calls()):
        kind = draw(st.sampled_from(["tool_use", "server_tool_use"]))
        name = name if kind == "tool_use" else "web_search"
        pieces = [{"type": "input_json_delta", "partial_json": text} for text in ["", *arguments]]
        blocks.append(({"type": kind, "id": call_id, "name": name, "input": {}}, pieces))
    usage = {"input_tokens": draw(_COUNTS), "output_tokens": 1, "cache_read_input_tokens": draw(_COUNTS)}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    ending = {"stop_reason": draw(st.sampled_from(["end_turn", "tool_use", "stop_sequence"])), "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message | {"stop_reason": None, "stop_sequence": None, "usage": usage}}
    ]
    for index, (block, block_deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in block_deltas]
        events += [{"type": "ping"}, {"type": "content_block_stop", "index": index}]
    events.append({"type": "message_delta", "delta": ending, "usage": {"output_tokens": draw(_COUNTS)}})
    return named(*events, {"type": "message_stop"})


@settings(max_examples=25, deadline=None)
@given(body=messages_streams(), cuts=cut_places())
def test_messages_are_what_anthropics_sdk_returns(anthropic_end: AnthropicEnd, body: bytes, cuts: list[int]) -> None:
    theirs = anthropic_end.message(body)
    seen = see("messages", body, cuts)
    assert (seen.terminal, seen.understood, seen.raw) == ("complete", True, None)
    for key in ("id", "type", "role", "model", "stop_reason", "stop_sequence", "content"):
        assert seen.response[key] == theirs[key]
    assert seen.response["usage"].items() <= theirs["usage"].items()


@st.composite
def responses_events(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The events of a response with reasoning, a message and function calls, up to the final one."""
    events: list[dict[str, Any]] = []
    output: list[dict[str, Any]] = []

    def add(item: dict[str, Any], changes: list[dict[str, Any]], done: dict[str, Any]) -> None:
        index = len(output)
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        events.extend({"item_id": item["id"], "output_index": index, "content_index": 0} | change for change in changes)
        events.append({"type": "response.output_item.done", "output_index": index, "item": item | done})
        output.append(item | done)

    thoughts = draw(_PIECES)
    if thoughts:
        part = {"type": "summary_text", "text": ""}
        changes = [{"type": "response.reasoning_summary_part.added", "summary_index": 0, "part": part}]
        changes += [
            {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": text} for text in thoughts
        ]
        summary = [{"type": "summary_text", "text": "".join(thoughts)}]
        add({"type": "reasoning", "id": "rs_1", "summary": []}, changes, {"summary": summary})
    said = draw(_PIECES)
    text_part = {"type": "output_text", "text": "", "annotations": []}
    changes = [{"type": "response.content_part.added", "part": text_part}]
    changes += [{"type": "response.output_text.delta", "delta": text, "logprobs": []} for text in said]
    changes.append({"type": "response.output_text.done", "text": "".join(said), "logprobs": []})
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
    add(message, changes, {"status": "completed", "content": [text_part | {"text": "".join(said)}]})
    for call_id, name, arguments in draw(calls()):
        item = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "name": name, "arguments": ""}
        changes = [{"type": "response.function_call_arguments.delta", "delta": text} for text in arguments]
        add(item | {"status": "in_progress"}, changes, {"status": "completed", "arguments": "".join(arguments)})
    counts = {"input_tokens": draw(_COUNTS), "output_tokens": draw(_COUNTS), "total_tokens": draw(_COUNTS)}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 2}}
    response = {"id": "resp_1", "object": "response", "created_at": 5, "model": "m", "tools": [], "tool_choice": "auto"}
    begun = response | {"status": "in_progress", "parallel_tool_calls": True, "output": []}
    final = begun | {"status": "completed", "output": output, "usage": counts | details}
    all_events = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        *events,
        {"type": "response.completed", "response": final},
    ]
    return [one | {"sequence_number": number} for number, one in enumerate(all_events)]


@settings(max_examples=25, deadline=None)
@given(events=responses_events(), cuts=cut_places())
def test_responses_are_what_openais_sdk_returns(
    openai_end: OpenAIEnd, events: list[dict[str, Any]], cuts: list[int]
) -> None:
    body = named(*events)
    theirs = openai_end.response(body)
    seen = see("responses", body, cuts)
    assert (seen.terminal, seen.understood, seen.raw) == ("complete", True, None)
    for key in ("id", "object", "model", "status"):
        assert seen.response[key] == theirs[key]
    assert _plain(seen.response["usage"], theirs["usage"])
    assert len(seen.response["output"]) == len(theirs["output"])
    for ours, their in zip(seen.response["output"], theirs["output"], strict=True):
        assert _plain(ours, their)


def _plain(ours: Any, theirs: Any) -> bool:
    """Whether all that is recorded is in what the SDK returned (which adds fields of its own, mostly None)."""
    if isinstance(ours, dict):
        return isinstance(theirs, dict) and all(_plain(value, theirs.get(key)) for key, value in ours.items())
    if isinstance(ours, list):
        return isinstance(theirs, list) and len(ours) == len(theirs) and all(map(_plain, ours, theirs))
    return bool(ours == theirs)


@settings(max_examples=20, deadline=None)
@given(events=responses_events(), at=st.integers(1, 40))
def test_a_cut_response_holds_the_texts_that_the_sdk_had_put_together(
    openai_end: OpenAIEnd, events: list[dict[str, Any]], at: int
) -> None:
    passed = events[: min(at, len(events) - 1)]
    body = named(*passed)
    snapshots: dict[int, str] = {}
    for one in openai_end.response_events(body):
        if one.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
            snapshots[one.output_index] = one.snapshot
    seen = see("responses", body)
    assert (seen.terminal, seen.understood, seen.raw) == (None, True, None)
    for index, text in snapshots.items():
        item = seen.response["output"][index]
        assert text == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
    announced = [one for one in passed if one["type"] == "response.output_item.added"]
    assert [item["id"] for item in seen.response["output"]] == [one["item"]["id"] for one in announced]


def test_errors_that_the_sdks_raise_are_recorded_as_errors(openai_end: OpenAIEnd, anthropic_end: AnthropicEnd) -> None:
    busy = {"type": "overloaded_error", "message": "busy"}
    chat_body = event({"error": busy})
    with pytest.raises(openai.APIError, match="busy"):
        openai_end.chunks(chat_body)
    seen = see("chat", chat_body, limit=LIMIT)
    assert (seen.terminal, seen.error, seen.raw) == ("error", {"error": busy}, chat_body)

    messages_body = named({"type": "error", "error": busy})
    with pytest.raises(anthropic.APIStatusError, match="busy"):
        anthropic_end.message(messages_body)
    seen = see("messages", messages_body)
    assert (seen.terminal, seen.error, seen.raw) == ("error", {"type": "error", "error": busy}, messages_body)


@pytest.mark.parametrize(
    ("pieces", "name"),
    [
        ([{"id": "c1", "name": "go"}, {"name": "go"}], "gogo"),
        ([{"id": "c1", "name": "go"}, {"id": None, "name": "go"}, {"name": "es"}], "gogoes"),
        ([{"id": "c1", "name": ""}, {"name": "a"}, {"name": "a"}], "aa"),
    ],
)
def test_a_name_whose_pieces_are_alike_is_joined_as_the_sdk_joins_it(pieces: list[dict[str, Any]], name: str) -> None:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}

    body = b""
    for number, piece in enumerate(pieces):
        function = {"name": piece["name"], "arguments": "{}" if number == 0 else ""}
        identity = {"id": piece["id"], "type": "function"} if piece.get("id") else {}
        body += event(chunk({"tool_calls": [{"index": 0, **identity, "function": function}]}))
    body += event(chunk({}, "tool_calls")) + DONE
    theirs = OpenAIEnd().chat(body)["choices"][0]["message"]["tool_calls"][0]
    ours = see("chat", body).response["choices"][0]["message"]["tool_calls"][0]
    assert (ours["id"], ours["function"]["name"], ours["function"]["arguments"]) == ("c1", name, "{}")
    assert (theirs["id"], theirs["function"]["name"], theirs["function"]["arguments"]) == ("c1", name, "{}")
