"""Chat Completions: `messages` of a request, `choices` of a response."""

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

HISTORY_KEYS = frozenset({"messages"})


def request_items(request: Mapping[str, Any]) -> list[Any]:
    """The items of the history, in order."""
    return list(listed(request.get("messages")))


def message_of(item: Any) -> Message:
    """One item of `messages`, or a choice's `message`."""
    if not isinstance(item, Mapping):
        return Message("unknown", (raw_piece(item),))
    role = role_of(item, "assistant")
    if role in ("tool", "function"):
        call_id = optional_text(item.get("tool_call_id"))
        return Message(
            "tool", (Piece("tool_result", _flat(item.get("content")), optional_text(item.get("name")), call_id),)
        )
    return Message(role, tuple(_pieces(item)))


def answer_messages(response: Mapping[str, Any]) -> list[Message]:
    """What the model answered: one message a choice."""
    found = []
    for choice in listed(response.get("choices")):
        message = choice.get("message") if isinstance(choice, Mapping) else None
        if isinstance(message, Mapping):
            found.append(message_of(message))
        elif isinstance(choice, Mapping) and isinstance(choice.get("text"), str):
            found.append(Message("assistant", text_pieces(choice["text"])))
    return found


def tool_names(request: Mapping[str, Any]) -> list[str]:
    """The tools that the model was offered."""
    names = []
    for tool in listed(request.get("tools")):
        if isinstance(tool, Mapping):
            function = tool.get("function")
            named = function if isinstance(function, Mapping) else tool
            names.append(optional_text(named.get("name")) or optional_text(tool.get("type")) or "unnamed")
    return names


def _pieces(item: Mapping[str, Any]) -> Iterator[Piece]:
    reasoning = item.get("reasoning_content") or item.get("reasoning")
    if reasoning:
        yield Piece("reasoning", given_text(reasoning))
    content = item.get("content")
    if isinstance(content, list):
        for part in content:
            yield from _part(part)
    else:
        yield from text_pieces(content)
    if optional_text(item.get("refusal")):
        yield Piece("refusal", item["refusal"])
    calls = list(listed(item.get("tool_calls")))
    if isinstance(item.get("function_call"), Mapping):
        calls.append({"function": item["function_call"]})
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield Piece(
                "tool_call",
                given_text(function.get("arguments")),
                optional_text(function.get("name")),
                optional_text(call.get("id")),
            )
        else:
            yield raw_piece(call)


def _part(part: Any) -> Iterator[Piece]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text":
        yield from text_pieces(part.get("text"))
    elif kind == "refusal":
        yield Piece("refusal", given_text(part.get("refusal")))
    elif kind in ("image_url", "input_audio", "file", "video_url", "audio_url"):
        held = part.get(kind)
        yield media_piece(kind, held.get("url", held) if isinstance(held, Mapping) else held)
    elif isinstance(part, str):
        yield from text_pieces(part)
    else:
        yield raw_piece(part)


def _flat(content: Any) -> str:
    """A tool's result as text, whether it was given as text or in parts."""
    if not isinstance(content, list):
        return given_text(content)
    return "\n".join(piece.text for part in content for piece in _part(part))
