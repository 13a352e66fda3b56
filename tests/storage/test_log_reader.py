"""The decoder: frames come back as they were written, tears and damage are told apart, and nothing is loaded whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_capture.errors import FormatError
from gym_capture.model.codec import FRAME_MAGIC, SEGMENT_HEAD_BYTES, FrameFlag, FrameKind, FrameRef, PendingFrame
from gym_capture.model.rows import ClaimRow, CommitRow, LossRow, MarkRow, Part, Row, SenderRow
from gym_capture.storage.log_reader import Damage, Frame, never_written, read_frames
from gym_capture.storage.names import SegmentName
from gym_capture.storage.segments import SegmentWriter
from gym_capture.testing.faulty_files import FaultyDisk
from tests.storage.owners import RUN, frame_of

EPOCH = 3
SEGMENT = SegmentName(EPOCH, 0)

small = st.integers(min_value=0, max_value=2**32)
rollout_ids = st.text("abc-._019", min_size=1, max_size=12)
rows_of_a_frame = st.lists(
    st.one_of(
        st.builds(SenderRow, st.binary(min_size=16, max_size=16), small, small),
        st.builds(ClaimRow, rollout_ids, small, st.text(max_size=8), small, st.floats(0, 2e9), st.integers(0, 6)),
        st.builds(
            CommitRow,
            rollout_ids,
            small,
            st.text(max_size=8),
            st.binary(min_size=16, max_size=16),
            st.lists(st.builds(Part, st.integers(0, 5), st.integers(0, 15), small, small, small, small), max_size=3),
            small,
            small,
        ),
        st.builds(LossRow, rollout_ids, small, st.binary(min_size=16, max_size=16), small),
        st.builds(MarkRow, rollout_ids, st.text(max_size=6), small, small),
    ),
    min_size=1,
    max_size=5,
)
bodies = st.lists(st.one_of(st.binary(max_size=40), st.just(FRAME_MAGIC * 3)), max_size=4)


def write(disk: FaultyDisk, frames: list[tuple[list[Row], list[bytes]]]) -> list[PendingFrame]:
    writer = SegmentWriter(disk.view(), RUN.bytes, EPOCH)
    pending = [frame_of(rows, body, FrameRef(n, EPOCH)) for n, (rows, body) in enumerate(frames, 1)]
    for frame in pending:
        writer.append([frame])
        writer.sync()
    return pending


def read(data: bytes, start: int = SEGMENT_HEAD_BYTES, window_bytes: int = 64) -> list[Frame | Damage]:
    return list(
        read_frames(lambda at, n: data[at : at + n], start, len(data), SEGMENT, RUN.bytes, window_bytes=window_bytes)
    )


def segment_with(count: int, body: bytes = b"payload") -> tuple[bytes, list[Frame]]:
    disk = FaultyDisk()
    write(disk, [([SenderRow(b"c" * 16, n, 0), ClaimRow("r", n)], [body]) for n in range(1, count + 1)])
    data = disk.content(SEGMENT.file)
    frames = [item for item in read(data) if isinstance(item, Frame)]
    assert len(frames) == count
    return data, frames


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(rows_of_a_frame, bodies), min_size=1, max_size=6), st.integers(40, 400))
def test_frames_come_back_as_they_were_written(frames: list[tuple[list[Row], list[bytes]]], window_bytes: int) -> None:
    disk = FaultyDisk()
    pending = write(disk, frames)
    data = disk.content(SEGMENT.file)
    found = read(data, window_bytes=window_bytes)
    assert [item.rows for item in found if isinstance(item, Frame)] == [rows for rows, _ in frames]
    for item, (rows, body), written in zip(found, frames, pending, strict=True):
        assert isinstance(item, Frame)
        assert (item.head.epoch, item.head.sequence, item.head.rows) == (EPOCH, written.ref.sequence, len(rows))
        assert item.ref.body_offset == written.ref.body_offset
        assert data[item.ref.body_offset : item.end] == b"".join(body)


def test_groups_count_syncs_not_appends() -> None:
    disk = FaultyDisk()
    writer = SegmentWriter(disk.view(), RUN.bytes, EPOCH)
    for sequence, sync in ((1, False), (2, True), (3, True)):
        writer.append([frame_of([ClaimRow("r", 1)], [], FrameRef(sequence, EPOCH))])
        if sync:
            writer.sync()
    found = read(disk.content(SEGMENT.file))
    assert [item.head.group for item in found if isinstance(item, Frame)] == [1, 1, 2]


def test_a_tail_torn_at_any_byte_is_a_tear_of_exactly_that_length() -> None:
    data, frames = segment_with(3)
    last = frames[-1]
    for end in range(last.offset + 1, len(data)):
        found = read(data[:end])
        assert [item.head.sequence for item in found if isinstance(item, Frame)] == [1, 2]
        assert found[-1] == Damage(last.offset, end - last.offset, "tear")


def test_damage_in_a_head_costs_that_frame_and_reading_goes_on_behind_it() -> None:
    data, frames = segment_with(3)
    middle = frames[1]
    for at in range(middle.offset, middle.ref.body_offset):
        broken = bytearray(data)
        broken[at] ^= 0xFF
        found = read(bytes(broken))
        assert [item.head.sequence for item in found if isinstance(item, Frame)] == [1, 3]
        assert [item for item in found if isinstance(item, Damage)] == [
            Damage(middle.offset, middle.head.total_bytes, "damage")
        ]


def test_a_payload_that_looks_like_a_frame_is_not_read_as_one() -> None:
    forged, _ = segment_with(1)
    data, frames = segment_with(3, body=forged[SEGMENT_HEAD_BYTES:])
    assert [item.head.sequence for item in read(data) if isinstance(item, Frame)] == [1, 2, 3]
    # Even when the frame around it is damaged, its lengths lead past the payload.
    broken = bytearray(data)
    broken[frames[1].ref.body_offset - 1] ^= 1
    assert [item.head.sequence for item in read(bytes(broken)) if isinstance(item, Frame)] == [1, 3]


@pytest.mark.parametrize("window_bytes", [40, 41, 64, 4096])
def test_the_next_frame_is_found_wherever_it_lies_in_the_window(window_bytes: int) -> None:
    for body in range(160):
        data, frames = segment_with(2, body=b"p" * body)
        first, second = frames
        broken = data[: first.offset] + bytes(40) + data[first.offset + 40 :]  # no magic and no lengths are left
        found = read(broken, window_bytes=window_bytes)
        assert found == [Damage(first.offset, first.head.total_bytes, "damage"), found[1]]
        assert isinstance(found[1], Frame)
        assert found[1].offset == second.offset


def test_a_frame_of_another_epoch_is_no_frame_of_this_segment() -> None:
    data, _ = segment_with(2)
    other = SegmentName(EPOCH + 1, 0)
    found = list(read_frames(lambda at, n: data[at : at + n], SEGMENT_HEAD_BYTES, len(data), other, RUN.bytes))
    assert found == [Damage(SEGMENT_HEAD_BYTES, len(data) - SEGMENT_HEAD_BYTES, "tear")]


def test_a_copied_frame_keeps_its_epoch_and_sequence() -> None:
    disk = FaultyDisk()
    writer = SegmentWriter(disk.view(), RUN.bytes, EPOCH)
    writer.copy([(1, frame_of([ClaimRow("r", 1)], [b"x"], FrameRef(77, 1)))])
    (frame,) = read(disk.content(SEGMENT.file))
    assert isinstance(frame, Frame)
    assert (frame.head.epoch, frame.head.sequence, frame.head.flags) == (1, 77, FrameFlag.COPIED)
    assert (frame.ref.epoch, frame.ref.segment) == (EPOCH, 0)


def test_rows_of_a_newer_version_are_refused_not_skipped() -> None:
    disk = FaultyDisk()
    writer = SegmentWriter(disk.view(), RUN.bytes, EPOCH)
    newer = b"\x91\x92\x7f\x01"  # one row with the tag 127
    writer.append([PendingFrame(FrameKind.OWNER, newer, 1, (), FrameRef(1, EPOCH))])
    with pytest.raises(FormatError, match="newer gym_capture"):
        read(disk.content(SEGMENT.file))


def test_bodies_are_skipped_not_loaded() -> None:
    data, _ = segment_with(4, body=bytes(1 << 20))
    asked: list[int] = []

    def read_at(at: int, length: int) -> bytes:
        asked.append(length)
        return data[at : at + length]

    frames = list(read_frames(read_at, SEGMENT_HEAD_BYTES, len(data), SEGMENT, RUN.bytes, window_bytes=4096))
    assert len(frames) == 4
    assert sum(asked) <= 5 * 4096


def test_pages_of_zeros_were_never_written_and_flipped_bytes_were() -> None:
    data = b"x" * 4500 + bytes(8192 - 4500) + b"y" * 2000
    damage = Damage(4500, 5000, "damage")
    assert never_written(lambda at, n: data[at : at + n], damage)
    assert not never_written(lambda at, n: (b"\1" * 10000)[at : at + n], damage)
    # Zeros inside a page, as any payload may have them, prove nothing.
    scattered = b"x" * 5000 + bytes(1000) + b"y" * 4000
    assert not never_written(lambda at, n: scattered[at : at + n], damage)
