"""Messages on a connection: cut anywhere they are the same, and bytes that are none are a ProtocolError."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given, settings

from gym_capture.errors import ProtocolError
from gym_capture.model import messages
from gym_capture.model.messages import (
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    PREFIX_BYTES,
    Answers,
    Batch,
    Beat,
    BeatReply,
    Call,
    Cancel,
    Failure,
    FromClient,
    FromOwner,
    Goodbye,
    Hello,
    Merge,
    MergeReply,
    MessageSplitter,
    PartsReply,
    Quiesce,
    ReadParts,
    Refused,
    Reply,
    Stats,
    Stop,
    StoredEntry,
    StoredMessages,
    Welcome,
    decode_from_client,
    decode_from_owner,
    encode_message,
)
from gym_capture.model.rows import ClaimRow, ClearRow, CommitRow, MarkRow, Part, ReleaseRow, Result
from tests.model import worked_example

PART = Part(0, 1, 2, 3, 4, 5)

FROM_CLIENT: list[FromClient] = [
    Hello(1, "0.1.0", "token", "run", b"c" * 16, [1, 2**40], "host"),
    Batch(1, 0, []),
    Batch(
        7,
        6,
        [
            ClaimRow("7-0", 1, "c"),
            CommitRow("7-0", 1, "c", b"d" * 16, [PART]),
            ReleaseRow("7-0", 2, ""),
            MarkRow("7-0", "dropped", 3),
            ClearRow("7-0", "request"),
        ],
    ),
    Call(1, Quiesce("7-0", 10.0)),
    Call(2, Quiesce(None, 0.0)),
    Call(3, Merge("7-0", -1, 12)),
    Call(4, Stats(None)),
    Call(5, Stop()),
    Call(6, ReadParts("7-0", 2, [0, 5])),
    Cancel(3),
    Beat(),
    Goodbye(),
]
FROM_OWNER: list[FromOwner] = [
    Welcome(1, "0.1.0", "run", 3, 6.0, 1, 2, 3),
    Refused("HandshakeRefused", "no"),
    Answers(1, [Result(0, 1, 2), Result(3, 4)]),
    Answers(1, None),
    Reply(1, True),
    Reply(2, {"claims": 3, "clients": [{"place": "host"}], "late": None}),
    Failure(3, "OwnerUnavailable", "away"),
    BeatReply(9),
]


def joined(message: FromClient | FromOwner, body: tuple[bytes, ...] = ()) -> bytes:
    return b"".join(encode_message(message, body))


def test_every_message_comes_back() -> None:
    splitter = MessageSplitter(1 << 20)
    for message in FROM_CLIENT:
        ((head, body),) = splitter.feed(joined(message, (b"a", b"", b"bc")))
        assert (decode_from_client(head), body) == (message, b"abc")
    for reply in FROM_OWNER:
        ((head, body),) = splitter.feed(joined(reply))
        assert (decode_from_owner(head), body) == (reply, b"")
    assert splitter.pending_bytes == 0


def test_replies_travel_as_mappings() -> None:
    replies: list[tuple[Any, Any]] = [
        (MergeReply("7-0", 2, [(0, b"record")], 1, {"lost": 1}, 0), MergeReply),
        (PartsReply([StoredEntry(3, [PART])], [StoredMessages("c:1", [(0, PART)], [(0, 5)])]), PartsReply),
    ]
    for reply, kind in replies:
        head = encode_message(Reply(1, reply))[0][PREFIX_BYTES:]
        decoded = decode_from_owner(head)
        assert isinstance(decoded, Reply)
        assert msgspec.convert(decoded.value, kind) == reply


bodies = st.lists(st.binary(max_size=40), max_size=3)


@settings(deadline=None)
@given(st.data(), st.lists(st.tuples(st.sampled_from(FROM_CLIENT), bodies), max_size=6))
def test_messages_are_the_same_whatever_pieces_they_come_in(
    data: st.DataObject, sent: list[tuple[FromClient, list[bytes]]]
) -> None:
    stream = b"".join(b"".join(encode_message(message, body)) for message, body in sent)
    splitter = MessageSplitter(1 << 16)
    found: list[tuple[bytes, bytes]] = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(0, 60))
        found += splitter.feed(stream[at : at + size])
        at += size
        assert splitter.pending_bytes <= at
    assert [(decode_from_client(head), body) for head, body in found] == [
        (message, b"".join(body)) for message, body in sent
    ]
    assert splitter.pending_bytes == 0


def test_messages_come_byte_by_byte() -> None:
    stream = worked_example.hello() + worked_example.batch()
    splitter = MessageSplitter(1 << 16)
    arrived = [index for index in range(len(stream)) for _ in splitter.feed(stream[index : index + 1])]
    assert arrived == [len(worked_example.hello()) - 1, len(stream) - 1]


@pytest.mark.parametrize(
    ("limit", "head", "body", "taken"),
    [
        (100, 60, 40, True),
        (100, 61, 40, False),
        (100, 0, 101, False),
        (1 << 40, MAX_HEAD_BYTES, MAX_BODY_BYTES, True),
        (1 << 40, MAX_HEAD_BYTES + 1, 0, False),
        (1 << 40, 0, MAX_BODY_BYTES + 1, False),
        (1 << 40, 2**32 - 1, 2**32 - 1, False),
    ],
)
def test_what_is_announced_too_large_is_refused_before_it_comes(limit: int, head: int, body: int, taken: bool) -> None:
    splitter = MessageSplitter(limit)
    prefix = struct.pack("<II", head, body)
    if taken:
        assert splitter.feed(prefix) == []
    else:
        with pytest.raises(ProtocolError, match=f"{head} \\+ {body} bytes was announced"):
            splitter.feed(prefix)
        with pytest.raises(ProtocolError):
            splitter.feed(b"")


def test_the_limit_may_be_raised_once_the_sender_is_known() -> None:
    splitter = MessageSplitter(10)
    splitter.max_bytes = 1000
    assert splitter.feed(struct.pack("<II", 1, 500) + bytes(501)) == [(b"\0", bytes(500))]


def test_messages_before_a_bad_one_are_lost_with_the_connection() -> None:
    splitter = MessageSplitter(1000)
    with pytest.raises(ProtocolError):
        splitter.feed(joined(Beat()) + b"GET / HTTP/1.1\r\n\r\n")


HOSTILE = [
    b"",
    b"\x00",
    b"\xc1",
    b"\x80",
    b"\x91\xff",
    b"\x91\x63",
    b"\x93\x02\x01\x00",
    b"\x94\x02\x01\x00\x91\x92\x02\xa2\xff\xfe",
    b"\x98\x01\x01\xa1v\xa1t\xa1r\xa1x\x90\xa1p",
    b"\x93\x04\x01" + b"\x91" * 5000 + b"\x00",
    b"\x93\x04\x01" + b"\x81\xa1a" * 5000 + b"\x00",
    b"\x93\x04\x01\xc7\x0c\xff" + b"\xff" * 12,
    b"\x93\x04\x01\xc7\x0c\xff" + b"\x00" * 4 + b"\x7f" + b"\xff" * 7,
    b"\x93\x04\x01\x81\x80\x01",
    b"\x93\x04\x01\x81\x90\x01",
    b"\x93\x04\xcf" + b"\xff" * 8 + b"\xc0",
    b"\xdd\xff\xff\xff\xff",
    b"\x92\x05\xc0" + b"\x91" * 5000,
    b"\x95\x02\x01\x00\x90" + b"\x91" * 5000,
]


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60) | st.sampled_from(HOSTILE))
def test_garbage_is_a_protocol_error_and_nothing_else(data: bytes) -> None:
    decoders: list[Callable[[bytes], Any]] = [decode_from_client, decode_from_owner]
    for decode in decoders:
        try:
            decode(data)
        except ProtocolError as error:
            assert "sent something that is no message" in str(error)  # noqa: PT017 - anything else fails the test


@pytest.mark.parametrize("data", HOSTILE)
def test_hostile_bytes_are_a_protocol_error_or_a_harmless_message(data: bytes) -> None:
    for decode in (decode_from_client, decode_from_owner):
        try:
            message = decode(data)
        except ProtocolError:
            continue
        assert isinstance(message, Reply | Beat | Cancel | Failure | Refused | Answers | BeatReply | Batch)


@settings(deadline=None, max_examples=300)
@given(st.data())
@example(None)
def test_a_changed_message_is_a_message_or_a_protocol_error(data: st.DataObject | None) -> None:
    if data is None:
        return
    message = data.draw(st.sampled_from([*FROM_CLIENT, *FROM_OWNER]))
    head = bytearray(encode_message(message)[0][PREFIX_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        head[data.draw(st.integers(0, len(head) - 1))] = data.draw(st.integers(0, 255))
    for decode in (decode_from_client, decode_from_owner):
        try:
            decode(bytes(head))
        except ProtocolError:
            pass  # as it should be


def test_a_message_is_sent_without_copying_its_body() -> None:
    body: list[bytes | memoryview] = [b"x" * 1000, memoryview(b"y" * 10)]
    buffers = encode_message(Batch(1, 0, []), body)
    assert buffers[1] is body[0]
    assert buffers[2] is body[1]
    assert len(buffers[0]) == PREFIX_BYTES + 5


def test_all_messages_are_tried_here() -> None:
    for union, tried in ((FromClient, FROM_CLIENT), (FromOwner, FROM_OWNER)):
        assert set(union.__args__) == {type(message) for message in tried}
    requests = {type(message.request) for message in FROM_CLIENT if isinstance(message, Call)}
    assert requests == set(messages.Request.__args__)
