"""Messages: what a request comes to, and an answer as a body, as a stream and as an error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gym_capture.examples.scripted_model import LENGTH, MODEL, STOP, TOOL_CALLS, Answer, Conversation, ToolCall
from gym_capture.examples.sse_text import event_bytes, pieces

_STOP_REASONS = {STOP: "end_turn", TOOL_CALLS: "tool_use", LENGTH: "max_tokens"}
_SIGNATURE = "c2NyaXB0ZWQ="


def conversation(request: Mapping[str, Any]) -> Conversation:
    """What a request asks."""
    messages = request["messages"]
    results = [part for each in messages for part in _parts(each["content"]) if part.get("type") == "tool_result"]
    seen_before = len(messages) >= 3 and messages[-2]["role"] == "assistant"
    return Conversation(
        model=request.get("model", MODEL),
        task=next((_parts(each["content"])[0].get("text", "") for each in messages if each["role"] == "user"), ""),
        results=len(results),
        tools=tuple(tool["name"] for tool in request.get("tools") or ()),
        size_bytes=len(json.dumps([messages, request.get("tools"), request.get("system")])),
        known_bytes=len(json.dumps([messages[:-2], request.get("tools")])) if seen_before else 0,
        most_tokens=request.get("max_tokens"),
        stream=bool(request.get("stream")),
        stream_usage=True,
    )


def body(answer: Answer) -> dict[str, Any]:
    """The whole response."""
    choice = answer.choices[0]
    return {
        **_head(answer),
        "content": _content(answer),
        "stop_reason": _STOP_REASONS[choice.finish],
        "usage": {**_usage_in(answer), "output_tokens": answer.tokens_out},
    }


def events(answer: Answer, *, usage: bool, fails: bool = False) -> Iterator[bytes]:
    """The response as a stream. `fails`: an error event stands where it would end."""
    opened = {**_head(answer), "usage": {**_usage_in(answer), "output_tokens": 1}}
    yield _event("message_start", message=opened)
    yield _event("ping")
    for index, block in enumerate(_content(answer)):
        empty, deltas = _streamed(block)
        yield _event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    if fails:
        yield event_bytes(error("overloaded_error", "the model was lost in the middle of its answer"), "error")
        return
    stop = {"stop_reason": _STOP_REASONS[answer.choices[0].finish], "stop_sequence": None}
    yield _event("message_delta", delta=stop, usage={"output_tokens": answer.tokens_out})
    yield _event("message_stop")


def error(kind: str, message: str, code: str | None = None) -> dict[str, Any]:
    """An error's body."""
    named = {"server_error": "api_error"}.get(kind, kind)
    return {"type": "error", "error": {"type": named, "message": message, **({"code": code} if code else {})}}


def request_body(task: str, history: list[tuple[tuple[ToolCall, ...], list[str]]]) -> list[dict[str, Any]]:
    """The messages of a conversation so far; see `chat_dialect.request_body`."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    for calls, results in history:
        uses = [{"type": "tool_use", "id": call.call_id, "name": call.name, "input": call.arguments} for call in calls]
        told = [
            {"type": "tool_result", "tool_use_id": call.call_id, "content": result}
            for call, result in zip(calls, results, strict=True)
        ]
        messages += [{"role": "assistant", "content": uses}, {"role": "user", "content": told}]
    return messages


def _head(answer: Answer) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.name}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _content(answer: Answer) -> list[dict[str, Any]]:
    choice = answer.choices[0]
    content: list[dict[str, Any]] = []
    if choice.reasoning:
        content.append({"type": "thinking", "thinking": choice.reasoning, "signature": _SIGNATURE})
    if choice.text:
        content.append({"type": "text", "text": choice.text})
    for call in choice.tool_calls:
        content.append({"type": "tool_use", "id": call.call_id, "name": call.name, "input": call.arguments})
    return content


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and what is added to it."""
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        signature = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [*deltas, signature]
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    arguments = pieces(json.dumps(block["input"]))
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in arguments]


def _event(kind: str, **fields: Any) -> bytes:
    return event_bytes({"type": kind, **fields}, kind)


def _usage_in(answer: Answer) -> dict[str, Any]:
    return {
        # This dialect's input_tokens leave the cached ones out.
        "input_tokens": answer.tokens_in - answer.cached,
        "cache_read_input_tokens": answer.cached,
        "cache_creation_input_tokens": 0,
    }


def _parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
