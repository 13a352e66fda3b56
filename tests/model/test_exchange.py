"""Exchanges come back as they were: byte for byte where bytes were given, value for value otherwise."""

from __future__ import annotations

import math
import threading
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings

from gym_capture.errors import DamagedLog, ExchangeTooLarge, FormatError, InvalidExchange
from gym_capture.model import exchange as exchanges
from gym_capture.model.codec import checksum
from gym_capture.model.exchange import (
    PAYLOADS,
    SealedExchange,
    check_dialect,
    decode_fields,
    encode_fields,
    open_exchange,
    open_part,
    open_record,
    pack,
    payloads_of,
    seal,
    snapshot,
)
from gym_capture.model.record import derive_fields
from gym_capture.model.rows import Part, PartFlag, PartKind
from tests.model.exact import exact
from tests.model.test_json_text import any_text, nested, values

CHAT: dict[str, Any] = {
    "model_call_id": "call-1",
    "dialect": "chat",
    "model_ref": {"type": "model", "name": "policy"},
    "status_code": 200,
    "request": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "response": {
        "id": "r1",
        "choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    },
    "latency_ms": 12.5,
}


def stored(sealed: SealedExchange) -> list[tuple[Part, bytes]]:
    """The parts and their bytes as they lie in a frame's body."""
    body = b"".join(sealed.body)
    assert len(body) == sealed.body_bytes
    return [(part, body[part.offset : part.offset + part.length]) for part in sealed.parts]


def opened(sealed: SealedExchange) -> list[tuple[Part, bytes]]:
    return [(part, open_part(part, data)) for part, data in stored(sealed)]


def part_of(sealed: SealedExchange, kind: PartKind) -> tuple[Part, bytes]:
    (found,) = [(part, data) for part, data in opened(sealed) if part.kind == kind]
    return found


def record_of(sealed: SealedExchange) -> dict[str, Any]:
    return open_record(part_of(sealed, PartKind.RECORD)[1])[0]


# -- round trips --------------------------------------------------------------------------------------------------


def test_an_exchange_comes_back_with_its_keys_in_order() -> None:
    given_exchange = {**CHAT, "response_raw": None, "x-unknown": [1, {"b": 1, "a": 2}], "client_session_id": "s"}
    sealed = seal(given_exchange)
    assert exact(open_exchange(opened(sealed))) == exact(given_exchange)
    assert record_of(sealed) == derive_fields(given_exchange)
    assert [part.kind for part in sealed.parts] == [
        PartKind.RECORD,
        PartKind.META,
        PartKind.REQUEST,
        PartKind.RESPONSE,
    ]
    assert [part.flags & ~PartFlag.ZSTD for part in sealed.parts] == [0, 0, 0, 0]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    request=values,
    response=values,
    raw=st.none() | any_text,
    unknown=st.dictionaries(any_text.filter(lambda key: key not in CHAT and key not in PAYLOADS), values, max_size=3),
    call_id=any_text.filter(bool),
)
@example(
    request={"a": math.nan, "b": None}, response=10**30, raw="\ud800", unknown={"\ud800": [None]}, call_id="\ud800"
)
def test_any_values_come_back_exactly(
    request: Any, response: Any, raw: str | None, unknown: dict[str, Any], call_id: str
) -> None:
    given_exchange = {
        **unknown,
        "model_call_id": call_id,
        "dialect": "responses",
        "response": response,
        "request": request,
        "response_raw": raw,
    }
    sealed = seal(given_exchange)
    assert exact(open_exchange(opened(sealed))) == exact(given_exchange)
    assert exact(payloads_of(opened(sealed))) == exact(
        {"request": request, "response": response, "request_raw": None, "response_raw": raw}
    )
    sealed.model_call_id.encode()
    assert exact(record_of(sealed)) == exact(derive_fields(given_exchange))


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=2000), raw=st.binary(max_size=300))
@example(body=b'{"a": 1.0, "a" : [2 ,NaN]}', raw=b"\xff")
@example(body=b"", raw=b"")
@example(body=b"x" * 300, raw=b"x" * 100_000)
def test_bytes_come_back_byte_for_byte(body: bytes, raw: bytes) -> None:
    sealed = seal({"dialect": "chat", "request": body, "response": bytearray(body), "response_raw": memoryview(raw)})
    for kind, expected in ((PartKind.REQUEST, body), (PartKind.RESPONSE, body), (PartKind.RESPONSE_RAW, raw)):
        part, data = part_of(sealed, kind)
        assert data == expected
        assert part.flags & PartFlag.BYTES
        assert part.raw == len(expected)
    open_exchange(opened(sealed))


@pytest.mark.parametrize(
    ("body", "flags", "value"),
    [
        (b'{"a" : 1.50}', 0, {"a": 1.5}),
        (b'{"a": NaN}', PartFlag.NONSTANDARD, {"a": math.nan}),
        (b"123456789012345678901234567890", PartFlag.NONSTANDARD, 123456789012345678901234567890),
        (b'["\\ud800"]', PartFlag.NONSTANDARD, ["\ud800"]),
        (b"1" * 200, PartFlag.NONSTANDARD, int("1" * 200)),
    ],
)
def test_json_that_was_given_as_bytes_comes_back_parsed_and_flagged(body: bytes, flags: int, value: Any) -> None:
    sealed = seal({"dialect": "chat", "request": body})
    assert part_of(sealed, PartKind.REQUEST)[0].flags == PartFlag.BYTES | flags
    assert exact(open_exchange(opened(sealed))["request"]) == exact(value)


@pytest.mark.parametrize(
    ("body", "text"),
    [(b"upstream error", "upstream error"), (b"", ""), (b"caf\xe9", "caf\\xe9"), (b"[" * 5000, "[" * 5000)],
)
def test_what_is_no_json_comes_back_as_text_under_the_raw_key(body: bytes, text: str) -> None:
    sealed = seal({"dialect": "chat", "response": body, "request": {}})
    assert part_of(sealed, PartKind.RESPONSE)[0].flags & PartFlag.NOT_JSON
    exchange = open_exchange(opened(sealed))
    assert (exchange["response"], exchange["response_raw"]) == (None, text)
    assert payloads_of(opened(sealed)) == {
        "request": {},
        "response": None,
        "request_raw": None,
        "response_raw": text,
    }
    assert record_of(sealed)["error_category"] == "capture_parse_error"


def test_the_raw_text_that_was_given_stands_and_so_does_the_error_category() -> None:
    sealed = seal({"dialect": "chat", "response": b"no", "response_raw": "given", "error_category": "timeout"})
    exchange = open_exchange(opened(sealed))
    assert (exchange["response"], exchange["response_raw"]) == (None, "given")
    assert record_of(sealed)["error_category"] == "timeout"
    assert part_of(sealed, PartKind.RESPONSE)[1] == b"no"


def test_deep_nesting_and_long_strings_are_kept() -> None:
    given_exchange = {**CHAT, "request": nested(100), "response": {"text": "é\n" * 5_000_000}}
    sealed = seal(given_exchange)
    assert open_exchange(opened(sealed)) == given_exchange
    assert sealed.body_bytes < 100_000


def test_what_can_be_stored_can_be_read_from_deep_inside_a_program() -> None:
    """Nesting that the interpreter follows in one place and not in another comes back as text there."""
    sealed = seal({"dialect": "chat", "request": b"[" * 800 + b"]" * 800})

    def deeper(levels: int) -> dict[str, Any]:
        return deeper(levels - 1) if levels else open_exchange(opened(sealed))

    exchange = deeper(400)
    assert exchange["request"] is None or exchange["request_raw"] == "[" * 800 + "]" * 800


# -- what is derived ----------------------------------------------------------------------------------------------


class Sdk:
    """A response as a client library gives it."""

    def model_dump(self, mode: str) -> Any:
        return CHAT["response"]


@pytest.mark.parametrize(
    "response",
    [Sdk(), {**CHAT["response"], "choices": tuple(CHAT["response"]["choices"])}, msgspec.json.encode(CHAT["response"])],
    ids=["object", "tuple", "bytes"],
)
def test_a_record_is_derived_from_what_is_stored_whatever_was_given(response: Any) -> None:
    sealed = seal({**CHAT, "response": response})
    assert record_of(sealed) == derive_fields(CHAT)
    assert open_exchange(opened(sealed)) == CHAT


def test_a_snapshot_is_not_touched_by_what_happens_to_the_exchange_later() -> None:
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": [1]}}}
    message: dict[str, Any] = {"content": None, "tool_calls": [call]}
    given_exchange: dict[str, Any] = {**CHAT, "extra": [1], "response": {"choices": [{"message": message}]}}
    expected = exact(given_exchange)
    frozen = snapshot(given_exchange)
    fields = exact(derive_fields(given_exchange))
    given_exchange["extra"].append(2)
    given_exchange["request"]["messages"] = []
    call["function"]["arguments"]["x"].append(2)  # type: ignore[index]
    message["tool_calls"].append(call)
    sealed = pack(frozen)
    assert exact(open_exchange(opened(sealed))) == expected
    assert exact(record_of(sealed)) == fields
    CHAT["request"]["messages"] = [{"role": "user", "content": "hi"}]


def test_a_verifier_declaration_is_in_the_record() -> None:
    declared = {"invocation_id": "v1", "name": "judge"}
    requests: list[Any] = [{}, b"{}"]
    for request in requests:
        sealed = seal({**CHAT, "verifier_invocation": declared, "request": request})
        fields, declaration = open_record(part_of(sealed, PartKind.RECORD)[1])
        assert declaration == ("v1", "judge")
        assert fields["verifier_invocation_id"] == "v1"
        assert "verifier_invocation" not in fields


# -- identity -----------------------------------------------------------------------------------------------------


def test_the_digest_is_that_of_the_bytes_as_given() -> None:
    base = {**CHAT, "response": b'{"a":1}'}
    digest = seal(base).digest
    assert len(digest) == 16
    assert seal(dict(base)).digest == digest
    assert seal({**base, "response": bytearray(b'{"a":1}')}).digest == digest
    others = [
        {**base, "response": b'{"a": 1}'},
        {**base, "response": b'{"a":1.0}'},
        {**base, "request": b'{"a":1}', "response": CHAT["request"]},
        {**base, "response_raw": b'{"a":1}', "response": None},
        {**base, "status_code": 201},
        {**base, "extra": None},
        {key: base[key] for key in reversed(base)},
    ]
    assert len({digest, *(seal(other).digest for other in others)}) == len(others) + 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), min_size=2, max_size=2))
def test_digests_are_equal_only_for_equal_bytes(pairs: list[tuple[bytes, bytes]]) -> None:
    sealed = [seal({**CHAT, "request": request, "response": response}) for request, response in pairs]
    assert (sealed[0].digest == sealed[1].digest) == (pairs[0] == pairs[1])


def test_a_missing_id_is_made_up_once() -> None:
    frozen = snapshot({"dialect": "chat"})
    assert len(frozen.model_call_id) == 32
    sealed = pack(frozen)
    assert sealed.model_call_id == frozen.model_call_id == open_exchange(opened(sealed))["model_call_id"]
    assert snapshot({"dialect": "chat"}).model_call_id != frozen.model_call_id


@pytest.mark.parametrize(
    ("given_exchange", "message"),
    [
        ("text", "is a mapping, not a str"),
        ({}, "dialect None is not known; use one of responses, chat, messages"),
        ({"dialect": "grpc"}, "dialect 'grpc' is not known"),
        ({"dialect": ["chat"]}, "is not known"),
        ({"dialect": "chat", "model_call_id": 7}, "model_call_id must be a non-empty string, not 7"),
        ({"dialect": "chat", "model_call_id": ""}, "non-empty"),
        ({"dialect": "chat", "request": object()}, "cannot be written as JSON"),
        ({"dialect": "chat", "extra": b"bytes"}, "bytes inside a value"),
        ({"dialect": "chat", 1: 1, "1": 2}, "two keys"),
    ],
)
def test_what_is_no_exchange_is_refused_with_a_reason(given_exchange: Any, message: str) -> None:
    with pytest.raises(InvalidExchange, match=message):
        snapshot(given_exchange)


def test_the_dialects() -> None:
    assert [check_dialect(name) for name in exchanges.DIALECTS] == ["responses", "chat", "messages"]


def test_an_exchange_that_no_reader_would_unpack_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "MAX_RAW_BYTES", 1000)
    snapshot({"dialect": "chat", "request": b"x" * 500})
    with pytest.raises(ExchangeTooLarge, match="at most 1000 are stored"):
        snapshot({"dialect": "chat", "request": b"x" * 1000})


def test_the_bytes_of_a_snapshot_are_those_before_compression() -> None:
    frozen = snapshot({"model_call_id": "c", "dialect": "chat", "request": b"x" * 5000})
    assert frozen.raw_bytes == 5000 + len(b'{"model_call_id":"c","dialect":"chat","request":null}')
    assert pack(frozen).body_bytes < 600


def test_threads_may_pack_at_once() -> None:
    given_exchange = {**CHAT, "request": {"text": "abc " * 5000}}
    expected = seal(given_exchange)
    found: list[SealedExchange] = []
    threads = [threading.Thread(target=lambda: found.append(seal(given_exchange))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8


# -- damage -------------------------------------------------------------------------------------------------------


def test_every_flipped_bit_and_every_truncation_of_a_part_is_damage() -> None:
    sealed = seal({**CHAT, "request": {"text": "abcd" * 200}})
    for part, data in stored(sealed):
        for position in range(len(data)):
            flipped = bytearray(data)
            flipped[position] ^= 1 << position % 8
            with pytest.raises(DamagedLog):
                open_part(part, bytes(flipped))
            with pytest.raises(DamagedLog):
                open_part(part, data[:position])
        with pytest.raises(DamagedLog):
            open_part(part, data + b"\0")


def bomb(raw: int, *, sized: bool = True) -> bytes:
    if sized:
        return zstandard.ZstdCompressor().compress(bytes(raw))
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(bytes(raw)) + stream.flush()


@pytest.mark.parametrize(
    ("data", "raw", "flags"),
    [
        (bomb(50_000_000), 10, PartFlag.ZSTD),
        (bomb(1000), 50_000_000, PartFlag.ZSTD),
        (bomb(1000, sized=False), 1000, PartFlag.ZSTD),
        (bomb(1000) + b"more", 1000, PartFlag.ZSTD),
        (bomb(1000)[:-3], 1000, PartFlag.ZSTD),
        (b"not zstd", 8, PartFlag.ZSTD),
        (b"", 0, PartFlag.ZSTD),
        (b"plain", 6, 0),
    ],
)
def test_a_part_that_is_not_as_long_as_its_row_says_is_damage(data: bytes, raw: int, flags: int) -> None:
    part = Part(PartKind.REQUEST, flags, 0, len(data), raw, checksum(data))
    with pytest.raises(DamagedLog, match="a stored request"):
        open_part(part, data)


def test_a_row_that_promises_more_than_any_part_holds_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "MAX_RAW_BYTES", 999)
    data = bomb(1000)
    with pytest.raises(DamagedLog):
        open_part(Part(PartKind.REQUEST, PartFlag.ZSTD, 0, len(data), 1000, checksum(data)), data)


def test_a_damaged_part_of_a_kind_to_come_is_named_by_its_number() -> None:
    with pytest.raises(DamagedLog, match="part of kind 99"):
        open_part(Part(99, 0, 0, 1, 1, 0), b"x")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
@example(b"{")
@example(b"\x80")
@example(b"\x91" * 5000)
@example(b"{" + b'"a":[' * 5000)
@example(b"\xa2\xff\xfe")
@example(b"\xd6\xff\x00\x00\x00\x00")
def test_fields_and_meta_that_this_package_never_made_are_damage(data: bytes) -> None:
    part = Part(PartKind.META, 0, 0, len(data), len(data), checksum(data))
    for read in (decode_fields, lambda data: open_exchange([(part, data)])):
        try:
            assert isinstance(read(data), dict)
        except DamagedLog:
            pass  # as it should be


def test_an_exchange_without_its_meta_or_with_unknown_parts_cannot_be_opened() -> None:
    parts = [(part, data) for part, data in opened(seal(CHAT)) if part.kind != PartKind.META]
    with pytest.raises(DamagedLog, match="META"):
        open_exchange(parts)
    assert payloads_of(parts)["request"] == CHAT["request"]
    with pytest.raises(FormatError, match="part of kind 9"):
        open_exchange([*parts, (Part(9, 0, 0, 0, 0, 0), b"")])


# -- fields -------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(any_text, values, max_size=5))
@example({"a": 10**30, "b": "\ud800", "c": math.nan})
def test_fields_come_back(fields: dict[str, Any]) -> None:
    assert exact(decode_fields(encode_fields(fields))) == exact(fields)


def test_a_missing_id_comes_from_whoever_makes_ids() -> None:
    assert snapshot({"dialect": "chat"}, lambda: "made-up").model_call_id == "made-up"
    assert snapshot({"dialect": "chat", "model_call_id": "given"}, lambda: "made-up").model_call_id == "given"
    assert snapshot({"dialect": "chat"}).model_call_id != snapshot({"dialect": "chat"}).model_call_id
