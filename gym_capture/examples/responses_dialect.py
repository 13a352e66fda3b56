"""Responses: what a request comes to, and an answer as a body, as a stream and as an error."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from gym_capture.examples.scripted_model import LENGTH, MODEL, Answer, Conversation, ToolCall
from gym_capture.examples.sse_text import event_bytes, pieces

_RESULT = "function_call_output"


def conversation(request: Mapping[str, Any]) -> Conversation:
    """What a request asks."""
    given = request["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
    new = len(items)
    while new and items[new - 1].get("type") == _RESULT:
        new -= 1
    said = new
    while said and items[said - 1].get("type") in ("function_call", "reasoning"):
        said -= 1
    offered = request.get("tools")
    return Conversation(
        model=request.get("model", MODEL),
        task=next((_text(each.get("content")) for each in items if each.get("role") == "user"), ""),
        results=sum(each.get("type") == _RESULT for each in items),
        tools=tuple(tool["name"] for tool in offered or ()),
        size_bytes=len(json.dumps([items, offered, request.get("instructions")])),
        known_bytes=len(json.dumps([items[:said], offered])) if said < new < len(items) else 0,
        most_tokens=request.get("max_output_tokens"),
        stream=bool(request.get("stream")),
        stream_usage=True,
    )


def body(answer: Answer) -> dict[str, Any]:
    """The whole response."""
    too_long = answer.choices[0].finish == LENGTH
    return {
        **_head(answer),
        "status": "incomplete" if too_long else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if too_long else None,
        "output": _output(answer),
        "usage": {
            "input_tokens": answer.tokens_in,
            "input_tokens_details": {"cached_tokens": answer.cached, "cache_write_tokens": 0},
            "output_tokens": answer.tokens_out,
            "output_tokens_details": {"reasoning_tokens": answer.reasoning},
            "total_tokens": answer.tokens_in + answer.tokens_out,
        },
    }


def events(answer: Answer, *, usage: bool, fails: bool = False) -> Iterator[bytes]:
    """The response as a stream. `fails`: an error event stands where it would end."""
    numbers = itertools.count()

    def event(kind: str, **fields: Any) -> bytes:
        return event_bytes({"type": kind, "sequence_number": next(numbers), **fields}, kind)

    opened = {**_head(answer), "status": "in_progress"}
    yield event("response.created", response=opened)
    yield event("response.in_progress", response=opened)
    for index, item in enumerate(_output(answer)):
        where = {"output_index": index}
        yield event("response.output_item.added", **where, item=_begun(item))
        for kind, fields in _item_events(item):
            yield event(kind, item_id=item["id"], **where, **fields)
        yield event("response.output_item.done", **where, item=item)
    if fails:
        yield event("error", code="server_error", message="the model was lost in the middle of its answer", param=None)
        return
    whole = body(answer)
    yield event(f"response.{whole['status']}", response=whole)


def error(kind: str, message: str, code: str | None = None) -> dict[str, Any]:
    """An error's body."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def request_body(task: str, history: list[tuple[tuple[ToolCall, ...], list[str]]]) -> list[dict[str, Any]]:
    """The input items of a conversation so far; see `chat_dialect.request_body`."""
    items: list[dict[str, Any]] = [{"role": "user", "content": task}]
    for calls, results in history:
        for call in calls:
            named = {"call_id": call.call_id, "name": call.name}
            items.append({"type": "function_call", **named, "arguments": call.arguments_text})
        for call, result in zip(calls, results, strict=True):
            items.append({"type": _RESULT, "call_id": call.call_id, "output": result})
    return items


def _head(answer: Answer) -> dict[str, Any]:
    return {
        "id": f"resp_{answer.name}",
        "object": "response",
        "created_at": answer.created,
        "model": answer.model,
        "status": None,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }


def _output(answer: Answer) -> list[dict[str, Any]]:
    choice, name = answer.choices[0], answer.name
    output: list[dict[str, Any]] = []
    if choice.reasoning:
        summary = [{"type": "summary_text", "text": choice.reasoning}]
        output.append({"type": "reasoning", "id": f"rs_{name}", "summary": summary})
    if choice.text:
        content = [{"type": "output_text", "text": choice.text, "annotations": []}]
        status = "incomplete" if choice.finish == LENGTH else "completed"
        item = {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": status, "content": content}
        output.append(item)
    for number, call in enumerate(choice.tool_calls):
        named = {"id": f"fc_{name}_{number}", "call_id": call.call_id, "name": call.name}
        output.append({"type": "function_call", **named, "arguments": call.arguments_text, "status": "completed"})
    return output


def _begun(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is when it is added."""
    if item["type"] == "reasoning":
        return {**item, "summary": []}
    empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
    return {**item, **empty, "status": "in_progress"}


def _item_events(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if item["type"] == "reasoning":
        for index, part in enumerate(item["summary"]):
            at = {"summary_index": index}
            yield "response.reasoning_summary_part.added", {**at, "part": {**part, "text": ""}}
            for piece in pieces(part["text"]):
                yield "response.reasoning_summary_text.delta", {**at, "delta": piece}
            yield "response.reasoning_summary_text.done", {**at, "text": part["text"]}
            yield "response.reasoning_summary_part.done", {**at, "part": part}
    elif item["type"] == "message":
        for index, part in enumerate(item["content"]):
            at = {"content_index": index}
            yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
            for piece in pieces(part["text"]):
                yield "response.output_text.delta", {**at, "delta": piece, "logprobs": []}
            yield "response.output_text.done", {**at, "text": part["text"], "logprobs": []}
            yield "response.content_part.done", {**at, "part": part}
    else:
        for piece in pieces(item["arguments"]):
            yield "response.function_call_arguments.delta", {"delta": piece}
        yield "response.function_call_arguments.done", {"name": item["name"], "arguments": item["arguments"]}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text", "")) for part in content or ())
