"""Streams that are made to be costly: memory stays near the limit, and work grows with the bytes alone."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from gym_capture.recording.event_json import MAX_DEPTH, event_object
from gym_capture.recording.reassembly import StreamReassembly
from tests.recording.streams import DONE, chat, deltas, event, named, see


def many(form: bytes, around: bytes, start: int) -> bytes:
    return b"data: " + around.replace(b"*", b",".join(form % (start + number) for number in range(1000))) + b"\n\n"


SMALL: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "tool calls": (
        "chat",
        lambda at: many(b'{"index":%d}', b'{"choices":[{"index":0,"delta":{"tool_calls":[*]}}]}', at),
    ),
    "choices": ("chat", lambda at: many(b'{"index":%d}', b'{"choices":[*]}', at)),
    "logprobs": ("chat", lambda at: many(b'{"index":%d}', b'{"choices":[{"index":0,"logprobs":{"content":[*]}}]}', at)),
    "fields": ("chat", lambda at: many(b'"%d":1', b'{"choices":[],*}', at)),
    "texts": ("chat", lambda at: many(b'"%d":""', b'{"choices":[{"index":0,"delta":{*}}]}', at)),
    "lists": ("chat", lambda at: many(b'"%d":[[],[],[]]', b'{"choices":[{"index":0,"delta":{*}}]}', at)),
    "objects": ("chat", lambda at: many(b'"%d":{}', b'{"choices":[{"index":0,"delta":{*}}]}', at)),
    "blocks": (
        "messages",
        lambda at: b"".join(
            b'data: {"type":"content_block_start","index":%d,"content_block":{}}\n\n' % (at + number)
            for number in range(1000)
        ),
    ),
    "items": (
        "responses",
        lambda at: b"".join(
            b'data: {"type":"response.output_item.added","output_index":%d,"item":{}}\n\n' % (at + number)
            for number in range(1000)
        ),
    ),
    "a snapshot of lists": (
        "responses",
        lambda at: b'data: {"type":"response.created","response":{"output":[%s[]]}}\n\n' % (b"[]," * 30_000),
    ),
    "lines of one event": ("chat", lambda at: b"a\n" * 2048),
    "data of one event": ("chat", lambda at: b"data\n" * 2048),
}


@pytest.mark.parametrize("kind", SMALL)
def test_many_small_things_take_no_more_memory_than_a_small_factor_of_the_limit(kind: str) -> None:
    dialect, make = SMALL[kind]
    limit = 1 << 18
    stream = StreamReassembly(dialect, limit_bytes=limit)
    stream.feed(b'data: {"type":"ping","choices":[]}\n\n')
    tracemalloc.start()
    try:
        for number in range(40):
            chunk = make(number * 1000)
            stream.feed(chunk)
            if stream.overflowed:
                break
        del chunk
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert stream.overflowed or "one event" in kind
    assert held < 5 * limit


class Counted:
    """Counts the lines of this package that run, and the bytes that its texts give out."""

    def __init__(self) -> None:
        self.lines = 0

    def __enter__(self) -> Counted:
        sys.settrace(self._call)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, what: str, value: Any) -> Any:
        return self._line if "gym_capture" in frame.f_code.co_filename else None

    def _line(self, frame: FrameType, what: str, value: Any) -> Any:
        self.lines += 1
        return self._line


def calls_without_an_index(count: int) -> Iterator[bytes]:
    for number in range(count):
        piece = {"id": f"c{number}", "function": {"name": "f", "arguments": "{}"}}
        yield deltas({"tool_calls": [piece]}, done=False)


def blocks_without_an_index(count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield event({"type": "content_block_start", "content_block": {"type": "text", "text": ""}})


@pytest.mark.parametrize(("dialect", "make"), [("chat", calls_without_an_index), ("messages", blocks_without_an_index)])
def test_what_has_no_index_is_placed_without_a_search(dialect: str, make: Callable[[int], Iterator[bytes]]) -> None:
    def lines(count: int) -> int:
        stream = StreamReassembly(dialect, limit_bytes=64 << 20)
        chunks = list(make(count))
        with Counted() as counted:
            for chunk in chunks:
                stream.feed(chunk)
        assert stream.understood or dialect == "messages"
        return counted.lines

    assert lines(800) < 10 * lines(100)


def test_a_name_in_many_pieces_is_not_read_again_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    from gym_capture.recording.fragments import Text

    read: list[int] = []
    value = Text.value

    def counted(text: Text) -> str:
        whole = value(text)
        read.append(len(whole))
        return whole

    monkeypatch.setattr(Text, "value", counted)
    stream = StreamReassembly("chat", limit_bytes=1 << 20)
    for number in range(500):
        piece = {"index": 0, "id": "c", "function": {"name": f"p{number:07}"}}
        stream.feed(deltas({"tool_calls": [piece]}, done=False))
    assert sum(read) == 0
    assert stream.response is not None
    name = stream.response["choices"][0]["message"]["tool_calls"][0]["function"]["name"]
    assert len(name) == 8 * 500


def test_an_event_of_many_values_is_not_gone_through_byte_by_byte() -> None:
    token = {"token": "abc", "bytes": [97, 98, 99], "logprob": -0.123456789}
    top = {**token, "top_logprobs": [token] * 5}
    data = json.dumps({"logprobs": {"content": [top] * 400}, "text": "[{" * 10_000}).encode()
    with Counted() as counted:
        assert event_object(data) == json.loads(data)
    assert counted.lines < len(data) / 4


@pytest.mark.parametrize("pair", [("[", "]"), ('{"a":', "}")])
def test_nesting_is_measured_exactly(pair: tuple[str, str]) -> None:
    def nested(depth: int) -> bytes:
        return ('{"x":' + pair[0] * (depth - 1) + "1" + pair[1] * (depth - 1) + ',"s":"[[[["}').encode()

    assert event_object(nested(MAX_DEPTH)) == json.loads(nested(MAX_DEPTH))
    assert event_object(nested(MAX_DEPTH + 1)) is None


def test_a_number_that_no_float_holds_comes_back_as_its_text() -> None:
    body = (
        named({"type": "ping"}) + b'data: {"choices": [], "usage": {"cost": 1e400, "least": -2.5E+999, "n": 1.5}}\n\n'
    )
    seen = see("chat", body + DONE)
    assert seen.response["usage"] == {"cost": "1e400", "least": "-2.5E+999", "n": 1.5}


def test_lines_of_one_event_come_back_as_they_were() -> None:
    body = b"event: x\r\nid: 7\r\ndata: {\r\ndata:\r\ndata: no json\r\n: comment\r\n\r\n"
    seen = see("chat", body + chat(), range(0, len(body), 3))
    assert seen.raw is not None
    assert seen.raw.startswith(body)
