"""Chat completions: what a request comes to, and an answer as a body, as a stream and as an error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gym_capture.examples.scripted_model import MODEL, Answer, Choice, Conversation, ToolCall
from gym_capture.examples.sse_text import event_bytes, pieces


def conversation(request: Mapping[str, Any]) -> Conversation:
    """What a request asks."""
    messages = request["messages"]
    new = len(messages)
    while new and messages[new - 1]["role"] == "tool":
        new -= 1
    seen_before = new < len(messages) and new > 0 and messages[new - 1]["role"] == "assistant"
    options = request.get("stream_options") or {}
    return Conversation(
        model=request.get("model", MODEL),
        task=next((_text(each["content"]) for each in messages if each["role"] == "user"), ""),
        results=sum(each["role"] == "tool" for each in messages),
        tools=tuple(tool["function"]["name"] for tool in request.get("tools") or ()),
        size_bytes=len(json.dumps([messages, request.get("tools")])),
        known_bytes=len(json.dumps([messages[: new - 1], request.get("tools")])) if seen_before else 0,
        choices=request.get("n") or 1,
        most_tokens=request.get("max_completion_tokens") or request.get("max_tokens"),
        stream=bool(request.get("stream")),
        stream_usage=bool(options.get("include_usage")),
    )


def body(answer: Answer) -> dict[str, Any]:
    """The whole response."""
    return {
        **_head(answer, "chat.completion"),
        "choices": [
            {"index": index, "message": _message(choice), "finish_reason": choice.finish, "logprobs": None}
            for index, choice in enumerate(answer.choices)
        ],
        "usage": _usage(answer),
    }


def events(answer: Answer, *, usage: bool, fails: bool = False) -> Iterator[bytes]:
    """The response as a stream; the choices take turns. `fails`: an error event stands where it would end."""
    parts = [list(_deltas(choice)) for choice in answer.choices]
    for step in range(max(map(len, parts))):
        for index, deltas in enumerate(parts):
            if step < len(deltas):
                yield _chunk(answer, index, deltas[step], None)
    if fails:
        yield event_bytes(error("server_error", "the model was lost in the middle of its answer"))
        return
    for index, choice in enumerate(answer.choices):
        yield _chunk(answer, index, {}, choice.finish)
    if usage:
        yield event_bytes({**_head(answer, "chat.completion.chunk"), "choices": [], "usage": _usage(answer)})
    yield event_bytes("[DONE]")


def error(kind: str, message: str, code: str | None = None) -> dict[str, Any]:
    """An error's body."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def request_body(task: str, history: list[tuple[tuple[ToolCall, ...], list[str]]]) -> list[dict[str, Any]]:
    """The messages of a conversation so far.

    Args:
        task: what the user asked.
        history: each turn's tool calls, and their results.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    for calls, results in history:
        messages.append({"role": "assistant", "content": None, "tool_calls": [_tool_call(call) for call in calls]})
        for call, result in zip(calls, results, strict=True):
            messages.append({"role": "tool", "tool_call_id": call.call_id, "content": result})
    return messages


def _head(answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.name}", "object": kind, "created": answer.created, "model": answer.model}


def _message(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text or None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        message["tool_calls"] = [_tool_call(call) for call in choice.tool_calls]
    return message


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_text}}


def _deltas(choice: Choice) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": "" if choice.text else None}
    for piece in pieces(choice.reasoning):
        yield {"reasoning_content": piece}
    for piece in pieces(choice.text):
        yield {"content": piece}
    # Parallel calls begin together, and their arguments arrive in turns.
    for number, call in enumerate(choice.tool_calls):
        opened = {"index": number, "id": call.call_id, "type": "function"}
        yield {"tool_calls": [{**opened, "function": {"name": call.name, "arguments": ""}}]}
    waiting = [list(pieces(call.arguments_text)) for call in choice.tool_calls]
    for step in range(max(map(len, waiting), default=0)):
        for number, arguments in enumerate(waiting):
            if step < len(arguments):
                yield {"tool_calls": [{"index": number, "function": {"arguments": arguments[step]}}]}


def _chunk(answer: Answer, index: int, delta: dict[str, Any], finish: str | None) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}
    return event_bytes({**_head(answer, "chat.completion.chunk"), "choices": [choice]})


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.tokens_in,
        "completion_tokens": answer.tokens_out,
        "total_tokens": answer.tokens_in + answer.tokens_out,
        "prompt_tokens_details": {"cached_tokens": answer.cached},
        "completion_tokens_details": {"reasoning_tokens": answer.reasoning},
    }


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text", "")) for part in content or () if isinstance(part, Mapping))
