"""A message of a conversation in one shape, whichever dialect it came in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

PieceKind = Literal["text", "reasoning", "tool_call", "tool_result", "media", "refusal", "error", "raw"]


class Piece(msgspec.Struct, frozen=True):
    """One piece of a message. All text is as it was captured; `plain_text` makes it safe to show.

    Args:
        kind: `media` is an image, audio or a file, told and not shown; `raw` is what no other kind fits, as JSON text.
        text: a tool call's is its arguments, as the text that was sent.
        name: the tool that is called, or the type of what is `media` or `raw`.
        call_id: what ties a tool's call and its result.
    """

    kind: PieceKind
    text: str
    name: str | None = None
    call_id: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One message: who speaks, and what. Equal messages are equal, so histories can be compared."""

    role: str
    pieces: tuple[Piece, ...]


def json_text(value: Any) -> str:
    """A JSON value as text in one line; what JSON refuses (NaN) as Python's `json` writes it."""
    try:
        return json.dumps(value, ensure_ascii=False, default=repr, separators=(", ", ": "))
    except (RecursionError, ValueError) as error:
        return f"(cannot be written as JSON: {error})"


def given_text(value: Any) -> str:
    """Text as it is, any other value as JSON text; None as no text."""
    return value if isinstance(value, str) else "" if value is None else json_text(value)


def optional_text(value: Any) -> str | None:
    """Text that is not empty; anything else is None."""
    return value if isinstance(value, str) and value else None


def role_of(item: Mapping[str, Any], default: str) -> str:
    """A message's role, `default` where it names none."""
    return optional_text(item.get("role")) or default


def listed(value: Any) -> Iterator[Any]:
    """What a list holds; nothing for anything else."""
    return iter(value if isinstance(value, list) else ())


def raw_piece(value: Any) -> Piece:
    """A value of no known shape."""
    kind = optional_text(value.get("type")) if isinstance(value, Mapping) else None
    return Piece("raw", given_text(value), kind)


def media_piece(kind: str, value: Any) -> Piece:
    """An image, audio or file, by its size and the digest of its content: two of them are equal when they are alike."""
    text = given_text(value)
    if len(text) <= 200 and not text.startswith("data:"):
        return Piece("media", text, kind)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    beginning = text.partition(",")[0][:40] if text.startswith("data:") else ""
    return Piece("media", f"{beginning + ' ' if beginning else ''}{len(text):,} characters, sha256 {digest}", kind)


def text_pieces(value: Any) -> tuple[Piece, ...]:
    """One text piece, none for an empty text."""
    text = given_text(value)
    return (Piece("text", text),) if text else ()


__all__ = [
    "Message",
    "Piece",
    "PieceKind",
    "given_text",
    "json_text",
    "listed",
    "media_piece",
    "optional_text",
    "raw_piece",
    "role_of",
    "text_pieces",
]
