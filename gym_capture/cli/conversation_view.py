"""A conversation, and two of them compared, as rich renderables. Captured text is made plain before it gets here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from gym_capture.cli.overview_view import count, gaps_text, moment, span
from gym_capture.cli.tables import pairs
from gym_capture.reading.conversation import Conversation, Turn
from gym_capture.reading.difference import Difference, TurnPair
from gym_capture.reading.message import Message, Piece
from gym_capture.reading.plain_text import plain_block, plain_line

SHORT_LINES = 12
"""Lines of one piece that are shown unless all are asked for."""

ALL_LINES = 1_000_000
_ALL_CHARACTERS = 1_000_000_000
_SHORT_CHARACTERS = 400
_LABELS = {
    "reasoning": "reasons",
    "tool_call": "calls",
    "tool_result": "result",
    "media": "shows",
    "refusal": "refuses",
}
_ROLE_STYLES = {"user": "bold cyan", "assistant": "bold green", "tool": "bold magenta", "system": "bold blue"}


def conversation_view(conversation: Conversation, *, full: bool = False) -> RenderableType:
    """A rollout as a person reads it.

    Args:
        full: show every line; else a piece's first ones.
    """
    row = conversation.summary
    rows = [
        ("rollout", f"{conversation.rollout_id}, generation {conversation.generation}"),
        ("status", conversation.status),
        ("calls", f"{row.calls:,}, {count(row.failed)} of them failed"),
        ("tokens", f"in {count(row.tokens_in)} ({count(row.cached_tokens)} cached), out {count(row.tokens_out)}"),
        ("from, to", f"{moment(row.first_at)}, {moment(row.last_at)}"),
        ("models", ", ".join(plain_line(model, 100) for model in row.models) or "-"),
    ]
    if conversation.gaps:
        rows.insert(2, ("gaps", gaps_text(conversation.gaps)))
    views: list[RenderableType] = [pairs(rows)]
    for turn in conversation.turns:
        views += _turn(turn, full)
    if conversation.waiting:
        views.append(Rule(Text("not finished"), align="left", style="cyan"))
        views += [
            Text(f"claim of {moment(each.opened_at)}  {plain_line(each.model_call_id or 'without an id', 100)}")
            for each in conversation.waiting
        ]
    return Group(*views)


def _turn(turn: Turn, full: bool) -> Iterator[RenderableType]:
    yield Rule(Text(f"call {turn.call_index}"), align="left", style="red" if turn.error or turn.damaged else "dim")
    yield Text("  ".join(_facts(turn)), style="dim")
    for note in _notes(turn):
        yield Text(note, style="yellow")
    for message in turn.added:
        yield from _message(message, full)
    if turn.answer:
        yield Text("answered", style="dim")
    for message in turn.answer:
        yield from _message(message, full)


def _facts(turn: Turn) -> Iterator[str]:
    yield moment(turn.started_at)
    first = "" if turn.ttft_ms is None else f", first token after {span(turn.ttft_ms)}"
    yield f"took {span(turn.latency_ms)}{first}"
    yield f"in {count(turn.tokens_in)} ({count(turn.cached_tokens)} cached), out {count(turn.tokens_out)}"
    yield plain_line(turn.model or "-", 100)
    yield plain_line(f"{turn.status_code or '-'} {turn.error or turn.finish_reason or ''}".strip(), 100)
    if turn.verifier_invocation_id is not None:
        yield f"verifier {plain_line(turn.verifier_invocation_id, 100)}"


def _notes(turn: Turn) -> Iterator[str]:
    if turn.damaged:
        yield "DAMAGED: this call's payloads cannot be read"
    if turn.error:
        yield f"failed: {plain_line(turn.error, 100)}"
    if turn.beside:
        yield f"ran beside {_calls(turn.beside)}"
    told = {
        "extends": f"goes on from call {turn.after}",
        "repeats": f"the same history as call {turn.after}, {turn.shared} messages",
        "refers": f"refers to call {turn.after}"
        if turn.after is not None
        else "refers to a response that was not captured",
        "anew": f"goes on from no earlier call: {turn.shared} messages as in call {turn.after}, then others; whole:",
    }
    # A call that goes on from the one before it needs no words.
    if turn.history in told and not (turn.history == "extends" and turn.after == turn.call_index - 1):
        yield told[turn.history]


def _calls(indexes: Sequence[int]) -> str:
    shown = ", ".join(map(str, indexes[:8]))
    return f"call {shown}" if len(indexes) == 1 else f"calls {shown}{' …' if len(indexes) > 8 else ''}"


def _message(message: Message, full: bool) -> Iterator[RenderableType]:
    role = plain_line(message.role, 40)
    for piece in message.pieces or (Piece("text", ""),):
        label = f"{role} {_LABELS.get(piece.kind, '' if piece.kind == 'text' else piece.kind)}".strip()
        name = "" if piece.name is None else f" {plain_line(piece.name, 100)}"
        yield Text.assemble((label, _ROLE_STYLES.get(role, "bold")), name)
        if piece.text:
            text = (
                plain_block(piece.text, ALL_LINES, _ALL_CHARACTERS)
                if full
                else plain_block(piece.text, SHORT_LINES, _SHORT_CHARACTERS)
            )
            yield Padding(Text(text, style="italic" if piece.kind == "reasoning" else ""), (0, 0, 0, 2))


def difference_view(difference: Difference) -> RenderableType:
    """Two rollouts compared."""
    left, right = plain_line(difference.left), plain_line(difference.right)
    if difference.same:
        verdict = Text("same: every request and every answer", style="green")
    else:
        verdict = Text(f"differ from call {difference.parts_at} on", style="yellow")
    totals = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", left, right):
        totals.add_column(name, justify="left" if not name else "right")
    for change in difference.totals:
        totals.add_row(change.name, _value(change.left), _value(change.right))
    turns = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("call", "request", "answer"):
        turns.add_column(name, no_wrap=True)
    for name in ("in", "out", "took"):
        turns.add_column(name, justify="right", no_wrap=True)
    turns.add_column("differs in")
    for pair in difference.pairs:
        turns.add_row(*_pair_cells(pair, left, right))
    return Group(verdict, "", totals, "", turns)


def _pair_cells(pair: TurnPair, left: str, right: str) -> list[str | Text]:
    if pair.left is None or pair.right is None:
        only = left if pair.right is None else right
        return [str(pair.place), Text(f"only in {only}", style="yellow"), "", "", "", "", ""]
    changes = "; ".join(
        f"{plain_line(change.name, 60)}: {_plain(change.left)} → {_plain(change.right)}" for change in pair.changes
    )
    return [
        str(pair.place) if pair.left == pair.right == pair.place else f"{pair.left} / {pair.right}",
        _same(pair.same_request),
        _same(pair.same_answer),
        _more(pair.tokens_in),
        _more(pair.tokens_out),
        "-" if pair.latency_ms is None else ("+" if pair.latency_ms > 0 else "") + span(pair.latency_ms),
        Text(changes),
    ]


def _same(same: bool) -> Text:
    return Text("same", style="green") if same else Text("differs", style="yellow")


def _more(value: int | None) -> str:
    return "-" if value is None else f"{value:+,}"


def _plain(value: object) -> str:
    return "-" if value is None else plain_line(str(value), 80)


def _value(value: str | int | float | None) -> Text:
    if isinstance(value, float):
        return Text(span(value))
    return Text(count(value) if isinstance(value, int) else _plain(value))
