"""Chat Completions: the chunks of a stream, put together to the completion that would have come in one piece."""

from __future__ import annotations

from typing import Any

from gym_capture.recording.fragments import OBJECT_BYTES, Fragments, Growth

_NOT_OF_THE_COMPLETION = frozenset({"choices", "object", "created", "obfuscation"})
"""Keys of a chunk that the completion does not take over as they are."""


class _ToolCall:
    """One tool call, with the id that it was last given."""

    __slots__ = ("call_id", "fields", "index")

    def __init__(self, index: int, growth: Growth) -> None:
        self.index = index
        self.call_id: str | None = None
        self.fields = Fragments(growth)

    def merge(self, piece: dict[str, Any]) -> None:
        call_id = piece.get("id")
        again = self.call_id is not None and call_id == self.call_id
        if type(call_id) is str and call_id:
            self.call_id = call_id
        for key, value in piece.items():
            if key == "function" and again and type(value) is dict:
                value = self._unrepeated(value)
            if key != "index":
                self.fields.add(key, value)

    def _unrepeated(self, function: dict[str, Any]) -> dict[str, Any]:
        """Some servers repeat the head of a call, its id and its name, with every piece; a name alone is a piece."""
        held = self.fields.object("function")
        name = function.get("name")
        if held is None or type(name) is not str or not held.is_text("name", name):
            return function
        return {key: value for key, value in function.items() if key != "name"}


class _ToolCalls:
    """The tool calls of one choice, by their index; some servers send none, or the same for all."""

    def __init__(self, growth: Growth) -> None:
        self._growth = growth
        self._calls: list[_ToolCall] = []
        self._by_index: dict[int, _ToolCall] = {}
        self._index_of_id: dict[str, int] = {}
        self._next_index = 0

    def merge(self, pieces: list[Any]) -> None:
        for position, piece in enumerate(pieces):
            if type(piece) is not dict:
                self._growth.odd = True
                continue
            call = self._call_of(piece, position)
            if call is None:
                continue
            call.merge(piece)
            if call.call_id is not None:
                self._index_of_id.setdefault(call.call_id, call.index)

    def value(self) -> list[dict[str, Any]]:
        return [call.fields.value() for call in sorted(self._calls, key=lambda call: call.index)]

    def _call_of(self, piece: dict[str, Any], position: int) -> _ToolCall | None:
        index = piece.get("index")
        call_id = piece.get("id")
        if type(index) is not int:
            index = self._index_without(call_id, position)
        call = self._by_index.get(index)
        if call is None or (_begins_a_call(piece) and call.call_id not in (None, call_id)):
            if not self._growth.spend(2 * OBJECT_BYTES):
                return None
            call = self._by_index[index] = _ToolCall(index, self._growth)
            self._calls.append(call)
            self._next_index = max(self._next_index, index + 1)
        return call

    def _index_without(self, call_id: Any, position: int) -> int:
        if not self._calls:
            return position
        if not isinstance(call_id, str) or not call_id:
            return self._calls[-1].index
        return self._index_of_id.get(call_id, self._next_index)


def _begins_a_call(piece: dict[str, Any]) -> bool:
    function = piece.get("function")
    return bool(piece.get("id")) and type(function) is dict and bool(function.get("name"))


class _Choice:
    """One choice: its message from the deltas, and what stands beside it."""

    def __init__(self, index: int, growth: Growth) -> None:
        self._index = index
        self._growth = growth
        self._message = Fragments(growth)
        self._beside = Fragments(growth, joins=False)
        self._tool_calls: _ToolCalls | None = None

    def take(self, choice: dict[str, Any]) -> None:
        for key, value in choice.items():
            if key == "delta" or (key == "message" and "delta" not in choice):
                if type(value) is dict:
                    self._take_delta(value)
                elif value is not None:
                    self._growth.odd = True
            elif key != "index":
                self._beside.add(key, value)

    def _take_delta(self, delta: dict[str, Any]) -> None:
        message = self._message
        for key, value in delta.items():
            if key == "tool_calls" and type(value) is list:
                if self._tool_calls is None:
                    self._tool_calls = _ToolCalls(self._growth)
                self._tool_calls.merge(value)
            else:
                message.add(key, value)

    def value(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None} | self._message.value()
        if message["content"] == "":
            message["content"] = None
        reasoning = message.pop("reasoning", None)
        if reasoning is not None:
            if message.get("reasoning_content") in (None, "", reasoning):
                message["reasoning_content"] = reasoning
            else:
                message["reasoning"] = reasoning
        if self._tool_calls is not None:
            calls = self._tool_calls.value()
            if calls:
                message["tool_calls"] = calls
        return {"index": self._index, "message": message, "finish_reason": None} | self._beside.value()


class ChatStream:
    """The chunks so far.

    The completion has the id, model and whatever else the chunks say last (usage, fingerprints), the `created` of the
    chunks left out; a choice for each index; text null when none was sent; reasoning under `reasoning_content`, however
    the server calls it (under both names only when it says different things under them); tool calls in the order of
    their index, without it. `[DONE]` ends the stream well; an `error` in a chunk, or an event of
    that name, badly.
    """

    closing_data: bytes | None = b"[DONE]"
    loose = False

    def __init__(self, growth: Growth) -> None:
        self.terminal: str | None = None
        self.error: Any = None
        self.first_token_seen = False
        self._growth = growth
        self._top = Fragments(growth, joins=False)
        self._choices: dict[int, _Choice] = {}
        self._begun = False

    def take(self, payload: dict[str, Any], name: bytes) -> bool:
        choices = payload.get("choices")
        kind = payload.get("object")
        failed = bool(payload.get("error")) or name == b"error" or kind == "error"
        understood = failed
        if type(choices) is list or kind == "chat.completion.chunk" or payload.get("usage"):
            understood = self._take_chunk(payload, choices)
        if failed:
            self.terminal = "error"
            self.error = payload
        return understood

    def take_closing(self) -> None:
        self.terminal = "complete"

    def terminal_of(self, name: str) -> str | None:
        return "error" if name == "error" else None

    @property
    def response(self) -> dict[str, Any] | None:
        if not self._begun:
            return None
        choices = [self._choices[index].value() for index in sorted(self._choices)]
        return {"object": "chat.completion", "choices": choices} | self._top.value()

    def _take_chunk(self, chunk: dict[str, Any], choices: Any) -> bool:
        self._begun = True
        top = self._top
        for key, value in chunk.items():
            if value is not None and key not in _NOT_OF_THE_COMPLETION and key != "error":
                top.put(key, value)
        if type(choices) is not list:
            return choices is None
        understood = True
        for position, choice in enumerate(choices):
            if type(choice) is dict:
                self._take_choice(choice, position)
            else:
                understood = False
        return understood

    def _take_choice(self, choice: dict[str, Any], position: int) -> None:
        index = choice.get("index")
        if type(index) is not int:
            index = position
        held = self._choices.get(index)
        if held is None:
            if not self._growth.spend(2 * OBJECT_BYTES):
                return
            held = self._choices[index] = _Choice(index, self._growth)
        if not self.first_token_seen:
            delta = choice.get("delta")
            self.first_token_seen = type(delta) is dict and any(v for k, v in delta.items() if k != "role")
        held.take(choice)
