"""Responses: the response that a stream's last full one is, or what passed of it when the stream was cut."""

from __future__ import annotations

from typing import Any

from gym_capture.recording.fragments import OBJECT_BYTES, Fragments, Growth, size_of

_FINAL = {"response.completed": "complete", "response.incomplete": "incomplete", "response.failed": "error"}
_IN_PARTS = {
    # The field of the item that holds the parts, the key that numbers them, the part's type, its text's key.
    "response.output_text": ("content", "content_index", "output_text", "text"),
    "response.refusal": ("content", "content_index", "refusal", "refusal"),
    "response.reasoning_text": ("content", "content_index", "reasoning_text", "text"),
    "response.reasoning_summary_text": ("summary", "summary_index", "summary_text", "text"),
}
_IN_ITEM = {
    "response.function_call_arguments": "arguments",
    "response.mcp_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
    "response.code_interpreter_call_code": "code",
}
_PARTS = {
    "response.content_part": ("content", "content_index"),
    "response.reasoning_summary_part": ("summary", "summary_index"),
}


class _Item:
    """One output item while it is being generated."""

    def __init__(self, item: dict[str, Any], growth: Growth) -> None:
        self.done = False
        self._growth = growth
        self._fields = Fragments(growth)
        self._parts: dict[str, dict[int, Fragments]] = {}
        for key, value in item.items():
            if key in ("content", "summary") and type(value) is list:
                for index, part in enumerate(value):
                    self.put_part(key, index, part)
                if not value:
                    self._fields.put(key, [])
            else:
                self._fields.put(key, value)

    def put_part(self, field: str, index: int, part: Any) -> None:
        if type(part) is not dict:
            self._growth.odd = True
        elif self._growth.spend(OBJECT_BYTES):
            held = self._parts.setdefault(field, {})[index] = Fragments(self._growth)
            for key, value in part.items():
                held.put(key, value)

    def part(self, field: str, index: int, kind: str) -> Fragments | None:
        held = self._parts.get(field, {}).get(index)
        if held is None:
            self.put_part(field, index, {"type": kind})
            held = self._parts.get(field, {}).get(index)
        return held

    @property
    def fields(self) -> Fragments:
        return self._fields

    def value(self) -> dict[str, Any]:
        item = self._fields.value()
        for field, parts in self._parts.items():
            item[field] = [parts[index].value() for index in sorted(parts)]
        return item


class ResponsesStream:
    """The events so far.

    Each event that carries a whole `response` replaces what was known. Until a complete one, an output that is still
    empty there is filled with the items that were announced (`response.output_item.added`) and what came of them since,
    also when the stream fails or ends incomplete without an output; a complete one that has no `output` at all gets the
    items that were done. Deltas of items that were never announced are not put into the response (that would say more
    than the server did): they are `loose`, to be kept raw until a final response has come.
    """

    closing_data: bytes | None = None

    def __init__(self, growth: Growth) -> None:
        self.terminal: str | None = None
        self.error: Any = None
        self.first_token_seen = False
        self.loose = False
        self._growth = growth
        self._snapshot: dict[str, Any] | None = None
        self._snapshot_size = 0
        self._items: dict[int, _Item] = {}

    def take(self, payload: dict[str, Any], name: bytes) -> bool:
        kind = payload.get("type")
        if type(kind) is not str:
            kind = name.decode("utf-8", "replace")
        if kind.endswith(".delta"):
            self.first_token_seen = True
            return self._take_delta(kind[:-6], payload)
        if kind == "error":
            self.terminal = "error"
            self.error = payload
            return True
        if not kind.startswith("response."):
            return kind in ("ping", "keepalive")
        if type(payload.get("response")) is dict:
            self._take_snapshot(payload["response"], kind)
        if kind in _FINAL:
            self.terminal = _FINAL[kind]
            if self.terminal == "error":
                self.error = payload
            return type(payload.get("response")) is dict
        if kind.startswith("response.output_item."):
            return self._take_item(payload, done=kind.endswith(".done"))
        return self._take_part(kind, payload)

    def take_closing(self) -> None:
        """Nothing: a final response ends the stream; some servers say `[DONE]` besides."""

    def terminal_of(self, name: str) -> str | None:
        return "error" if name == "error" else _FINAL.get(name)

    @property
    def response(self) -> dict[str, Any] | None:
        snapshot = self._snapshot
        items = [item.value() for _, item in sorted(self._items.items()) if item.done or self.terminal != "complete"]
        if items and not (snapshot or {}).get("output"):
            return {**(snapshot or {}), "output": items}
        return None if snapshot is None else dict(snapshot)

    def _take_snapshot(self, response: dict[str, Any], kind: str) -> None:
        size = size_of(response)
        growth = self._growth
        if kind in _FINAL:
            self.loose = False
            output = response.get("output")
            if output or (kind == "response.completed" and output is not None):
                self.first_token_seen = self.first_token_seen or bool(output)
                self._items.clear()
                self._snapshot = None
                self._snapshot_size = 0
                growth.spent = 0
                growth.overflowed = False
        if growth.spend(max(size - self._snapshot_size, 0)):
            self._snapshot = response
            self._snapshot_size = size

    def _take_item(self, payload: dict[str, Any], done: bool) -> bool:
        index = payload.get("output_index")
        item = payload.get("item")
        if type(index) is not int or type(item) is not dict:
            return False
        self.first_token_seen = True
        if self._growth.spend(2 * OBJECT_BYTES):
            held = self._items[index] = _Item(item, self._growth)
            held.done = done
        return True

    def _take_delta(self, kind: str, payload: dict[str, Any]) -> bool:
        piece = payload.get("delta")
        item = self._item_of(payload)
        if item is None:
            return True
        if kind in _IN_ITEM and type(piece) is str:
            item.fields.append_text(_IN_ITEM[kind], piece)
            return True
        part = self._part_of(item, kind, payload)
        if part is not None and type(piece) is str:
            part.append_text(_IN_PARTS[kind][3], piece)
            logprobs = payload.get("logprobs")
            if type(logprobs) is list and logprobs:
                part.extend("logprobs", logprobs)
            return True
        if kind in _IN_PARTS or kind in _IN_ITEM:
            return self._growth.overflowed
        self.loose = True  # of a kind that nobody knows yet
        return True

    def _take_part(self, kind: str, payload: dict[str, Any]) -> bool:
        """Events that begin or complete a part, or give a text whole. The other ones say nothing of the response."""
        stem, _, last = kind.rpartition(".")
        if stem in _PARTS:
            field, number = _PARTS[stem]
            index = payload.get(number)
            item = self._item_of(payload)
            if item is not None and type(index) is int:
                item.put_part(field, index, payload.get("part"))
        elif last == "done" and (stem in _IN_PARTS or stem in _IN_ITEM):
            item = self._item_of(payload)
            if item is None:
                return True
            key = _IN_ITEM.get(stem) or _IN_PARTS[stem][3]
            target = item.fields if stem in _IN_ITEM else self._part_of(item, stem, payload)
            if target is not None and type(payload.get(key)) is str:
                target.put(key, payload[key])
        elif kind == "response.output_text.annotation.added":
            item = self._item_of(payload)
            part = None if item is None else self._part_of(item, "response.output_text", payload)
            if part is not None:
                part.extend("annotations", [payload.get("annotation")])
        return True

    def _item_of(self, payload: dict[str, Any]) -> _Item | None:
        index = payload.get("output_index")
        item = self._items.get(index) if type(index) is int else None
        if item is None:
            self.loose = True
        return item

    def _part_of(self, item: _Item, kind: str, payload: dict[str, Any]) -> Fragments | None:
        shape = _IN_PARTS.get(kind)
        if shape is None:
            return None
        field, number, part_type, _ = shape
        index = payload.get(number)
        return item.part(field, index if type(index) is int else 0, part_type)
