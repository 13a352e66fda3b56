"""A model server's event stream, put together again as its bytes pass."""

from __future__ import annotations

from typing import Any, Protocol

from gym_capture.recording.chat_stream import ChatStream
from gym_capture.recording.event_json import event_object
from gym_capture.recording.fragments import Growth
from gym_capture.recording.messages_stream import MessagesStream
from gym_capture.recording.responses_stream import ResponsesStream
from gym_capture.recording.sse import Event, EventParser


class _Dialect(Protocol):
    closing_data: bytes | None
    terminal: str | None
    error: Any
    first_token_seen: bool
    loose: bool

    def take(self, payload: dict[str, Any], name: bytes) -> bool:
        """Take one event; whether it was of the dialect."""

    def take_closing(self) -> None:
        """Take the data `[DONE]`."""

    def terminal_of(self, name: str) -> str | None:
        """What an event of this name makes of the stream, its payload unknown."""

    @property
    def response(self) -> dict[str, Any] | None:
        """What is put together so far."""


class _Raw:
    """Bytes kept up to a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.kept = bytearray()

    def append(self, data: bytes, start: int = 0) -> None:
        room = self._limit - len(self.kept)
        if room > 0:
            self.kept += memoryview(data)[start : start + room]


_DIALECTS: dict[str, type[ChatStream] | type[MessagesStream] | type[ResponsesStream]] = {
    "chat": ChatStream,
    "messages": MessagesStream,
    "responses": ResponsesStream,
}


class StreamReassembly:
    """One response, from the server-sent events of one dialect. Nothing that comes in the body makes it raise.

    Events that are not understood are passed over: they cost neither what came before nor what comes after. After the
    terminal event nothing is read any more. An event that the body's end cut counts when its JSON is complete.

    Args:
        dialect: `chat`, `messages` or `responses`.
        limit_bytes: the most that is kept of the response, of one event, and of the raw bytes, each.
        keep_raw: keep the raw bytes of everything, not only of what did not reassemble.

    Raises:
        ValueError: no such dialect.
    """

    def __init__(self, dialect: str, *, limit_bytes: int, keep_raw: bool = False) -> None:
        if dialect not in _DIALECTS:
            raise ValueError(f"no dialect {dialect!r}: give one of {', '.join(sorted(_DIALECTS))}.")
        self._limit = limit_bytes
        self._growth = Growth(limit_bytes)
        self._stream: _Dialect = _DIALECTS[dialect](self._growth)
        self._parser = EventParser(limit_bytes, self._stream.closing_data)
        self._raw = _Raw(limit_bytes) if keep_raw else None
        self._keep_raw = keep_raw
        self._understood = True
        self._too_long = False
        self._finished = False

    def feed(self, data: bytes) -> int | None:
        """Take the next decoded bytes of the body.

        Returns:
            Where in `data` the terminal event begins, when `data` completes it (0 when it began in earlier data);
            else None.
        """
        if self._raw is not None:
            self._raw.append(data)
        if self._stream.terminal is not None or self._finished:
            return None
        for event in self._parser.feed(data):
            self._take(event, data)
            if self._stream.terminal is not None:
                return event.start
        return None

    def finish(self) -> None:
        """The body ended: what is unterminated is judged. Further calls change nothing."""
        if self._finished:
            return
        self._finished = True
        if self._stream.terminal is not None:
            return
        event = self._parser.finish()
        if event is None:
            return
        if event.data is not None and (event.data == self._stream.closing_data or event_object(event.data) is not None):
            self._take(event, b"")
            return
        if event.too_long:
            self._too_long = True
            self._understood = False
        elif event.data is None and not event.name and not _begins_a_field(event.raw):
            self._understood = False
        self._keep_from(event, b"")

    @property
    def response(self) -> dict[str, Any] | None:
        """What is reassembled so far, partial when the stream was cut; None when no event of the dialect came.

        It shares parts with what is kept: read it, do not change it.
        """
        return self._stream.response

    @property
    def terminal(self) -> str | None:
        """How the stream ended: `complete`, `incomplete`, `error`, or None while (or when) it has no terminal event."""
        return self._stream.terminal

    @property
    def error(self) -> Any:
        """The error event's whole payload (`response.failed` too), or its text when it is not JSON; else None."""
        return self._stream.error

    @property
    def raw(self) -> bytes | None:
        """The bytes from the first event that did not reassemble, or from the error event, or of the cut tail.

        None when all reassembled; everything with `keep_raw`; at most `limit_bytes`.
        """
        return None if self._raw is None else bytes(self._raw.kept)

    @property
    def size(self) -> int:
        """About how many bytes the response and the raw ones take."""
        return self._growth.spent + (0 if self._raw is None else len(self._raw.kept))

    @property
    def understood(self) -> bool:
        """Whether every event so far was of the dialect."""
        return self._understood

    @property
    def overflowed(self) -> bool:
        """Whether the response, or an event, passed `limit_bytes`: the response is kept up to there."""
        return self._growth.overflowed or self._too_long

    @property
    def first_token_seen(self) -> bool:
        """Whether something that the model generated has passed."""
        return self._stream.first_token_seen

    def _take(self, event: Event, data: bytes) -> None:
        stream = self._stream
        understood = True
        payload = event.data
        if payload is None:
            understood = False
            if event.too_long:
                self._too_long = True
                stream.terminal = stream.terminal_of(_name_of_long(event))
        elif payload[:1] == b"{":
            understood = self._take_payload(event, payload)
        elif not payload.strip():
            return
        elif payload.lstrip().startswith(b"[DONE]"):
            stream.take_closing()
        else:
            understood = self._take_payload(event, payload)
        if not understood:
            self._understood = False
        if not understood or stream.terminal == "error" or stream.loose:
            self._keep_from(event, data)
        elif stream.terminal is not None and self._understood and not self._keep_raw:
            self._raw = None  # what was loose is in the final response

    def _take_payload(self, event: Event, data: bytes) -> bool:
        stream = self._stream
        payload = event_object(data)
        if payload is None:
            if event.name == b"error":
                stream.terminal = "error"
                stream.error = data.decode("utf-8", "replace")
            return False
        growth = self._growth
        growth.odd = False
        try:
            return stream.take(payload, event.name) and not growth.odd
        except Exception:  # noqa: BLE001 - one malformed event costs neither the others nor the exchange
            return False

    def _keep_from(self, event: Event, data: bytes) -> None:
        if self._raw is None:
            self._raw = _Raw(self._limit)
            self._raw.append(event.raw)
            self._raw.append(data, event.end)


_BEGINNINGS = (b"data:", b"event:", b"id:", b"retry:")


def _begins_a_field(raw: bytes) -> bool:
    """Whether a cut line may be the beginning of a field."""
    return any(field.startswith(raw[: len(field)]) for field in _BEGINNINGS)


def _name_of_long(event: Event) -> str:
    """The name of an event that was too long to be kept, by its `event` field or by the beginning of its data."""
    if event.name:
        return event.name.decode("utf-8", "replace")
    head = event.raw[:200].split(b'"', 4)
    return head[3].decode("utf-8", "replace") if len(head) == 5 and head[1] == b"type" else ""
