"""Frames and segment headers: the same bytes for ever, and no damaged head that passes for a good one."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given, settings

from gym_capture.errors import DamagedLog, FormatError
from gym_capture.model.codec import (
    FRAME_HEAD_BYTES,
    MAX_FRAME_BYTES,
    SEGMENT_HEAD_BYTES,
    FrameHead,
    FrameKind,
    FrameRef,
    SegmentHead,
    checksum,
    decode_rows,
    encode_frame_head,
    encode_rows,
    encode_segment_head,
    head_matches,
    parse_frame_head,
    parse_segment_head,
)
from gym_capture.model.rows import (
    ClaimRow,
    ClearRow,
    CommitRow,
    CutRow,
    LossRow,
    MarkRow,
    MergeRow,
    OpenRow,
    Part,
    ReleaseRow,
    Result,
    Row,
    SealRow,
    SenderRow,
    result_of,
)
from tests.model import worked_example

texts = st.text(max_size=8)
small = st.integers(0, 3)
wide = st.integers(-(2**63), 2**64 - 1)
counts = st.integers(0, 2**64 - 1)
parts = st.lists(st.builds(Part, wide, wide, wide, wide, wide, wide), max_size=3)
rows = st.one_of(
    st.builds(SenderRow, st.binary(max_size=16), wide, wide),
    st.builds(ClaimRow, texts, wide, texts, wide, st.floats(allow_nan=False), small),
    st.builds(CommitRow, texts, wide, texts, st.binary(max_size=16), parts, wide, wide, small),
    st.builds(ReleaseRow, texts, wide, texts, wide, small),
    st.builds(MarkRow, texts, texts, wide, wide, small),
    st.builds(ClearRow, texts, texts, wide, small),
    st.builds(LossRow, texts, wide, st.binary(max_size=16), wide),
    st.builds(MergeRow, texts, wide, wide, wide),
    st.builds(OpenRow, wide, st.floats(allow_nan=False), texts),
    st.builds(CutRow, wide, wide, wide),
    st.builds(SealRow, wide, wide, wide),
)


def read_frame(data: bytes) -> tuple[FrameHead, list[Row], bytes] | None:
    """A frame as a reader takes it: None unless the head and its checksum fit and all of it is there."""
    head = parse_frame_head(data)
    if head is None:
        return None
    encoded = data[FRAME_HEAD_BYTES : FRAME_HEAD_BYTES + head.head_bytes]
    if (
        len(encoded) < head.head_bytes
        or not head_matches(data, encoded, worked_example.HEAD.key)
        or len(data) < head.total_bytes
    ):
        return None
    return head, decode_rows(encoded), data[FRAME_HEAD_BYTES + head.head_bytes : head.total_bytes]


@settings(deadline=None)
@given(
    st.lists(rows, max_size=6),
    st.binary(max_size=30),
    st.sampled_from(FrameKind),
    st.integers(0, 255),
    st.integers(0, 2**32 - 1),
    counts,
)
def test_a_frame_comes_back(
    given_rows: list[Row], body: bytes, kind: FrameKind, flags: int, epoch: int, sequence: int
) -> None:
    encoded = encode_rows(given_rows)
    fixed = encode_frame_head(
        encoded,
        key=worked_example.HEAD.key,
        kind=kind,
        flags=flags,
        epoch=epoch,
        group=7,
        sequence=sequence,
        row_count=len(given_rows),
        body_bytes=len(body),
    )
    assert len(fixed) == FRAME_HEAD_BYTES
    frame = read_frame(fixed + encoded + body + b"what follows")
    head = FrameHead(kind, flags, epoch, 7, sequence, len(given_rows), len(encoded), len(body))
    assert frame == (head, given_rows, body)
    assert head.total_bytes == len(fixed + encoded + body)
    assert read_frame(fixed + encoded + body) == frame
    assert parse_frame_head(memoryview(fixed)) == head
    assert head_matches(memoryview(fixed), memoryview(encoded), worked_example.HEAD.key)


def test_no_truncated_frame_passes() -> None:
    frame = worked_example.frame()
    assert read_frame(frame) is not None
    for length in range(len(frame)):
        assert read_frame(frame[:length]) is None


def test_no_flipped_bit_of_a_head_passes() -> None:
    frame = worked_example.frame()
    whole = read_frame(frame)
    assert whole is not None
    protected = len(frame) - len(whole[2])
    for position in range(protected):
        for bit in range(8):
            flipped = bytearray(frame)
            flipped[position] ^= 1 << bit
            assert read_frame(bytes(flipped)) is None


def test_a_frame_of_another_run_or_segment_is_none() -> None:
    frame = worked_example.frame()
    head = parse_frame_head(frame)
    assert head is not None
    rows = frame[FRAME_HEAD_BYTES : FRAME_HEAD_BYTES + head.head_bytes]
    assert head_matches(frame, rows, SegmentHead(1, 0, worked_example.RUN).key)
    for epoch, number, run in ((1, 0, bytes(16)), (1, 1, worked_example.RUN), (2, 0, worked_example.RUN)):
        assert not head_matches(frame, rows, SegmentHead(epoch, number, run).key)


def test_a_flipped_bit_of_the_body_costs_its_part_only() -> None:
    frame = bytearray(worked_example.frame())
    frame[-1] ^= 1
    read = read_frame(bytes(frame))
    assert read is not None
    _, logged, body = read
    (commit,) = [row for row in logged if isinstance(row, CommitRow)]
    fit = [checksum(body[part.offset : part.offset + part.length]) == part.crc for part in commit.parts]
    assert fit == [True, False]


def test_a_head_that_announces_more_than_any_frame_holds_is_none() -> None:
    def head(body_bytes: int) -> bytes:
        return encode_frame_head(
            b"", key=worked_example.HEAD.key, kind=1, epoch=1, group=1, sequence=1, row_count=0, body_bytes=body_bytes
        )

    assert parse_frame_head(head(MAX_FRAME_BYTES - FRAME_HEAD_BYTES)) is not None
    assert parse_frame_head(head(MAX_FRAME_BYTES - FRAME_HEAD_BYTES + 1)) is None


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=80))
@example(b"\x91\x92\x02\xa2\xff\xfe")
@example(b"\x91\x99\x02" + b"\x91" * 5000)
@example(b"\x91" * 5000)
@example(b"\xdd\xff\xff\xff\xff")
@example(msgspec.msgpack.encode([[2, "7-0", 1, "c", 0, 0.0, 0, "a field to come", [[]]]]))
@example(msgspec.msgpack.encode([[25, b"digest"]]))
@example(b"\x91\x9a\x02\xa1a\x01\xa1c\x00\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x00" + b"\x91" * 5000)
def test_bytes_that_are_no_rows_are_damage(data: bytes) -> None:
    try:
        decode_rows(data)
    except DamagedLog as error:
        assert "newer gym_capture" in str(error)  # noqa: PT017 - anything else is an error of the test


def test_fields_to_come_are_passed_over_and_those_with_defaults_may_be_missing() -> None:
    assert decode_rows(msgspec.msgpack.encode([[2, "7-0", 1, "c", 4, 0.0, 0, "new"]])) == [ClaimRow("7-0", 1, "c", 4)]
    assert decode_rows(msgspec.msgpack.encode([[2, "7-0", 1]])) == [ClaimRow("7-0", 1)]


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.binary(min_size=16, max_size=16))
def test_a_segment_header_comes_back(epoch: int, number: int, run: bytes) -> None:
    head = SegmentHead(epoch, number, run)
    data = encode_segment_head(head)
    assert len(data) == SEGMENT_HEAD_BYTES
    assert parse_segment_head(data + b"frames") == head
    assert parse_segment_head(memoryview(data)) == head


def test_no_damaged_segment_header_passes() -> None:
    data = worked_example.segment()
    for length in range(len(data)):
        with pytest.raises(DamagedLog):
            parse_segment_head(data[:length])
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(DamagedLog):
                parse_segment_head(bytes(flipped))


def test_a_segment_of_another_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_capture.model.codec.FORMAT_VERSION", 3)
    data = worked_example.segment()
    monkeypatch.undo()
    with pytest.raises(FormatError, match="format version 3, this gym_capture reads 2"):
        parse_segment_head(data)


def test_the_checksum_is_crc_32c() -> None:
    # RFC 3720, appendix B.4.
    assert checksum(bytes(32)) == 0x8A9136AA
    assert checksum(memoryview(b"\xff" * 32)) == 0x62A8AB43
    assert checksum(bytes(range(32))) == 0x46DD794E
    assert checksum(b"123456789") == 0xE3069283


def test_a_result_is_what_its_row_says() -> None:
    assert result_of(CommitRow("7-0", 1, "c", b"d", [], 4, 9, 1)) == Result(1, 4, 9)
    assert result_of(ClaimRow("7-0", 1, "c", 4, 0.0, 2)) == Result(2, 4, -1)


def test_a_frame_reference_is_filled_in_later() -> None:
    ref = FrameRef(17, 1)
    assert (ref.sequence, ref.epoch, ref.segment, ref.body_offset) == (17, 1, -1, -1)
