"""Responses: `instructions` and `input` of a request, `output` of a response."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gym_capture.reading.message import (
    Message,
    Piece,
    given_text,
    listed,
    media_piece,
    optional_text,
    raw_piece,
    role_of,
    text_pieces,
)

HISTORY_KEYS = frozenset({"input", "instructions", "previous_response_id"})


def request_items(request: Mapping[str, Any]) -> list[Any]:
    """The items of the history, in order; instructions stand before it as the system's message."""
    items: list[Any] = []
    instructions = request.get("instructions")
    if instructions:
        items.append({"role": "system", "content": instructions})
    given = request.get("input")
    if isinstance(given, str):
        items.append({"role": "user", "content": given})
    else:
        items += listed(given)
    return items


def message_of(item: Any) -> Message:
    """One item of `input` or `output`."""
    if not isinstance(item, Mapping):
        return Message("unknown", (raw_piece(item),))
    kind = item.get("type")
    if kind in ("function_call", "custom_tool_call"):
        arguments = item.get("arguments") if kind == "function_call" else item.get("input")
        call_id = optional_text(item.get("call_id")) or optional_text(item.get("id"))
        call = Piece("tool_call", given_text(arguments), optional_text(item.get("name")), call_id)
        return Message("assistant", (call,))
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = item.get("output")
        text = "\n".join(piece.text for part in output for piece in _part(part)) if isinstance(output, list) else output
        return Message("tool", (Piece("tool_result", given_text(text), None, optional_text(item.get("call_id"))),))
    if kind == "reasoning":
        return Message("assistant", tuple(_reasoning(item)))
    if kind in ("message", None) and ("content" in item or "role" in item):
        content = item.get("content")
        parts = content if isinstance(content, list) else [content]
        return Message(role_of(item, "user"), tuple(piece for part in parts for piece in _part(part)))
    return Message("assistant", (raw_piece(item),))


def answer_messages(response: Mapping[str, Any]) -> list[Message]:
    """What the model answered: one message an item."""
    return [message_of(_as_answered(item)) for item in listed(response.get("output"))]


def tool_names(request: Mapping[str, Any]) -> list[str]:
    """The tools that the model was offered."""
    return [
        optional_text(tool.get("name")) or optional_text(tool.get("type")) or "unnamed"
        for tool in listed(request.get("tools"))
        if isinstance(tool, Mapping)
    ]


def _as_answered(item: Any) -> Any:
    return {"role": "assistant", **item} if isinstance(item, Mapping) and item.get("type") == "message" else item


def _reasoning(item: Mapping[str, Any]) -> Iterator[Piece]:
    texts = [
        part.get("text")
        for key in ("summary", "content")
        for part in listed(item.get(key))
        if isinstance(part, Mapping)
    ]
    text = "\n".join(each for each in texts if isinstance(each, str) and each)
    if text:
        yield Piece("reasoning", text)
    elif optional_text(item.get("encrypted_content")):
        yield media_piece("encrypted reasoning", item["encrypted_content"])


def _part(part: Any) -> Iterator[Piece]:
    if part is None or isinstance(part, str):
        yield from text_pieces(part)
        return
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("input_text", "output_text", "text"):
        yield from text_pieces(part.get("text"))
    elif kind == "refusal":
        yield Piece("refusal", given_text(part.get("refusal")))
    elif kind in ("input_image", "input_file", "input_audio"):
        held = part.get("image_url") or part.get("file_data") or part.get("file_id") or part.get("input_audio") or part
        yield media_piece(kind, held)
    else:
        yield raw_piece(part)
