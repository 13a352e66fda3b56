"""Messages as `reading` gives them, as rows of the table of messages: flat text in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gym_capture.model.json_values import clean_text
from gym_capture.reading.additions import HIDDEN_REASONING, Additions
from gym_capture.reading.message import Message, Piece

Row = dict[str, Any]


class MessageRows:
    """Goes through the calls of one rollout; a message that stood at its place in an earlier call is no row again."""

    def __init__(self) -> None:
        self._additions = Additions()

    def of(self, call_index: int, exchange: Mapping[str, Any]) -> Iterator[Row]:
        """The rows that the next call brings: what its request added, then its answer."""
        addition = self._additions.of(call_index, exchange)
        place = addition.place
        added: Sequence[Message] = addition.added
        position = 0
        if addition.history is not None:
            history = addition.history.messages
            known = max(place.seen, place.shared + addition.echoed)
            position, added = sum(map(_row_count, history[:known])), history[known:]
        for source, messages in (("request", added), ("response", addition.answer)):
            for row in _rows(messages):
                yield {"position": position, "source": source, **row}
                position += 1


def _row_count(message: Message) -> int:
    results = sum(piece.kind == "tool_result" for piece in message.pieces)
    return results + (len(message.pieces) > results or not results)


def _rows(messages: Iterable[Message]) -> Iterator[Row]:
    """A row a message; a tool's result is a row of its own, also where one message brings several."""
    for message in messages:
        results = [piece for piece in message.pieces if piece.kind == "tool_result"]
        for piece in results:
            yield _row("tool", [], piece.text, piece.call_id)
        others = [piece for piece in message.pieces if piece.kind != "tool_result"]
        if others or not results:
            yield _row(message.role, others, _joined(others, _content), None)


def _row(role: str, pieces: Sequence[Piece], content: str | None, tool_call_id: str | None) -> Row:
    return {
        "role": clean_text(role),
        "content": _clean(content),
        "reasoning": _joined(pieces, lambda piece: piece.text if piece.kind == "reasoning" else None),
        "tool_calls": [
            {"call_id": _clean(piece.call_id), "name": _clean(piece.name), "arguments": clean_text(piece.text)}
            for piece in pieces
            if piece.kind == "tool_call"
        ],
        "tool_call_id": _clean(tool_call_id),
    }


def _content(piece: Piece) -> str | None:
    if piece.kind in ("reasoning", "tool_call") or piece.name in HIDDEN_REASONING:
        return None
    return f"[{piece.name}]" if piece.kind == "media" else piece.text


def _joined(pieces: Iterable[Piece], text_of: Callable[[Piece], str | None]) -> str | None:
    texts = [text for piece in pieces if (text := text_of(piece)) is not None]
    return clean_text("\n".join(texts)) if texts else None


def _clean(text: str | None) -> str | None:
    return None if text is None else clean_text(text)


__all__ = ["MessageRows"]
