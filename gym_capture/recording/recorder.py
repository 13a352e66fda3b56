"""What one HTTP exchange with a model server is recorded as, built up while its bytes pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from gym_capture.model.error_category import error_category_for
from gym_capture.model.json_text import parse_json
from gym_capture.model.json_values import clean_text
from gym_capture.model.verifiers import VERIFIER_KEY, verifier_from_headers
from gym_capture.recording.body import Body
from gym_capture.recording.content_encoding import Decoder
from gym_capture.recording.credentials import Credentials
from gym_capture.recording.headers import Headers, by_name, content_length
from gym_capture.recording.payloads import Payloads
from gym_capture.recording.plain_body import PlainBody, is_json, plain_body
from gym_capture.recording.reassembly import StreamReassembly

SESSION_HEADERS = ("x-client-session-id", "x-claude-code-session-id")
"""Where clients name their session; the first that is there counts."""

NOTES = {
    "upstream_attempted": bool,
    "response_source": str,
    "upstream_status_code": int,
    "local_response_reason": str,
    "error_category": str,
}
"""The exchange fields that an app may give about its own call, with their types."""

CATEGORIES = frozenset(
    {
        "auth",
        "cancelled",
        "capture_parse_error",
        "client_error",
        "connection",
        "context_length_exceeded",
        "exception",
        "incomplete",
        "not_found",
        "rate_limit",
        "stream_truncated",
        "timeout",
        "upstream_error",
    }
)
"""Every `error_category` there is."""

_UNREADABLE = "capture_parse_error"
_TOO_LONG = "context_length_exceeded"
_MOST_TEXT = 256
_MOST_IDENTITY = 2048
"""Characters of a verifier's id and name. A longer one goes on with its hash: two that differ stay two."""
_META_BYTES = 1 << 16
"""What the fields beside the payloads may come to."""
_LONGEST_ERROR_BYTES = 1 << 20
"""A larger body of a failed call is not searched for a code."""
_STREAM_FACTOR = 16
"""How much longer than its response an encoded stream may be, once decoded."""


WITHHELD = b"[redacted: the response repeats a credential of the request]"
"""A stream's own bytes, where what they come to holds a secret: no search finds one that is cut over events."""

LARGE_BYTES = 256 << 10
"""Exchanges with more are nothing to look through while other requests wait."""


@dataclass(frozen=True, slots=True)
class RecordingPolicy:
    """How much of an exchange is kept.

    Args:
        limit_bytes: the most that request and response may have, together, to be kept.
        keep_raw_streams: keep each stream's own bytes, too.
    """

    limit_bytes: int
    keep_raw_streams: bool = False

    @property
    def payload_bytes(self) -> int:
        """The part of the limit that is left for payloads."""
        return max(self.limit_bytes - _META_BYTES, self.limit_bytes // 2)


class ExchangeRecorder:
    """Observes one exchange. Feed it what passes, in order; it changes nothing and holds no more than the policy says.

    Args:
        dialect: `responses`, `chat` or `messages`.
        policy: how much is kept.
        request_headers: as they came. They are not kept.

    Attributes:
        verifier: the invocation that the headers declare, as an exchange shows it, or None.
        client_session_id: the session that the headers name, or None.
        notes: exchange fields (`NOTES`) that whoever answers may set at any time before the end.
    """

    def __init__(self, dialect: str, policy: RecordingPolicy, request_headers: Headers = ()) -> None:
        given = list(request_headers)
        headers = by_name(given)
        self._dialect = dialect
        self._policy = policy
        self._limit = policy.payload_bytes
        self._credentials = Credentials(given)
        self._request = Body(self._limit, content_length(headers))
        self._request_encodings = ", ".join(headers.get("content-encoding", ()))
        self._status: int | None = None
        self._response: Body | None = None
        self._response_encodings = ""
        self._expected: int | None = None
        self._stream: StreamReassembly | None = None
        self._decoder: Decoder | None = None
        self._size = 0
        self._ended = False
        self._request_plain: PlainBody | None = None
        self._response_plain: PlainBody | None = None
        self.notes: dict[str, Any] = {}
        single = {name: values[0] for name, values in headers.items()}
        self.client_session_id = self._session(single)
        self.verifier = self._verifier(single)

    def _session(self, headers: Mapping[str, str]) -> str | None:
        for name in SESSION_HEADERS:
            text = headers.get(name, "").strip()
            if text:
                return clean_text(self._credentials.scrub_text(text)[:_MOST_TEXT])
        return None

    def _verifier(self, headers: Mapping[str, str]) -> dict[str, str] | None:
        invocation = verifier_from_headers(headers)
        if invocation is None:
            return None
        return {
            "invocation_id": _identity(self._credentials.scrub_text(invocation.invocation_id)),
            "name": _identity(self._credentials.scrub_text(invocation.name)),
        }

    # -- what passes --------------------------------------------------------------------------------------------

    def request_body(self, data: bytes) -> None:
        """The next bytes of the request's body."""
        self._request.add(data)

    def response_started(self, status: int, headers: Headers) -> None:
        """The response's head."""
        found = by_name(headers)
        self._status = status
        self._expected = content_length(found)
        self._response_encodings = ", ".join(found.get("content-encoding", ()))
        content_type = found.get("content-type", ("",))[0]
        if content_type.partition(";")[0].strip().lower() == "text/event-stream":
            keep_raw = self._policy.keep_raw_streams
            self._stream = StreamReassembly(self._dialect, limit_bytes=self._limit, keep_raw=keep_raw)
            decoder = Decoder(self._response_encodings, self._limit * _STREAM_FACTOR)
            self._decoder = decoder if decoder.named else None
        else:
            self._response = Body(self._limit, self._expected)

    def response_body(self, data: bytes) -> int | None:
        """The next bytes of the response's body.

        Returns:
            From where in `data` on it completes the response: with the stream's terminal event, or with the last byte
            that the head announced. None while more is to come, and for what follows.
        """
        if self._ended or not data:
            return None
        self._size += len(data)
        hold: int | None = None
        if self._stream is not None:
            hold = self._feed(self._stream, data)
        elif self._response is not None:
            self._response.add(data)
        if hold is None and self._expected is not None and self._size >= self._expected:
            hold = 0
        self._ended = hold is not None
        return hold

    def _feed(self, stream: StreamReassembly, data: bytes) -> int | None:
        if self._decoder is None:
            return stream.feed(data)
        hold: int | None = None
        for piece in self._decoder.feed(data):
            if stream.feed(piece) is not None:
                hold = 0
        return hold

    def response_ended(self) -> None:
        """The response's body is over."""
        self._ended = True

    @property
    def first_token_seen(self) -> bool:
        """Whether a stream has begun to answer."""
        return self._stream is not None and self._stream.first_token_seen

    @property
    def is_large(self) -> bool:
        """Whether `exchange_fields` has more than `LARGE_BYTES` to look through. To be asked once, at the end."""
        size = self._stream.size if self._stream is not None else 0
        limit = min(LARGE_BYTES, self._limit)
        request = self._request_plain = plain_body(self._request, self._request_encodings, limit)
        size += request.size
        if self._response is not None:
            response = self._response_plain = plain_body(self._response, self._response_encodings, limit)
            size += response.size
        if size <= LARGE_BYTES:
            return False
        self._request_plain = self._response_plain = None
        return True

    # -- what is recorded ---------------------------------------------------------------------------------------

    def exchange_fields(self, cause: str | None = None) -> dict[str, Any]:
        """What `ClaimHandle.complete` is to be given. To be called once, at the end.

        Args:
            cause: why the call ended early, where it did: an `error_category`.
        """
        payloads = Payloads(self._limit)
        plain_request = self._request_plain or plain_body(self._request, self._request_encodings, self._limit)
        self._request_plain = None
        if self._credentials.of_cookies and (model := _model_of(plain_request.data)) is not None:
            self._credentials.spare(model)
        request, request_trouble = self._body(plain_request)
        payloads.put("request", request, self._request.size if plain_request.trouble == "overflowed" else None)
        trouble = request_trouble
        if self._stream is not None:
            trouble |= self._put_stream(self._stream, payloads)
        elif self._response is not None:
            plain = self._response_plain or plain_body(self._response, self._response_encodings, self._limit)
            self._response_plain = None
            response, response_trouble = self._body(plain)
            payloads.put("response", response, self._size if plain.trouble == "overflowed" else None)
            trouble |= response_trouble
        else:
            payloads.put("response", None)
        notes = {name: value for name, value in self.notes.items() if _is_note(name, value)}
        category = notes.pop("error_category", None)
        category = category or self._category(cause, trouble | payloads.shrink(), payloads.fields.get("response"))
        fields = {**payloads.fields, "status_code": self._status, "error_category": category}
        for name, value in notes.items():
            fields[name] = self._credentials.scrub_text(value)[:_MOST_TEXT] if isinstance(value, str) else value
        if self.client_session_id is not None:
            fields["client_session_id"] = self.client_session_id
        if self.verifier is not None:
            fields[VERIFIER_KEY] = self.verifier
        return fields

    def _body(self, plain: PlainBody) -> tuple[bytes | None, bool]:
        """A whole body as it is stored, and whether anything of it could not be read."""
        if plain.data is None:
            return None, True
        # Judged as it came: a secret that is taken out of it must not make it look damaged.
        readable = is_json(plain.data)
        stored = self._credentials.scrub_bytes(plain.data, is_json=readable)
        return stored or None, plain.trouble is not None or not readable

    def _raw(self, raw: bytes, response: Any) -> bytes:
        """A stream's own bytes as they are stored: not at all where a secret may be spread over its events."""
        scrubbed = self._credentials.scrub_json(response)
        return WITHHELD if scrubbed != response else self._credentials.scrub_bytes(raw)

    def _put_stream(self, stream: StreamReassembly, payloads: Payloads) -> bool:
        """A stream's payloads; whether anything of them could not be read."""
        stream.finish()
        decoder = self._decoder
        if decoder is not None and self._ended and stream.terminal is None:
            decoder.finish()
        overflowed = stream.overflowed or (decoder is not None and decoder.trouble == "overflowed")
        response = None if overflowed else self._credentials.scrub_json(stream.response)
        size = self._size if overflowed else None
        payloads.put("response", response, size, at_most=decoder.size if decoder is not None else self._size)
        raw = stream.raw
        if raw:
            payloads.put("response_raw", self._raw(raw, stream.response))
        unread = stream.response is None and not stream.understood
        return overflowed or unread or (decoder is not None and decoder.trouble is not None)

    def _category(self, cause: str | None, trouble: bool, response: Any) -> str | None:
        stream = self._stream
        if not self._ended and cause is not None:
            return cause
        if self._status is not None and self._status >= 400:
            code = _error_code(response if stream is None else stream.error)
            return _TOO_LONG if code == _TOO_LONG else error_category_for(self._status)
        if stream is not None and stream.terminal in ("error", "incomplete"):
            codes = {_error_code(stream.error), _error_code(stream.response)}
            if _TOO_LONG in codes:
                return _TOO_LONG
            return "upstream_error" if stream.terminal == "error" else "incomplete"
        if trouble:
            return _UNREADABLE
        if self._status is None:
            return "incomplete"
        return "stream_truncated" if stream is not None and stream.terminal is None else None


class _Request(msgspec.Struct):
    model: Any = None


_decode_request = msgspec.json.Decoder(_Request).decode


def _model_of(request: bytes | None) -> str | None:
    try:
        model = _decode_request(request or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return model.model if isinstance(model.model, str) else None


def _identity(text: str) -> str:
    if len(text) <= _MOST_IDENTITY:
        return text
    return f"{text[:_MOST_TEXT]}~sha256:{sha256(text.encode()).hexdigest()}"


def _error_code(value: Any) -> str | None:
    """The code that an error names, in whichever provider's shape."""
    if isinstance(value, bytes):
        if len(value) > _LONGEST_ERROR_BYTES:
            return None
        try:
            value = parse_json(value)
        except (ValueError, RecursionError):
            return None
    for _ in range(3):  # {"response": {"error": {"code": ...}}} is the deepest
        if not isinstance(value, Mapping):
            return None
        if _TOO_LONG in (value.get("code"), value.get("type")):
            return _TOO_LONG
        value = value.get("error") or value.get("response")
    if isinstance(value, Mapping) and _TOO_LONG in (value.get("code"), value.get("type")):
        return _TOO_LONG
    return None


def _is_note(name: str, value: Any) -> bool:
    if type(value) is not NOTES.get(name):
        return False
    return name != "error_category" or value in CATEGORIES
