"""Anthropic's Messages: `system` and `messages` of a request, `content` of a response."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gym_capture.reading.message import (
    Message,
    Piece,
    given_text,
    json_text,
    listed,
    media_piece,
    optional_text,
    raw_piece,
    role_of,
    text_pieces,
)

HISTORY_KEYS = frozenset({"messages", "system"})


def request_items(request: Mapping[str, Any]) -> list[Any]:
    """The items of the history, in order; the system's text stands before it as a message."""
    system = request.get("system")
    items: list[Any] = [{"role": "system", "content": system}] if system else []
    items += listed(request.get("messages"))
    return items


def message_of(item: Any) -> Message:
    """One item of `messages`, or a response. Where the cache is to be cut (`cache_control`) is no part of it."""
    if not isinstance(item, Mapping):
        return Message("unknown", (raw_piece(item),))
    content = item.get("content")
    blocks = content if isinstance(content, list) else [content]
    return Message(role_of(item, "assistant"), tuple(piece for block in blocks for piece in _block(block)))


def answer_messages(response: Mapping[str, Any]) -> list[Message]:
    """What the model answered: one message."""
    return [message_of(response)] if isinstance(response.get("content"), list) else []


def tool_names(request: Mapping[str, Any]) -> list[str]:
    """The tools that the model was offered."""
    return [
        optional_text(tool.get("name")) or optional_text(tool.get("type")) or "unnamed"
        for tool in listed(request.get("tools"))
        if isinstance(tool, Mapping)
    ]


def _block(block: Any) -> Iterator[Piece]:
    if block is None or isinstance(block, str):
        yield from text_pieces(block)
        return
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "text":
        yield from text_pieces(block.get("text"))
    elif kind == "thinking":
        yield Piece("reasoning", given_text(block.get("thinking")))
    elif kind == "redacted_thinking":
        yield media_piece("redacted thinking", block.get("data"))
    elif kind == "tool_use":
        arguments = block.get("input")
        yield Piece(
            "tool_call",
            arguments if isinstance(arguments, str) else json_text({} if arguments is None else arguments),
            optional_text(block.get("name")),
            optional_text(block.get("id")),
        )
    elif kind == "tool_result":
        yield Piece("tool_result", _flat(block.get("content")), None, optional_text(block.get("tool_use_id")))
    elif kind in ("image", "document"):
        source = block.get("source")
        held = source.get("data") or source.get("url") or source if isinstance(source, Mapping) else source
        yield media_piece(kind, held)
    else:
        yield raw_piece(block)


def _flat(content: Any) -> str:
    if not isinstance(content, list):
        return given_text(content)
    return "\n".join(piece.text for block in content for piece in _block(block))
