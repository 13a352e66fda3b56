"""What an observed exchange is recorded as."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from typing import Any

import brotli  # type: ignore[import-untyped]  # without stubs
import pytest
import zstandard

from gym_capture.recording.headers import Headers
from gym_capture.recording.plain_body import is_json
from gym_capture.recording.recorder import CATEGORIES, ExchangeRecorder, RecordingPolicy
from tests.recording.exchanges import DONE, EVENT_STREAM, JSON, KEY, REASSEMBLED, REQUEST, RESPONSE, STREAM, delta, sse

POLICY = RecordingPolicy(1 << 20)


def recorded(
    *chunks: bytes,
    headers: Headers = JSON,
    status: int = 200,
    request: bytes = REQUEST,
    request_headers: Headers = (),
    policy: RecordingPolicy = POLICY,
    dialect: str = "chat",
    ended: bool = True,
    cause: str | None = None,
    notes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The fields of a whole exchange."""
    recorder = ExchangeRecorder(dialect, policy, request_headers)
    recorder.request_body(request)
    recorder.response_started(status, headers)
    for chunk in chunks:
        recorder.response_body(chunk)
    if ended:
        recorder.response_ended()
    recorder.notes.update(notes or {})
    return recorder.exchange_fields(cause)


def test_bodies_are_kept_byte_for_byte() -> None:
    fields = recorded(RESPONSE[:9], b"", RESPONSE[9:])
    assert fields == {"request": REQUEST, "response": RESPONSE, "status_code": 200, "error_category": None}


def test_a_stream_is_recorded_as_the_response_that_it_makes() -> None:
    fields = recorded(*STREAM, headers=EVENT_STREAM)
    assert fields == {"request": REQUEST, "response": REASSEMBLED, "status_code": 200, "error_category": None}


def test_a_streams_own_bytes_are_kept_when_asked_for() -> None:
    fields = recorded(*STREAM, headers=EVENT_STREAM, policy=RecordingPolicy(1 << 20, keep_raw_streams=True))
    assert (fields["response"], fields["response_raw"]) == (REASSEMBLED, b"".join(STREAM))


@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
def test_what_is_to_wait_begins_with_the_terminal_event(size: int) -> None:
    whole = b"".join(STREAM)
    recorder = ExchangeRecorder("chat", POLICY)
    recorder.response_started(200, EVENT_STREAM)
    passed = b""
    for start in range(0, len(whole), size):
        chunk = whole[start : start + size]
        hold = recorder.response_body(chunk)
        if hold is not None:
            passed += chunk[:hold]
            break
        passed += chunk
    assert whole.startswith(passed)
    # Cut inside of it, its beginning has passed already: harmless, as it is no event yet.
    assert 0 < len(whole) - len(passed) <= len(DONE)
    if size == 10_000:
        assert whole[len(passed) :] == DONE
    assert recorder.response_body(b"more") is None


@pytest.mark.parametrize(
    ("encoding", "encode"), [("gzip", gzip.compress), ("br", brotli.compress), ("zstd", zstandard.compress)]
)
def test_encoded_bodies_and_streams_are_decoded_for_the_record(encoding: str, encode: Any) -> None:
    encoded = [(b"content-encoding", encoding.encode())]
    body = encode(RESPONSE)
    fields = recorded(body[:5], body[5:], headers=[*JSON, *encoded])
    assert (fields["response"], fields["error_category"]) == (RESPONSE, None)
    stream = encode(b"".join(STREAM))
    fields = recorded(stream[:9], stream[9:], headers=[*EVENT_STREAM, *encoded])
    assert (fields["response"], fields["error_category"]) == (REASSEMBLED, None)
    fields = recorded(RESPONSE, request=encode(REQUEST), request_headers=encoded)
    assert (fields["request"], fields["error_category"]) == (REQUEST, None)


def test_of_an_encoded_stream_the_chunk_that_completes_it_waits_whole() -> None:
    packer = zlib.compressobj(wbits=31)
    first = packer.compress(b"".join(STREAM[:2])) + packer.flush(2)
    last = packer.compress(STREAM[2]) + packer.flush()
    recorder = ExchangeRecorder("chat", POLICY)
    recorder.response_started(200, [*EVENT_STREAM, (b"content-encoding", b"gzip")])
    assert [recorder.response_body(first), recorder.response_body(last)] == [None, 0]


def test_the_byte_that_reaches_the_announced_length_waits() -> None:
    recorder = ExchangeRecorder("chat", POLICY)
    recorder.request_body(REQUEST)
    recorder.response_started(200, [*JSON, (b"content-length", str(len(RESPONSE)).encode())])
    assert [recorder.response_body(RESPONSE[:-1]), recorder.response_body(RESPONSE[-1:])] == [None, 0]
    assert recorder.exchange_fields("cancelled")["error_category"] is None


@pytest.mark.parametrize("lengths", [[b"5", b"9"], [b"5, 9"], [b"-5"], [b"five"], [b"9" * 30]])
def test_lengths_that_contradict_each_other_announce_nothing(lengths: list[bytes]) -> None:
    recorder = ExchangeRecorder("chat", POLICY)
    recorder.response_started(200, [*JSON, *((b"content-length", length) for length in lengths)])
    assert [recorder.response_body(RESPONSE[:20]), recorder.response_body(RESPONSE[20:])] == [None, None]


@pytest.mark.parametrize(
    ("status", "category"),
    [(400, "client_error"), (401, "auth"), (404, "not_found"), (429, "rate_limit"), (503, "upstream_error")],
)
def test_a_failed_status_names_the_category(status: int, category: str) -> None:
    fields = recorded(b"no json", status=status, request=b"no json either")
    assert (fields["status_code"], fields["error_category"], fields["response"]) == (status, category, b"no json")


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"code": "context_length_exceeded", "message": "too long"}},
        {"error": {"type": "context_length_exceeded"}},
        {"object": "error", "code": "context_length_exceeded"},
    ],
)
def test_a_context_that_is_too_long_has_a_category_of_its_own(body: Any) -> None:
    assert recorded(json.dumps(body).encode(), status=400)["error_category"] == "context_length_exceeded"


def test_an_error_event_is_an_upstream_error_or_what_its_code_says() -> None:
    fields = recorded(delta("hel"), sse({"error": {"message": "boom", "code": 500}}), headers=EVENT_STREAM)
    assert fields["error_category"] == "upstream_error"
    assert fields["response"]["choices"][0]["message"]["content"] == "hel"
    too_long = {"error": {"message": "boom", "code": "context_length_exceeded"}}
    assert recorded(sse(too_long), headers=EVENT_STREAM)["error_category"] == "context_length_exceeded"
    failed = {"type": "response.failed", "response": {"id": "r", "error": {"code": "context_length_exceeded"}}}
    fields = recorded(sse(failed), headers=EVENT_STREAM, dialect="responses")
    assert fields["error_category"] == "context_length_exceeded"


def test_how_a_stream_ends_names_the_category() -> None:
    incomplete = {"type": "response.incomplete", "response": {"id": "r", "status": "incomplete", "output": []}}
    fields = recorded(sse(incomplete), headers=EVENT_STREAM, dialect="responses")
    assert (fields["error_category"], fields["response"]["status"]) == ("incomplete", "incomplete")
    cut = recorded(delta("hel"), b'data: {"id": "c1", "cho', headers=EVENT_STREAM)
    assert cut["error_category"] == "stream_truncated"
    assert cut["response"]["choices"][0]["message"]["content"] == "hel"
    assert cut["response_raw"] == b'data: {"id": "c1", "cho'
    assert recorded(headers=EVENT_STREAM)["error_category"] == "stream_truncated"


@pytest.mark.parametrize("cause", ["cancelled", "exception", "timeout", "connection", "stream_truncated"])
def test_the_cause_counts_when_the_response_did_not_end(cause: str) -> None:
    fields = recorded(delta("hel"), headers=EVENT_STREAM, ended=False, cause=cause)
    assert fields["error_category"] == cause
    assert fields["response"]["choices"][0]["message"]["content"] == "hel"
    fields = recorded(RESPONSE[:30], ended=False, cause=cause)
    assert (fields["error_category"], fields["response"]) == (cause, RESPONSE[:30])
    assert recorded(RESPONSE, cause=cause)["error_category"] is None
    assert recorded(*STREAM, headers=EVENT_STREAM, ended=False, cause=cause)["error_category"] is None


def test_a_call_that_was_never_answered_keeps_its_request() -> None:
    recorder = ExchangeRecorder("chat", POLICY)
    recorder.request_body(REQUEST)
    assert recorder.exchange_fields("connection") == {
        "request": REQUEST,
        "response": None,
        "status_code": None,
        "error_category": "connection",
    }


@pytest.mark.parametrize(
    ("request_body", "response", "headers"),
    [
        (b"not json", RESPONSE, JSON),
        (b"", RESPONSE, JSON),
        (b"\xff\xfe\x00binary", RESPONSE, JSON),
        (REQUEST[:-1], RESPONSE, JSON),
        (REQUEST, b"<html>", JSON),
        (REQUEST, b"", JSON),
        (REQUEST, b'{"a": "\xff"}', JSON),
        (REQUEST, b'{"plain": "json"}', EVENT_STREAM),
        (REQUEST, b"\xff\xfe\xfd", EVENT_STREAM),
        (REQUEST, RESPONSE, [*JSON, (b"content-encoding", b"gzip")]),
        (REQUEST, RESPONSE, [*JSON, (b"content-encoding", b"made-up")]),
        (REQUEST, b"".join(STREAM), [*EVENT_STREAM, (b"content-encoding", b"made-up")]),
    ],
)
def test_what_should_be_readable_and_is_not_says_so(request_body: bytes, response: bytes, headers: Headers) -> None:
    fields = recorded(response, request=request_body, headers=headers)
    assert fields["error_category"] == "capture_parse_error"
    assert fields["request"] == (request_body or None)


def test_json_that_the_standard_refuses_is_no_error() -> None:
    odd = b'{"loss": NaN, "n": 123456789012345678901234567890, "s": "\\ud800"}'
    assert is_json(odd)
    assert recorded(odd)["error_category"] is None
    assert recorded(odd)["response"] == odd


def test_of_what_is_too_large_the_size_is_kept_in_bounded_memory() -> None:
    policy = RecordingPolicy(1 << 18)
    chunk = bytes(1 << 16)
    recorder = ExchangeRecorder("chat", policy, [(b"content-length", b"not known")])
    tracemalloc.start()
    try:
        for _ in range(1600):
            recorder.request_body(chunk)
        recorder.response_started(200, JSON)
        for _ in range(1600):
            recorder.response_body(chunk)
        recorder.response_ended()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 19
    assert recorder.exchange_fields() == {
        "request": None,
        "request_bytes": 1600 << 16,
        "response": None,
        "response_bytes": 1600 << 16,
        "status_code": 200,
        "error_category": "capture_parse_error",
    }


def test_a_stream_whose_response_is_too_large_is_bounded_too() -> None:
    policy = RecordingPolicy(1 << 18)
    recorder = ExchangeRecorder("chat", policy)
    recorder.request_body(REQUEST)
    recorder.response_started(200, EVENT_STREAM)
    event = delta("x" * 10_000)
    tracemalloc.start()
    try:
        for _ in range(500):
            recorder.response_body(event)
        recorder.response_body(DONE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    fields = recorder.exchange_fields()
    assert (fields["response"], fields["response_bytes"]) == (None, 500 * len(event) + len(DONE))
    assert fields["error_category"] == "capture_parse_error"


def test_request_and_response_together_fit_one_exchange() -> None:
    policy = RecordingPolicy(1 << 20)
    large = json.dumps({"text": "x" * (600 << 10)}).encode()
    small = json.dumps({"text": "x" * (500 << 10)}).encode()
    fields = recorded(small, request=large, policy=policy)
    assert (fields["request"], fields["request_bytes"], fields["response"]) == (None, len(large), small)
    assert fields["error_category"] == "capture_parse_error"
    stream = [delta("x" * (100 << 10)) for _ in range(5)]
    fields = recorded(*stream, DONE, headers=EVENT_STREAM, request=large, policy=policy)
    assert (fields["request"], fields["request_bytes"]) == (None, len(large))
    assert len(fields["response"]["choices"][0]["message"]["content"]) == 500 << 10
    # Many events of little text are not much response.
    fields = recorded(*[delta("x")] * 4000, DONE, headers=EVENT_STREAM, request=large, policy=policy)
    assert (fields["request"], fields["error_category"]) == (large, None)


def test_a_bomb_is_counted_and_costs_little() -> None:
    encoded = [(b"content-encoding", b"gzip")]
    bomb = gzip.compress(bytes(64 << 20), 9)
    fields = recorded(bomb, headers=[*JSON, *encoded], request=bomb, request_headers=encoded)
    assert (fields["request"], fields["response"]) == (None, None)
    assert (fields["request_bytes"], fields["response_bytes"]) == (len(bomb), len(bomb))
    assert fields["error_category"] == "capture_parse_error"
    fields = recorded(bomb, headers=[*EVENT_STREAM, *encoded])
    assert (fields["response"], fields["response_bytes"]) == (None, len(bomb))


def test_secrets_of_the_request_are_in_nothing_that_is_recorded() -> None:
    request_headers = [
        (b"authorization", f"Bearer {KEY}".encode()),
        (b"x-client-session-id", f"session of {KEY}".encode()),
        (b"x-ng-verifier-invocation-id", KEY.encode()),
    ]
    request = json.dumps({"messages": [], "echo": KEY}).encode()
    answers: list[tuple[list[bytes], Headers, int]] = [
        ([f'{{"error": "bad key {KEY}"}}'.encode()], JSON, 401),
        ([delta(KEY[:7]), delta(KEY[7:]), DONE], EVENT_STREAM, 200),
        ([delta("x"), f"data: what {KEY}\n\n".encode(), DONE], EVENT_STREAM, 200),
        ([gzip.compress(f'"{KEY}"'.encode())], [*JSON, (b"content-encoding", b"gzip")], 200),
        ([gzip.compress(f'"{KEY}"'.encode())[:-4]], [*JSON, (b"content-encoding", b"gzip")], 200),
    ]
    for chunks, headers, status in answers:
        fields = recorded(
            *chunks,
            headers=headers,
            status=status,
            request=request,
            request_headers=request_headers,
            notes={"local_response_reason": f"refused {KEY}"},
        )
        assert KEY not in repr(fields)
        assert repr(fields).count("[redacted]") >= 4


def test_a_streams_own_bytes_are_withheld_where_a_secret_is_spread_over_its_events() -> None:
    headers = [(b"authorization", f"Bearer {KEY}".encode())]
    spread = [delta(KEY[:10]), delta(KEY[10:]), DONE]
    raw = RecordingPolicy(1 << 20, keep_raw_streams=True)
    withheld = b"[redacted: the response repeats a credential of the request]"
    for chunks, policy in ((spread, raw), ([sse({"warning": "x"}), *spread], POLICY)):
        fields = recorded(*chunks, headers=EVENT_STREAM, request_headers=headers, policy=policy)
        assert fields["response"]["choices"][0]["message"]["content"] == "[redacted]"
        assert fields["response_raw"] == withheld
    fields = recorded(*STREAM, headers=EVENT_STREAM, request_headers=headers, policy=raw)
    assert fields["response_raw"] == b"".join(STREAM)


def test_a_secret_made_of_digits_damages_no_number() -> None:
    headers = [(b"x-api-key", b"1234567890123456")]
    body = b'{"id": 1234567890123456, "echo": "1234567890123456"}'
    fields = recorded(body, request_headers=headers)
    assert fields["response"] == b'{"id": 1234567890123456, "echo": "[redacted]"}'
    assert fields["error_category"] is None


def test_a_cookie_that_names_the_requests_model_leaves_it_readable() -> None:
    request = json.dumps({"model": "meta-llama/Llama-3.1-8B", "echo": KEY}).encode()
    headers = [(b"cookie", f"model=meta-llama/Llama-3.1-8B; s={KEY}".encode())]
    fields = recorded(RESPONSE, request=request, request_headers=headers)
    assert fields["request"] == request.replace(KEY.encode(), b"[redacted]")


def test_a_long_identity_of_a_verifier_is_never_cut_to_that_of_another() -> None:
    def invocation(text: str) -> dict[str, str]:
        headers = [(b"x-ng-verifier-invocation-id", text.encode()), (b"x-ng-verifier-name", text.encode())]
        declared: dict[str, str] = recorded(RESPONSE, request_headers=headers)["verifier_invocation"]
        return declared

    whole = "judge-" * 300
    assert invocation(whole) == {"invocation_id": whole, "name": whole}
    first, second = invocation("j" * 5000 + "1"), invocation("j" * 5000 + "2")
    assert first != second
    assert first == invocation("j" * 5000 + "1")
    assert all(text.startswith("j" * 256 + "~sha256:") and len(text) == 328 for text in first.values())


def test_the_session_and_the_verifier_come_from_the_headers() -> None:
    headers = [
        (b"X-Claude-Code-Session-Id", b"second"),
        (b"X-Client-Session-Id", b" first "),
        (b"X-Client-Session-Id", b"again"),
        (b"X-NG-Verifier-Invocation-Id", b"judge%201"),
        (b"X-NG-Verifier-Name", b"na%C3%AFve"),
    ]
    fields = recorded(RESPONSE, request_headers=headers)
    assert fields["client_session_id"] == "first"
    assert fields["verifier_invocation"] == {"invocation_id": "judge 1", "name": "naïve"}
    long = recorded(RESPONSE, request_headers=[(b"x-claude-code-session-id", b"s" * 10_000)])
    assert long["client_session_id"] == "s" * 256


def test_notes_are_taken_by_name_and_type_only() -> None:
    notes = {
        "upstream_attempted": True,
        "response_source": "upstream",
        "upstream_status_code": 502,
        "local_response_reason": ["no text"],
        "error_category": "connection",
        "request": {"not": "yours"},
        "model_call_id": "other",
    }
    fields = recorded(RESPONSE, status=502, notes=notes)
    assert fields == {
        "request": REQUEST,
        "response": RESPONSE,
        "status_code": 502,
        "error_category": "connection",
        "upstream_attempted": True,
        "response_source": "upstream",
        "upstream_status_code": 502,
    }
    assert recorded(RESPONSE, status=502, notes={"error_category": "made up"})["error_category"] == "upstream_error"


def test_every_category_is_of_the_contract() -> None:
    assert len(CATEGORIES) == 13
    assert {recorded(RESPONSE, status=status)["error_category"] for status in range(400, 600)} < CATEGORIES
