"""One small conversation and the log that it leaves: the bytes that `docs/format.md` walks through."""

from __future__ import annotations

from gym_capture.model.codec import (
    FrameKind,
    SegmentHead,
    checksum,
    encode_frame_head,
    encode_rows,
    encode_segment_head,
)
from gym_capture.model.messages import Answers, Batch, Hello, Welcome, encode_message
from gym_capture.model.rows import ClaimRow, ClientRow, CommitRow, Part, PartFlag, PartKind, Result, Row, SenderRow

CLIENT = bytes(range(16))
RUN = bytes(range(0x10, 0x20))
HEAD = SegmentHead(1, 0, RUN)
DIGEST = bytes(range(0x20, 0x30))
RECORD = b"\x80"
REQUEST = b'{"a":1}'

PARTS = [
    Part(PartKind.RECORD, 0, 0, len(RECORD), len(RECORD), checksum(RECORD)),
    Part(PartKind.REQUEST, PartFlag.BYTES, len(RECORD), len(REQUEST), len(REQUEST), checksum(REQUEST)),
]
BODY = RECORD + REQUEST

LOGGED: list[Row] = [
    SenderRow(CLIENT, 2, 1),
    ClaimRow("7-0", 5, "c1", 0, 1_700_000_000.5, 0),
    CommitRow("7-0", 5, "c1", DIGEST, PARTS, 0, 3, 0),
]


def segment() -> bytes:
    return encode_segment_head(HEAD)


def frame() -> bytes:
    rows = encode_rows(LOGGED)
    head = encode_frame_head(
        rows,
        key=HEAD.key,
        kind=FrameKind.BATCH,
        epoch=1,
        group=9,
        sequence=17,
        row_count=len(LOGGED),
        body_bytes=len(BODY),
    )
    return head + rows + BODY


def hello() -> bytes:
    return b"".join(encode_message(Hello(2, "0.1.0", "secret", RUN.hex(), CLIENT, [4], "node-1 pid 77")))


def welcome() -> bytes:
    return b"".join(encode_message(Welcome(2, "0.1.0", RUN.hex(), 1, 6.0, 1 << 23, 1 << 26, 1 << 22)))


def batch() -> bytes:
    rows: list[ClientRow] = [ClaimRow("7-0", 5, "c1"), CommitRow("7-0", 5, "c1", DIGEST, PARTS)]
    return b"".join(encode_message(Batch(2, 1, rows), [RECORD, REQUEST]))


def answers() -> bytes:
    return b"".join(encode_message(Answers(2, [Result(0, 0), Result(0, 0, 3)])))


EXAMPLES = {
    "segment header": segment,
    "frame": frame,
    "hello": hello,
    "welcome": welcome,
    "batch": batch,
    "answers": answers,
}
