"""What each call of a rollout added to its conversations, beyond the history that its request sends again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gym_capture.reading.history import History, HistoryReader, Place, Threads, answer_of
from gym_capture.reading.message import Message, Piece, given_text, json_text, optional_text

HIDDEN_REASONING = ("encrypted reasoning", "redacted thinking")
"""Names of the `media` pieces that are reasoning nobody can read."""


class Addition(NamedTuple):
    """What one call added.

    Fields: the `history` that its request holds (None: none that could be read), its `place` among those before it, the
    call that it goes on `after`, how many messages behind the shared ones are `echoed` (they repeat that call's
    answer), the messages that it `added` (the whole history of one that starts or begins anew; a request of no known
    shape as one raw message), and its `answer`.
    """

    history: History | None
    place: Place
    after: int | None
    echoed: int
    added: tuple[Message, ...]
    answer: tuple[Message, ...]


class Additions:
    """Goes through the calls of one rollout, and tells of each what it added to those before it."""

    def __init__(self) -> None:
        self._reader = HistoryReader()
        self._threads = Threads()
        self._answers: dict[int, tuple[Message, ...]] = {}

    def of(self, call: int, exchange: Mapping[str, Any]) -> Addition:
        """What the next call added.

        Args:
            call: what names it from now on.
            exchange: empty for one that cannot be read.
        """
        response = exchange.get("response")
        history = self._reader.read(optional_text(exchange.get("dialect")), exchange.get("request"))
        response_id = optional_text(response.get("id")) if isinstance(response, Mapping) else None
        place = self._threads.place(call, history, response_id)
        after, echoed = self._continued(place, history)
        known = place.shared + echoed if place.continuation in ("extends", "repeats") else echoed
        answer = self._answers[call] = _answer(exchange)
        return Addition(history, place, after, echoed, _added(history, known, exchange), answer)

    def _continued(self, place: Place, history: History | None) -> tuple[int | None, int]:
        """The call that a request goes on from, and how many messages behind the shared ones repeat its answer."""
        if not place.calls:
            return None, 0
        if place.continuation not in ("extends", "refers") or history is None:
            return place.calls[-1], 0
        following = history.messages[place.shared :]
        for call in reversed(place.calls):
            echoed = _echoed(following, self._answers[call])
            if echoed:
                return call, echoed
        return place.calls[-1], 0


def _echoed(messages: Sequence[Message], answer: Sequence[Message]) -> int:
    """How many messages, from the first on, say what an answer said. Reasoning may be left out when it is sent back."""
    wanted = _said(answer)
    if not wanted:
        return 0
    said: list[Piece] = []
    for count, message in enumerate(messages, 1):
        if message.role != "assistant":
            return 0
        said += _said([message])
        if len(said) >= len(wanted):
            return count if said == wanted else 0
    return 0


def _said(messages: Iterable[Message]) -> list[Piece]:
    return [
        piece
        for message in messages
        for piece in message.pieces
        if piece.kind != "reasoning" and not (piece.kind == "media" and piece.name in HIDDEN_REASONING)
    ]


def _added(history: History | None, known: int, exchange: Mapping[str, Any]) -> tuple[Message, ...]:
    if history is not None:
        return history.messages[known:]
    request = exchange.get("request")
    raw = request if request is not None else exchange.get("request_raw")
    return () if raw is None else (Message("request", (Piece("raw", given_text(raw)),)),)


def _answer(exchange: Mapping[str, Any]) -> tuple[Message, ...]:
    """What came back: the model's messages, else an error's body, else the text that was no JSON."""
    response = exchange.get("response")
    found = answer_of(optional_text(exchange.get("dialect")), response)
    error = response.get("error") if isinstance(response, Mapping) else None
    if error:
        found = [*found, Message("error", (Piece("error", error if isinstance(error, str) else json_text(error)),))]
    if found:
        return tuple(found)
    raw = response if response is not None else exchange.get("response_raw")
    return () if raw is None else (Message("response", (Piece("raw", given_text(raw)),)),)
