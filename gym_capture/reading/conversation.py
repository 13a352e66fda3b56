"""A rollout as a person reads it: what each call added to the history, what was answered, how long it took, what is
missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gym_capture.model.gaps import Gap
from gym_capture.reading.call_figures import CallFigures, call_figures
from gym_capture.reading.history import Continuation, History, HistoryReader, Place, Threads, answer_of
from gym_capture.reading.message import Message, Piece, given_text, json_text, optional_text
from gym_capture.reading.rollout_status import Status
from gym_capture.reading.rollout_tally import RolloutRow, RolloutTally
from gym_capture.storage.store import CaptureStore


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One call. None is unknown, never 0.

    Args:
        call_index: durable append order; not the order in time of calls that ran side by side.
        damaged: its payloads cannot be read; what its record says is still there where that could be read.
        history: how its request stands to those before it.
        after: the call that it goes on from (`anew`: whose beginning it shares).
        shared: messages of its history that it shares with that call; those that are not in `added`, unless `anew`.
        echoed: messages behind the shared ones that repeat that call's answer; they are not in `added` either.
        added: what it adds to the history; the whole history of one that starts or begins anew.
        tools: the tools it offers; None: those of the call it goes on from.
        settings: the request's other keys as JSON text; None: those of the call it goes on from.
        answer: what the model said, a message a choice or item.
        beside: the calls that ran at the same time.
        latency_ms, ttft_ms: milliseconds.
    """

    call_index: int
    damaged: bool = False
    model_call_id: str | None = None
    dialect: str | None = None
    model: str | None = None
    started_at: float | None = None
    completed_at: float | None = None
    latency_ms: float | None = None
    ttft_ms: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_reasoning: int | None = None
    cached_tokens: int | None = None
    status_code: int | None = None
    error: str | None = None
    finish_reason: str | None = None
    verifier_invocation_id: str | None = None
    history: Continuation = "none"
    after: int | None = None
    shared: int = 0
    echoed: int = 0
    added: tuple[Message, ...] = ()
    tools: tuple[str, ...] | None = None
    settings: dict[str, str] | None = None
    answer: tuple[Message, ...] = ()
    beside: tuple[int, ...] = ()


class WaitingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that is open: a call that may be under way. `opened_at` is the owner's time, UTC Unix seconds."""

    model_call_id: str
    opened_at: float


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of one rollout.

    Args:
        summary: its row of an overview, gaps included.
        turns: in the order in which the calls began, where all say so, else in call order. Of a call whose place is
            known and whose bytes are lost there is a damaged turn.
        waiting: open claims, the oldest first.
    """

    rollout_id: str
    generation: int
    status: Status
    gaps: list[Gap]
    summary: RolloutRow
    turns: list[Turn]
    waiting: list[WaitingCall]


def read_conversation(store: CaptureStore, rollout_id: str) -> Conversation:
    """Read one rollout. One that is nowhere has no turns and is unobserved.

    Raises:
        InvalidRolloutId: it is no rollout id.
        OSError: a file could not be read.
    """
    standing = store.standing(rollout_id)
    figures = {call.call_index: call for call in call_figures(store, rollout_id)}
    exchanges, damaged = store.read_indexed(rollout_id)
    tally = RolloutTally(standing.generation)
    tally.add(figures.values())
    summary = tally.row(standing)
    readable = {index for index, _ in exchanges}
    lost = [index for index in range(len(exchanges) + damaged) if index not in readable]
    return Conversation(
        rollout_id=rollout_id,
        generation=standing.generation,
        status=summary.status,
        gaps=summary.gaps,
        summary=summary,
        turns=turns_of(exchanges, figures, lost),
        waiting=[
            WaitingCall(model_call_id=claim.model_call_id, opened_at=claim.opened_at)
            for claim in store.open_claims(rollout_id)
        ],
    )


def turns_of(
    exchanges: Iterable[tuple[int, Mapping[str, Any]]],
    figures: Mapping[int, CallFigures],
    damaged: Iterable[int] = (),
) -> list[Turn]:
    """The turns of a rollout's exchanges.

    Args:
        exchanges: with their call index.
        figures: by call index; one that is missing is unknown.
        damaged: call indexes without an exchange.
    """
    payloads: dict[int, Mapping[str, Any]] = {index: {} for index in damaged}
    lost = frozenset(payloads)
    payloads.update(exchanges)
    order = in_time([figures.get(index) or CallFigures(call_index=index) for index in sorted(payloads)])
    beside = overlapping(order)
    reader, threads = HistoryReader(), Threads()
    histories: dict[int, History | None] = {}
    turns: dict[int, Turn] = {}
    for call in order:
        index = call.call_index
        exchange = payloads[index]
        request, response = exchange.get("request"), exchange.get("response")
        history = histories[index] = reader.read(optional_text(exchange.get("dialect")), request)
        response_id = optional_text(response.get("id")) if isinstance(response, Mapping) else None
        place = threads.place(index, history, response_id)
        after, echoed = _continued(place, history, turns)
        known = place.shared + echoed if place.continuation in ("extends", "repeats") else echoed
        # A call that goes on from another is told without what both have.
        former = histories.get(after) if after is not None and place.continuation != "anew" else None
        turns[index] = Turn(
            call_index=index,
            damaged=index in lost,
            model_call_id=call.model_call_id or optional_text(exchange.get("model_call_id")),
            dialect=call.dialect,
            model=call.model,
            started_at=call.begin,
            completed_at=call.completed_at,
            latency_ms=call.duration_ms,
            ttft_ms=call.latency_ttft_ms,
            tokens_in=call.tokens_in,
            tokens_out=call.tokens_out,
            tokens_reasoning=call.tokens_reasoning,
            cached_tokens=call.cached_tokens,
            status_code=call.status_code,
            error=call.error,
            finish_reason=call.finish_reason,
            verifier_invocation_id=call.verifier_invocation_id,
            history=place.continuation,
            after=after,
            shared=place.shared,
            echoed=echoed,
            added=_added(history, known, exchange),
            tools=None if history is None or (former and former.tools == history.tools) else history.tools,
            settings=None if history is None or (former and former.settings == history.settings) else history.settings,
            answer=_answer(exchange),
            beside=beside.get(index, ()),
        )
    return list(turns.values())


def in_time(calls: Sequence[CallFigures]) -> list[CallFigures]:
    """Calls in the order in which they began, if all say when; else as they came."""
    begins = [call.begin for call in calls if not call.damaged]
    if None in begins:
        return list(calls)
    last = 0.0
    keyed = []
    for call in calls:
        # One that is damaged stays behind the call before it.
        last = last if call.begin is None else call.begin
        keyed.append((last, call))
    return [call for _, call in sorted(keyed, key=lambda pair: pair[0])]


def overlapping(calls: Iterable[CallFigures]) -> dict[int, tuple[int, ...]]:
    """The calls that ran beside each call, as far as their times are known. Those that just touch did not."""
    spans = sorted(
        (call.begin, call.begin + call.duration_ms / 1000, call.call_index)
        for call in calls
        if call.begin is not None and call.duration_ms is not None
    )
    found: dict[int, list[int]] = {}
    running: list[tuple[float, int]] = []
    for begin, end, index in spans:
        # Clocks are read one after the other, so an overlap of a millisecond is none.
        running = [each for each in running if each[0] > begin + 0.001]
        for _, other in running:
            found.setdefault(other, []).append(index)
            found.setdefault(index, []).append(other)
        running.append((end, index))
    return {index: tuple(sorted(others)) for index, others in found.items()}


def _continued(place: Place, history: History | None, turns: Mapping[int, Turn]) -> tuple[int | None, int]:
    """The call that a request goes on from, and how many messages behind the shared ones repeat its answer."""
    if not place.calls:
        return None, 0
    if place.continuation not in ("extends", "refers") or history is None:
        return place.calls[-1], 0
    following = history.messages[place.shared :]
    for call in reversed(place.calls):
        echoed = _echoed(following, turns[call].answer)
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
        if piece.kind != "reasoning" and not (piece.kind == "media" and piece.name in _HIDDEN_REASONING)
    ]


_HIDDEN_REASONING = ("encrypted reasoning", "redacted thinking")


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


__all__ = ["Conversation", "Turn", "WaitingCall", "in_time", "overlapping", "read_conversation", "turns_of"]
