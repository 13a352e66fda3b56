"""Server-sent events, split from a body as its bytes pass (WHATWG HTML, "Server-sent events").

A byte order mark, LF, CR and CRLF, comments, fields without a colon and fields nobody knows are read as the standard
says. What it leaves out, because the bytes are evidence here: each event knows where it began and its own raw lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PLAIN_EVENT = re.compile(rb"(?:event: ?([^\r\n]*+)\r?\n)?data: ?([^\r\n]++)\r?\n\r?\n").match
"""An event as nearly every server writes it: found in one step, where the bytes hold all of it."""
_LF_EVENT = re.compile(rb"(?:event: ?(.*+)\n)?data: ?(.++)\n\n").match
"""The same where no CR is in it, at a third of the time."""
_new = tuple.__new__
_FIELDS = (b"data", b"event", b"id", b"retry")


class Event(NamedTuple):
    """One event.

    Fields: its `name` (b"" when it has none); its `data`, lines joined by LF (None when it had no field of the
    standard at all, or was `too_long`); the offsets of its first field and of the byte after it in the bytes that were
    fed last (`start` is 0 when it began in earlier ones); its own bytes, `raw` (their beginning when it was too long);
    whether it was `too_long` to be kept.
    """

    name: bytes
    data: bytes | None
    start: int
    end: int
    raw: bytes
    too_long: bool


class EventParser:
    """Splits a body into events, in linear time, holding no more than the event that is under way.

    Args:
        limit_bytes: an event with more bytes than this is not kept; where it ends is still seen.
        closing_data: data that makes an event as soon as its line is complete, before the blank line: `[DONE]`.
    """

    def __init__(self, limit_bytes: int, closing_data: bytes | None = None) -> None:
        self._limit = limit_bytes
        self._closing_data = closing_data
        self._partial = bytearray()
        self._first_line = True
        self._after_cr = False
        self._fed = 0
        self._clear()

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events that `data` completes. To be consumed before the next call, or not at all any more."""
        base = self._fed
        self._fed += len(data)
        offset = 0
        if self._after_cr and data:
            self._after_cr = False
            if data[0] == 0x0A:
                offset = 1
                if self._raw:
                    self._raw += b"\n"
        if not self._raw and not self._partial:
            size = len(data)
            while offset < size:
                found = _LF_EVENT(data, offset)
                if found is None or b"\r" in found[0]:
                    found = _PLAIN_EVENT(data, offset)
                    if found is None:
                        break
                end = found.end()
                if end - offset > self._limit:
                    break
                self._first_line = False
                name, payload = found.groups()
                # As `Event(…)`, without the call of its constructor.
                yield _new(Event, (name or b"", payload, offset, end, found[0], False))
                offset = end
            if offset == size:
                return
        # bytes.splitlines ends lines where the standard does: LF, CR, CRLF and nothing else.
        lines = (data[offset:] if offset else data).splitlines(keepends=True)
        if not lines:
            return
        for line in lines:
            begin = offset
            offset += len(line)
            content = line.rstrip(b"\r\n")
            if len(content) == len(line):
                self._hold_partial(line)
                return
            begin += base
            if self._partial:
                line, content = self._complete_partial(line, content)
            if self._first_line:
                self._first_line = False
                content = content.removeprefix(_BYTE_ORDER_MARK)
            if content:
                event = self._take_line(line, content, begin, base, offset)
            elif self._raw:
                event = self._dispatch(line, base, offset)
            else:
                continue
            if event is not None:
                yield event
        self._after_cr = data.endswith(b"\r")

    def finish(self) -> Event | None:
        """The event that the body's end cut, its last line taken for complete; None when it ended between events."""
        if self._partial:
            line, content = self._complete_partial(b"", b"")
            if self._first_line:
                content = content.removeprefix(_BYTE_ORDER_MARK)
            closing = self._take_line(line, content, self._fed, self._fed, 0) if content else None
            if closing is not None:
                return closing
        return self._event(self._fed, 0) if self._raw else None

    def _clear(self) -> None:
        self._name = b""
        # All lines of an event in one buffer, as each of them may be short.
        self._data: bytearray | None = None
        self._raw = bytearray()
        self._known = False
        self._size = 0
        self._too_long = False
        self._start = 0

    def _hold_partial(self, piece: bytes) -> None:
        if self._too_long:
            self._partial[:] = b"-"  # nothing of it is kept, but that the line is not blank
            return
        room = self._limit + 1 - self._size - len(self._partial)
        self._partial += piece if len(piece) <= room else piece[:room]

    def _complete_partial(self, line: bytes, content: bytes) -> tuple[bytes, bytes]:
        room = max(self._limit + 1 - self._size - len(self._partial), 0)
        head = bytes(self._partial)
        self._partial.clear()
        if len(content) > room:
            content = line = content[:room]
        return head + line, head + content

    def _take_line(self, line: bytes, content: bytes, begin: int, base: int, end: int) -> Event | None:
        value: bytes
        if content.startswith(b"data:"):
            field = b"data"
            value = content[6:] if content[5:6] == b" " else content[5:]
        else:
            field, _, value = content.partition(b":")
            value = value.removeprefix(b" ")
        raw = self._raw
        if not field and not raw:
            return None  # a comment between events
        if not raw:
            self._start = begin
        if self._too_long:
            return None
        self._size += len(content)
        if self._size > self._limit:
            raw += line[: self._limit + 1]
            self._too_long = True
            self._data = None
            if field in _FIELDS:
                self._known = True
            return None
        raw += line
        if field == b"data":
            closing = self._closing_data
            if self._data is not None:
                self._data += b"\n"
                self._data += value
            elif closing is not None and value.lstrip().startswith(closing):
                self._data = bytearray(closing)
                return self._dispatch(b"", base, end)
            else:
                self._data = bytearray(value)
        elif field == b"event":
            self._name = value
        elif field not in _FIELDS:
            return None
        self._known = True
        return None

    def _dispatch(self, line: bytes, base: int, end: int) -> Event | None:
        """The event under way, which a blank line ended; None when it has no data and so is none."""
        self._raw += line
        event = self._event(base, end) if self._data is not None or not self._known or self._too_long else None
        self._clear()
        return event

    def _event(self, base: int, end: int) -> Event:
        data = None if self._data is None else bytes(self._data)
        return Event(self._name, data, max(self._start - base, 0), end, bytes(self._raw), self._too_long)
