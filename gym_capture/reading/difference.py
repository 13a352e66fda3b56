"""Two rollouts side by side, turn by turn: what is the same, what differs, and where they part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from gym_capture.reading.conversation import Conversation, Turn
from gym_capture.reading.message import Message


class Change(msgspec.Struct, frozen=True):
    """One figure or word that differs. None is unknown."""

    name: str
    left: str | int | float | None
    right: str | int | float | None


class TurnPair(msgspec.Struct, frozen=True, kw_only=True):
    """The turns at one place of the two rollouts; None where one of them has ended.

    Args:
        same_request: what was added to the history, the tools and the settings are the same.
        same_answer: what was answered is the same, reasoning included.
        changes: what else differs: model, status, error, finish reason, settings by their key, tools.
        tokens_in, tokens_out, latency_ms: of the right one less the left one; None: one of them is unknown.
    """

    place: int
    left: int | None
    right: int | None
    same_request: bool
    same_answer: bool
    changes: list[Change]
    tokens_in: int | None
    tokens_out: int | None
    latency_ms: float | None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Two rollouts compared.

    Args:
        same: every turn has the same request and the same answer, and there are as many. Times do not count.
        parts_at: the first place at which they differ.
        totals: tokens, latency, calls, errors and status of both.
        pairs: place by place.
    """

    left: str
    right: str
    same: bool
    parts_at: int | None
    totals: list[Change]
    pairs: list[TurnPair]


_COMPARED = ("dialect", "model", "status_code", "error", "finish_reason", "damaged", "history")
_TOTALS = (
    "status",
    "calls",
    "failed",
    "tokens_in",
    "tokens_out",
    "tokens_reasoning",
    "cached_tokens",
    "latency_sum_ms",
    "latency_median_ms",
)


def difference_of(left: Conversation, right: Conversation) -> Difference:
    """Compare two rollouts place by place, in the order in which their calls began."""
    offers = _offers(left.turns), _offers(right.turns)
    pairs = [_pair(place, *turns, offers) for place, turns in enumerate(zip_longest(left.turns, right.turns))]
    parts = next((pair.place for pair in pairs if not (pair.same_request and pair.same_answer)), None)
    return Difference(
        left=left.rollout_id,
        right=right.rollout_id,
        same=parts is None,
        parts_at=parts,
        totals=[Change(name, getattr(left.summary, name), getattr(right.summary, name)) for name in _TOTALS],
        pairs=pairs,
    )


class _Offer(NamedTuple):
    """What a request holds besides its history, whether it says so or goes on with what an earlier one said."""

    settings: Mapping[str, str]
    tools: tuple[str, ...]


_Offers = Mapping[int, _Offer]


def _offers(turns: Sequence[Turn]) -> _Offers:
    found: dict[int, _Offer] = {}
    for turn in turns:
        earlier = found.get(-1 if turn.after is None else turn.after, _Offer({}, ()))
        found[turn.call_index] = _Offer(
            earlier.settings if turn.settings is None else turn.settings,
            earlier.tools if turn.tools is None else turn.tools,
        )
    return found


def _pair(place: int, left: Turn | None, right: Turn | None, offers: tuple[_Offers, _Offers]) -> TurnPair:
    if left is None or right is None:
        return TurnPair(
            place=place,
            left=None if left is None else left.call_index,
            right=None if right is None else right.call_index,
            same_request=False,
            same_answer=False,
            changes=[],
            tokens_in=None,
            tokens_out=None,
            latency_ms=None,
        )
    changes = [
        Change(name, getattr(left, name), getattr(right, name))
        for name in _COMPARED
        if getattr(left, name) != getattr(right, name)
    ]
    one, other = offers[0][left.call_index], offers[1][right.call_index]
    settings = _settings(one.settings, other.settings)
    if one.tools != other.tools:
        settings.append(Change("tools", ", ".join(one.tools), ", ".join(other.tools)))
    # A damaged turn says nothing, and nothing is not the same as nothing.
    readable = not left.damaged and not right.damaged
    return TurnPair(
        place=place,
        left=left.call_index,
        right=right.call_index,
        same_request=readable and not settings and _same(left.added, right.added) and left.history == right.history,
        same_answer=readable and _same(left.answer, right.answer) and left.error == right.error,
        changes=changes + settings,
        tokens_in=_less(left.tokens_in, right.tokens_in),
        tokens_out=_less(left.tokens_out, right.tokens_out),
        latency_ms=None if left.latency_ms is None or right.latency_ms is None else right.latency_ms - left.latency_ms,
    )


def _settings(left: Mapping[str, str], right: Mapping[str, str]) -> list[Change]:
    return [
        Change(key, left.get(key), right.get(key)) for key in sorted({*left, *right}) if left.get(key) != right.get(key)
    ]


def _same(left: Sequence[Message], right: Sequence[Message]) -> bool:
    """Whether messages say the same. The ids that servers make up for tool calls differ with every run."""
    return _nameless(left) == _nameless(right)


def _nameless(messages: Sequence[Message]) -> list[tuple[str, list[tuple[str, str, str | None, int | None]]]]:
    numbers: dict[str, int] = {}
    return [
        (
            message.role,
            [
                (
                    piece.kind,
                    piece.text,
                    piece.name,
                    None if piece.call_id is None else numbers.setdefault(piece.call_id, len(numbers)),
                )
                for piece in message.pieces
            ],
        )
        for message in messages
    ]


def _less(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else right - left


__all__ = ["Change", "Difference", "TurnPair", "difference_of"]
