"""Bytes become events as the standard says, whatever chunks they come in."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gym_capture.recording.sse import Event, EventParser
from tests.recording.streams import cut_places, pieces

LIMIT = 1 << 20
Parsed = tuple[bytes, bytes | None]


def parse(body: bytes, cuts: Sequence[int] = (), limit: int = LIMIT, closing: bytes | None = None) -> list[Event]:
    parser = EventParser(limit, closing)
    return [event for _, chunk in pieces(body, cuts) for event in parser.feed(chunk)]


def names_and_data(events: list[Event]) -> list[Parsed]:
    return [(event.name, event.data) for event in events]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"data: a\n\n", [(b"", b"a")]),
        (b"data:a\n\n", [(b"", b"a")]),
        (b"data:  a \n\n", [(b"", b" a ")]),
        (b"data: a\r\n\r\n", [(b"", b"a")]),
        (b"data: a\r\rdata: b\r\r", [(b"", b"a"), (b"", b"b")]),
        (b"data: a\rdata: b\n\nevent: e\rdata: c\ndata: d\n\n", [(b"", b"a\nb"), (b"e", b"c\nd")]),
        (b"data: a\n\r\ndata: b\r\n\ndata: c\r\n\r", [(b"", b"a"), (b"", b"b"), (b"", b"c")]),
        (b"data: a\ndata: b\ndata:\ndata: c\n\n", [(b"", b"a\nb\n\nc")]),
        (b"data\n\n", [(b"", b"")]),
        (b"data\ndata\n\n", [(b"", b"\n")]),
        (b"event: e\ndata: a\n\ndata: b\n\n", [(b"e", b"a"), (b"", b"b")]),
        (b"data: a\nevent: e\n\n", [(b"e", b"a")]),
        (b"event: one\nevent: two\ndata: a\n\n", [(b"two", b"a")]),
        (b"event: nothing\n\ndata: a\n\n", [(b"", b"a")]),
        (b"id: 7\nretry: 100\ndata: a\nx-own: 1\n\n", [(b"", b"a")]),
        (b": ping\n\n:\n\n: a\ndata: a\n: b\n\n", [(b"", b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [(b"", b"a"), (b"", None)]),
        (b"\n\n\ndata: a\n\n\n\n", [(b"", b"a")]),
        (b"data: a\n", []),
        (b"data: a", []),
        (b"data: \x00\xff\n\n", [(b"", b"\x00\xff")]),
        ("data: a\u2028b\u0085c\x0b\x0cd\n\n".encode(), [(b"", "a\u2028b\u0085c\x0b\x0cd".encode())]),
        (b'{"plain": "json"}\n\n', [(b"", None)]),
        (b"dataset: a\nDATA: b\n data: c\n\n", [(b"", None)]),
    ],
)
def test_events_are_those_of_the_standard(body: bytes, expected: list[Parsed]) -> None:
    assert names_and_data(parse(body)) == expected
    assert names_and_data(parse(body, range(len(body)))) == expected


_LINE = st.one_of(
    st.sampled_from([b"", b"data: a", b"data:b", b"data", b"event: e", b": c", b":", b"id: 1", b"junk", b"data: \xc3"]),
    st.binary(max_size=6).map(lambda text: re.sub(rb"[\r\n]", b".", text)),
)
_BODY = st.lists(st.tuples(_LINE, st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"\r\n\r\n"])), max_size=25).map(
    lambda lines: b"".join(text + end for text, end in lines)
)


def read_at_once(body: bytes) -> list[tuple[bytes, bytes | None, bytes]]:
    """What the standard's own grammar makes of a whole body: name, data and raw bytes of each event."""
    found: list[tuple[bytes, bytes | None, bytes]] = []
    place = start = 0
    name, raw, known = b"", b"", False
    data: list[bytes] = []
    body_lines = re.findall(rb"[^\r\n]*(?:\r\n|\r|\n)", body)
    for number, raw_line in enumerate(body_lines):
        line = raw_line.rstrip(b"\r\n")
        place += len(raw_line)
        if number == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if data or (raw and not known):
                found.append((name, b"\n".join(data) if data else None, body[start:place]))
            name, data, raw, known = b"", [], b"", False
            continue
        field, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if field == b"" and not raw:
            continue
        if not raw:
            start = place - len(raw_line)
        raw += raw_line
        if field == b"data":
            data.append(value)
        if field == b"event":
            name = value
        known = known or field in (b"data", b"event", b"id", b"retry")
    return found


@settings(max_examples=200, deadline=None)
@given(body=_BODY, cuts=cut_places(120))
@example(body=b"event: e\r\ndata: a\r\n\r\ndata: b\r\n\r\n", cuts=[9, 19, 21, 22])
@example(body=b"\xef\xbb\xbfdata: a\n\ndata: b\n\n", cuts=[1, 2])
def test_any_lines_in_any_chunks_are_read_as_the_whole_body_is(body: bytes, cuts: list[int]) -> None:
    expected = read_at_once(body)
    whole = parse(body)
    assert [(event.name, event.data, event.raw) for event in whole] == expected
    assert [body[event.start : event.end] for event in whole] == [raw for _, _, raw in expected]
    assert names_and_data(parse(body, cuts)) == [(name, data) for name, data, _ in expected]


@settings(max_examples=100, deadline=None)
@given(body=_BODY, cuts=cut_places(120))
def test_an_event_knows_where_it_began_in_the_bytes_fed_last(body: bytes, cuts: list[int]) -> None:
    places = [(event.start, event.end) for event in parse(body)]
    parser = EventParser(LIMIT)
    found = []
    for place, chunk in pieces(body, cuts):
        for event in parser.feed(chunk):
            found.append((place, place + event.start, place + event.end))
    for (start, end), (chunk_at, found_start, found_end) in zip(places, found, strict=True):
        assert found_start == max(start, chunk_at)
        assert found_end in (end, end - 1)  # the LF of a CRLF may come in the next chunk


def test_closing_data_is_an_event_before_its_blank_line() -> None:
    body = b"data: a\n\ndata: [DONE]\n"
    events = parse(body, closing=b"[DONE]")
    assert names_and_data(events) == [(b"", b"a"), (b"", b"[DONE]")]
    assert events[1].start == 9
    assert names_and_data(parse(body + b"\ndata: b\n\n", closing=b"[DONE]"))[1:] == [(b"", b"[DONE]"), (b"", b"b")]
    assert names_and_data(parse(body)) == [(b"", b"a")]


def test_a_cut_event_is_what_its_lines_say_and_a_cut_comment_is_none() -> None:
    for body, expected in [
        (b"event: e\ndata: a", (b"e", b"a")),
        (b"event: e\ndata: a\n", (b"e", b"a")),
        (b"event: e", (b"e", None)),
        (b"ev", (b"", None)),
        (b"data: x\n\n: pi", None),
        (b"data: x\n\n", None),
        (b"", None),
    ]:
        parser = EventParser(LIMIT)
        list(parser.feed(body))
        event = parser.finish()
        assert (None if event is None else (event.name, event.data)) == expected
        if event is not None:
            assert event.raw == body


@pytest.mark.parametrize("step", [1, 7, 50, 1000])
def test_an_event_over_the_limit_is_told_without_its_data_and_the_next_ones_are_read(step: int) -> None:
    body = b"data: a\n\ndata: " + b"x" * 300 + b"\ndata: more\n\ndata: b\n\n"
    events = parse(body, range(0, len(body), step), limit=100)
    assert [(event.data, event.too_long) for event in events] == [(b"a", False), (None, True), (b"b", False)]
    assert events[1].raw[:100] == body[9:109]
    assert len(events[1].raw) <= 102


def test_an_event_of_exactly_the_limit_is_kept_in_any_chunks() -> None:
    body = b"event: e\r\ndata: " + b"x" * 86 + b"\r\n\r\n"
    for size, kept in ((100, True), (99, False)):
        for step in (1, 3, 1000):
            [event] = parse(body, range(0, len(body), step), limit=size)
            assert event.too_long is not kept


def test_a_line_without_end_takes_linear_time_and_bounded_memory() -> None:
    parser = EventParser(10_000)
    began = time.process_time()
    for _ in range(2000):
        assert list(parser.feed(b"x" * 50_000)) == []
    event = parser.finish()
    assert event is not None
    assert event.too_long
    assert len(event.raw) == 10_001
    # A hundred megabytes: well under a second when linear, hours when each chunk costs what came before.
    assert time.process_time() - began < 20
