"""The history that each request of a rollout carries, and which earlier call it goes on from.

An agent sends the whole conversation again with every call, so what a call adds is what its request holds beyond an
earlier one. Calls of one rollout need not follow each other: sub-agents run side by side, a step is sampled twice, a
history is cut or summed up. So each request is looked up among all that came before it: it goes on from the one whose
whole history it begins with, the longest such. If there is none, it begins anew, whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from gym_capture.reading import chat_dialect, messages_dialect, responses_dialect
from gym_capture.reading.message import Message, json_text, optional_text, raw_piece

Continuation = Literal["start", "extends", "repeats", "refers", "anew", "none"]
"""How a request stands to those before it.

`start`: nothing of it was seen before. `extends`: it begins with the whole history of an earlier one. `repeats`: it is
an earlier one's history, nothing added. `refers`: it names the response that it goes on from, and holds only what is
new. `anew`: it begins like an earlier one and then differs: a history that was cut, summed up or edited, or another
branch. `none`: it has no history that could be read.
"""


class History(NamedTuple):
    """What a request holds.

    Fields: `messages` in order, the `tools` that are offered by name, `settings` (every other key of the request, as
    JSON text) and `previous`, the id of the response that it refers to.
    """

    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    settings: dict[str, str]
    previous: str | None = None


class Place(NamedTuple):
    """Where a request goes on.

    Fields: `continuation`, the earlier `calls` that it may go on from (they had the same history: samples of one step),
    or shares its beginning with, the latest last, and how many messages are `shared` with them.
    """

    continuation: Continuation
    calls: tuple[int, ...] = ()
    shared: int = 0


class _Dialect(NamedTuple):
    request_items: Callable[[Mapping[str, Any]], list[Any]]
    message_of: Callable[[Any], Message]
    answer_messages: Callable[[Mapping[str, Any]], list[Message]]
    tool_names: Callable[[Mapping[str, Any]], list[str]]
    history_keys: frozenset[str]


_DIALECTS = {
    name: _Dialect(
        module.request_items, module.message_of, module.answer_messages, module.tool_names, module.HISTORY_KEYS
    )
    for name, module in (
        ("chat", chat_dialect),
        ("responses", responses_dialect),
        ("messages", messages_dialect),
    )
}


class HistoryReader:
    """Reads requests that mostly repeat each other: a message that stands where it stood before is read once."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._messages: list[Message] = []
        self._dialect = ""

    def read(self, dialect: str | None, request: Any) -> History | None:
        """The history of one request; None where it is no object or holds none."""
        if not isinstance(request, Mapping):
            return None
        name = _dialect_of(dialect, request)
        if name is None:
            return None
        how = _DIALECTS[name]
        items = how.request_items(request)
        messages: list[Message] = []
        known = self._items if name == self._dialect else []
        for place, item in enumerate(items):
            same = place < len(known) and _alike(known[place], item)
            messages.append(self._messages[place] if same else _read(how, item))
        self._items, self._messages, self._dialect = items, messages, name
        return History(
            tuple(messages),
            tuple(how.tool_names(request)),
            {
                str(key): json_text(value)
                for key, value in request.items()
                if key not in how.history_keys and key != "tools"
            },
            optional_text(request.get("previous_response_id")) if name == "responses" else None,
        )


def answer_of(dialect: str | None, response: Any) -> list[Message]:
    """What a response says; nothing for what is no object of a known shape."""
    if not isinstance(response, Mapping):
        return []
    for key, name in (("output", "responses"), ("choices", "chat"), ("content", "messages")):
        if isinstance(response.get(key), list):
            try:
                return _DIALECTS[name].answer_messages(response)
            except RecursionError:
                return [Message("assistant", (raw_piece(response),))]
    return []


def _alike(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except RecursionError:
        return False


def _read(how: _Dialect, item: Any) -> Message:
    try:
        return how.message_of(item)
    except RecursionError:
        return Message("unknown", (raw_piece(item),))


def _dialect_of(dialect: str | None, request: Mapping[str, Any]) -> str | None:
    """The dialect that a request has the shape of: the declared one, if it fits."""
    if "input" in request and (dialect == "responses" or "messages" not in request):
        return "responses"
    if "messages" in request:
        return "messages" if dialect == "messages" else "chat"
    return "responses" if dialect == "responses" and "previous_response_id" in request else None


class Threads:
    """The histories seen so far, as a tree of messages: looking one up costs its own length, however many there are."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, Message], int] = {}
        self._ends: dict[int, list[int]] = {}
        self._passed: dict[int, int] = {}
        self._responses: dict[str, int] = {}

    def place(self, call: int, history: History | None, response_id: str | None) -> Place:
        """Look up a call's history among those before it, and keep it.

        Args:
            call: what names the call from now on.
            history: its request's.
            response_id: the id of its response, for those that refer to it.
        """
        earlier = None if history is None or history.previous is None else self._responses.get(history.previous)
        if response_id is not None:
            self._responses[response_id] = call
        if history is None or (not history.messages and history.previous is None):
            return Place("none")
        if history.previous is not None:
            return Place("refers", () if earlier is None else (earlier,))
        return self._look_up(call, history.messages)

    def _look_up(self, call: int, messages: tuple[Message, ...]) -> Place:
        node = depth = extended = extended_depth = 0
        sharing: int | None = None
        for message in messages:
            following = self._next.get((node, message))
            if following is None:
                break
            node, depth = following, depth + 1
            sharing, self._passed[node] = self._passed[node], call
            if node in self._ends:
                extended, extended_depth = node, depth
        for message in messages[depth:]:
            child = len(self._next) + 1
            self._next[node, message] = child
            self._passed[child] = call
            node = child
        earlier = tuple(self._ends.get(extended, ()))
        self._ends.setdefault(node, []).append(call)
        if earlier:
            return Place("repeats" if extended_depth == len(messages) else "extends", earlier, extended_depth)
        return Place("start") if sharing is None else Place("anew", (sharing,), depth)


__all__ = ["Continuation", "History", "HistoryReader", "Place", "Threads", "answer_of"]
