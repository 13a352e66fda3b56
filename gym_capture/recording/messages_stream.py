"""Anthropic Messages: the events of a stream, put together to the message that would have come in one piece."""

from __future__ import annotations

from typing import Any

from gym_capture.model.json_values import parse_standard
from gym_capture.recording.fragments import OBJECT_BYTES, Fragments, Growth, Text

_APPENDED = {"text_delta": "text", "thinking_delta": "thinking"}
_TYPE_OF = {"citations_delta": "text", "input_json_delta": "tool_use", "signature_delta": "thinking"}


class _Block:
    """One content block, from its start and its deltas."""

    def __init__(self, begun: dict[str, Any], growth: Growth) -> None:
        self._growth = growth
        self._fields = Fragments(growth)
        self._input: Text | None = None
        for key, value in begun.items():
            self._fields.put(key, value)

    def take(self, delta: dict[str, Any]) -> bool:
        kind = delta.get("type")
        if type(kind) is not str:
            return False
        field = _APPENDED.get(kind)
        if field is not None:
            return self._append(field, delta.get(field))
        if kind == "input_json_delta":
            return self._take_input(delta.get("partial_json"))
        if kind == "citations_delta":
            self._fields.extend("citations", [delta.get("citation")])
        elif kind == "signature_delta":
            if "signature" in self._fields:
                self._fields.put("signature", delta.get("signature"))
        else:
            for key, value in delta.items():
                if key != "type":
                    self._fields.add(key, value)
        return True

    def _append(self, field: str, piece: Any) -> bool:
        if type(piece) is not str:
            return False
        self._fields.append_text(field, piece)
        return True

    def _take_input(self, piece: Any) -> bool:
        if type(piece) is not str:
            return False
        if self._input is None:
            self._input = Text()
        self._input.append(piece, self._growth)
        return True

    def value(self) -> dict[str, Any]:
        block = self._fields.value()
        text = "" if self._input is None else self._input.value()
        if text:
            block["input"] = _input(text)
        return block


def _input(text: str) -> Any:
    try:
        return parse_standard(text)
    except (ValueError, RecursionError):
        return {"_raw": text}


class MessagesStream:
    """The events so far.

    The message is that of `message_start`, its content the blocks in the order of their index, with what
    `message_delta` said of it since; token counts there replace earlier ones, null ones do not. A tool's input is the
    value of its pieces, `{"_raw": text}` when they are no JSON. A thinking block has its signature when it began with
    the field. Deltas of unknown types are merged under their own names, and the block types are taken as they come.
    """

    closing_data: bytes | None = None
    loose = False

    def __init__(self, growth: Growth) -> None:
        self.terminal: str | None = None
        self.error: Any = None
        self.first_token_seen = False
        self._growth = growth
        self._message = Fragments(growth, joins=False)
        self._usage: Fragments | None = None
        self._blocks: dict[int, _Block] = {}
        self._next_index = 0
        self._begun = False

    def take(self, payload: dict[str, Any], name: bytes) -> bool:
        kind = payload.get("type")
        if type(kind) is not str:
            kind = name.decode("utf-8", "replace")
        if kind == "content_block_delta":
            return self._take_delta(payload)
        if kind == "content_block_start":
            return self._start_block(payload)
        if kind in ("content_block_stop", "ping"):
            return True
        if kind == "message_start":
            return self._start(payload.get("message"))
        if kind == "message_delta":
            return self._take_message_delta(payload)
        if kind == "message_stop":
            self._take_beside(payload)
            self.terminal = "complete"
            return True
        if kind == "error":
            self.terminal = "error"
            self.error = payload
            return True
        return False

    def take_closing(self) -> None:
        """Nothing: `message_stop` ends the stream; some servers say `[DONE]` besides."""

    def terminal_of(self, name: str) -> str | None:
        return {"message_stop": "complete", "error": "error"}.get(name)

    @property
    def response(self) -> dict[str, Any] | None:
        if not self._begun:
            return None
        message = self._message.value()
        message["content"] = [self._blocks[index].value() for index in sorted(self._blocks)]
        if self._usage is not None:
            message["usage"] = self._usage.value()
        return message

    def _start(self, message: Any) -> bool:
        if type(message) is not dict:
            return False
        self._begun = True
        understood = True
        for key, value in message.items():
            if key == "content" and type(value) is list:
                for index, block in enumerate(value):
                    understood = self._put_block(index, block) and understood
            elif key == "usage" and type(value) is dict:
                self._take_usage(value)
            elif key != "content" or value is not None:
                self._message.put(key, value)
        return understood

    def _start_block(self, payload: dict[str, Any]) -> bool:
        index = payload.get("index")
        block = payload.get("content_block")
        if type(index) is not int:
            index = self._next_index
        if type(block) is dict and not self.first_token_seen:
            self.first_token_seen = True
        understood = self._begun
        return self._put_block(index, block) and understood

    def _put_block(self, index: int, block: Any) -> bool:
        if type(block) is not dict:
            return False
        self._begun = True
        if self._growth.spend(2 * OBJECT_BYTES):
            self._blocks[index] = _Block(block, self._growth)
            self._next_index = max(self._next_index, index + 1)
        return True

    def _take_delta(self, payload: dict[str, Any]) -> bool:
        index = payload.get("index")
        delta = payload.get("delta")
        if type(index) is not int or type(delta) is not dict:
            return False
        block = self._blocks.get(index)
        if block is not None:
            self.first_token_seen = True
            return block.take(delta)
        kind = delta.get("type")
        if type(kind) is not str or not self._put_block(
            index, {"type": _TYPE_OF.get(kind, kind.removesuffix("_delta"))}
        ):
            return False
        block = self._blocks.get(index)
        if block is not None:
            block.take(delta)
        return False  # its start is missing

    def _take_message_delta(self, payload: dict[str, Any]) -> bool:
        delta = payload.get("delta")
        if type(delta) is dict:
            self._begun_with(delta)
        usage = payload.get("usage")
        if type(usage) is dict:
            self._begun = True
            self._take_usage(usage)
        self._take_beside(payload)
        return delta is None or type(delta) is dict

    def _begun_with(self, delta: dict[str, Any]) -> None:
        self._begun = True
        for key, value in delta.items():
            if key != "content" and key != "usage":
                self._message.put(key, value)

    def _take_beside(self, payload: dict[str, Any]) -> None:
        """What a newer protocol says of the message beside its delta (`context_management`, a gateway's metrics)."""
        for key, value in payload.items():
            if key not in ("type", "delta", "usage", "content", "index") and value is not None:
                self._begun = True
                self._message.put(key, value)

    def _take_usage(self, usage: dict[str, Any]) -> None:
        if self._usage is None:
            self._usage = Fragments(self._growth, joins=False)
        for key, value in usage.items():
            if value is not None or key not in self._usage:
                self._usage.put(key, value)
