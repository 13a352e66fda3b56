"""Payloads that look like the log: whatever a model writes, and wherever a host tears it, nothing of it is obeyed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_capture.model.codec import (
    FRAME_HEAD_BYTES,
    FRAME_MAGIC,
    SEGMENT_HEAD_BYTES,
    FrameFlag,
    FrameKind,
    SegmentHead,
    checksum,
    encode_frame_head,
    encode_rows,
)
from gym_capture.model.rollout_state import RolloutView
from gym_capture.model.rows import ClearRow, CommitRow, CutRow, MarkRow, Part, PartFlag, PartKind, Row
from gym_capture.storage import names
from gym_capture.storage.log_reader import PAGE_BYTES, Damage, Frame, read_frames
from gym_capture.storage.names import SegmentName
from gym_capture.storage.nemo_gym_files import NemoGymFiles
from gym_capture.storage.segment_source import SegmentSource
from gym_capture.storage.store import CaptureStore
from gym_capture.storage.verify import verify_log
from gym_capture.testing.faulty_files import CrashMode, FaultyDisk
from tests.storage.owners import RUN, Batch, Owner, calls, exchange

SEGMENT = SegmentName(1, 0)
OTHER_KEYS = [bytes(24), b"\xff" * 24, SegmentHead(1, 0, bytes(16)).key, SegmentHead(1, 0, bytes(range(16))).key]
"""What somebody might take for the segment's key who does not know the run's uuid."""


def forged(rows: list[Row] | bytes, key: bytes = b"", kind: int = FrameKind.OWNER, **fields: int) -> bytes:
    """A frame as a model may write one: everything fits but the run."""
    encoded = rows if isinstance(rows, bytes) else encode_rows(rows)
    head: dict[str, int] = {"epoch": 1, "group": 1000, "sequence": 1 << 40, "body_bytes": 0, **fields}
    return encode_frame_head(encoded, key=key, kind=kind, row_count=1, **head) + encoded


CLEARED = forged([ClearRow("7-0", "x", 5)])
FORGERIES = [
    CLEARED,
    *(forged([ClearRow("7-0", "x", 5)], key) for key in OTHER_KEYS),
    forged([CutRow(1, 0, SEGMENT_HEAD_BYTES)]),
    forged([MarkRow("7-0", "damaged", 7, 0)]),
    forged(b"\x91\x92\x7f\x01"),
    forged(b"\x90", flags=FrameFlag.FILLER | FrameFlag.GONE, sequence=0, body_bytes=1 << 20),
    FRAME_MAGIC * 9,
]


def holding(payload: bytes) -> Batch:
    """A call whose stored bytes are these, as a hostile client may send them."""
    batch = Batch().commit("7-0", exchange("evil"))
    (row,) = batch.rows
    assert isinstance(row, CommitRow)
    at = sum(map(len, batch.body))
    row.parts.append(Part(PartKind.REQUEST_RAW, PartFlag.BYTES, at, len(payload), len(payload), checksum(payload)))
    batch.body.append(payload)
    return batch


def written(payload: Callable[[bytes], bytes], *, synced: bool = False) -> tuple[FaultyDisk, int]:
    """A log of acknowledged calls and clears, and at its end an append that holds a payload.

    Args:
        payload: the log as it is → what is in the payload.
        synced: the append was acknowledged, too.

    Returns:
        The disk, and where the append begins.
    """
    disk = FaultyDisk()
    owner = Owner(disk.view())
    for number in range(20):
        owner.send(Batch().commit("7-0", exchange(f"c{number}")), 1 + number)
    owner.send(Batch().commit("8-0", exchange("gone")), 21)
    owner.send(Batch().clear("8-0", "again"), 22)
    owner.send(Batch().commit("8-0", exchange("cleared")), 23)
    owner.send(Batch().clear("8-0", "and again"), 24)
    owner.send(Batch().commit("8-0", exchange("kept")), 25)
    log = disk.content(SEGMENT.file)
    owner.append(holding(bytes(PAGE_BYTES) + payload(log)), 26)
    if synced:
        owner.acknowledge(26)
    return disk, len(log)


def torn(disk: FaultyDisk, at: int) -> None:
    """The first page of the append did not reach the disk; the others did."""
    data = bytearray(disk.content(SEGMENT.file))
    border = (at // PAGE_BYTES + 1) * PAGE_BYTES
    data[at:border] = bytes(border - at)
    disk.put(SEGMENT.file, bytes(data))


def assert_all_is_there(disk: FaultyDisk) -> None:
    """What was acknowledged before the append, and nothing else, for readers and for the next owner."""
    kept = [f"c{number}" for number in range(20)]
    store = CaptureStore(disk.view())
    assert [each["model_call_id"] for each in store.read("7-0")] == kept
    assert [each["model_call_id"] for each in store.read("8-0")] == ["kept"]
    assert (store.generation("7-0"), store.generation("8-0")) == (0, 2)
    assert verify_log(disk.view(), NemoGymFiles(disk.view())).sound
    after = Owner(disk.view(), "next", takeover=True)
    assert (calls(after.ledger, "7-0"), calls(after.ledger, "8-0")) == (kept, ["kept"])
    assert (after.ledger.view("7-0").generation, after.ledger.view("8-0").generation) == (0, 2)
    assert not after.ledger.view("7-0").reasons


@pytest.mark.parametrize("forgery", FORGERIES, ids=range(len(FORGERIES)))
def test_a_torn_append_does_not_let_its_payload_speak(forgery: bytes) -> None:
    disk, at = written(lambda log: forgery)
    torn(disk, at)
    assert_all_is_there(disk)


def test_a_payload_with_the_log_in_it_does_not_say_it_again() -> None:
    """Somebody may have read the run's own segments into a payload: those frames fit, and are old."""
    disk, at = written(lambda log: log[SEGMENT_HEAD_BYTES:])
    torn(disk, at)
    assert_all_is_there(disk)


def many_segments() -> tuple[FaultyDisk, Owner]:
    """A log of several segments in which claims ended, exchanges were cleared and losses were marked."""
    disk = FaultyDisk()
    owner = Owner(disk.view(), segment_bytes=6000)
    sent = 0

    def send(batch: Batch) -> None:
        nonlocal sent
        sent += 1
        owner.send(batch, sent)

    while (owner.writer.segment.number, owner.writer.position) < (3, 3000):
        number = sent
        lost = Batch()
        lost.rows.append(MarkRow("7-0", "dropped", 3))
        send(lost)
        send(Batch().claim("7-0", 5 + 2 * number).claim("7-0", 6 + 2 * number))
        send(Batch().commit("7-0", exchange(f"c{number}"), 5 + 2 * number).release("7-0", 6 + 2 * number, ""))
        send(Batch().commit("8-0", exchange(f"gone{number}")).clear("8-0", f"clear {number}"))
    return disk, owner


@pytest.mark.parametrize("first_of_a_segment", [False, True])
@pytest.mark.parametrize("repeated", range(4))
def test_a_payload_with_another_segment_or_its_own_in_it_does_not_say_them_again(
    repeated: int, first_of_a_segment: bool
) -> None:
    disk, owner = many_segments()
    while first_of_a_segment and owner.writer.position < 6000:
        owner.merge("7-0")
    whole = disk.content(SegmentName(1, repeated).file)[SEGMENT_HEAD_BYTES:]
    before = owner.writer.segment, owner.writer.position
    expected = {rollout: owner.ledger.view(rollout) for rollout in ("7-0", "8-0")}
    owner.append(holding(bytes(PAGE_BYTES) + whole), 1 << 20)
    segment = owner.writer.segment
    at = before[1] if segment == before[0] else 0
    assert first_of_a_segment == (at == 0)
    data = bytearray(disk.content(segment.file))
    border = (at // PAGE_BYTES + 1) * PAGE_BYTES
    data[at:border] = bytes(border - at)
    disk.put(segment.file, bytes(data))

    def told(view: RolloutView) -> object:
        return view.generation, [entry.model_call_id for entry in view.entries], view.reasons, view.outstanding

    for rollout, view in expected.items():
        assert told(CaptureStore(disk.view()).view(rollout)) == told(view)
    assert verify_log(disk.view(), NemoGymFiles(disk.view())).sound
    after = Owner(disk.view(), "next", takeover=True)
    for rollout, view in expected.items():
        assert told(after.ledger.view(rollout)) == told(view)
    assert not after.report.damaged
    after.stop()
    assert verify_log(disk.view(), NemoGymFiles(disk.view())).sound


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(FORGERIES), st.binary(max_size=50), st.integers(0, 8000)), max_size=12),
    st.integers(0, 2**32),
)
def test_a_host_that_fails_while_hostile_bytes_are_written_loses_nothing(pieces: list[bytes | int], seed: int) -> None:
    def payload(log: bytes) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else log[piece:] for piece in pieces)

    disk, _ = written(payload)
    disk.crash(CrashMode.TORN, seed)
    store = CaptureStore(disk.view())
    found = [each["model_call_id"] for each in store.read_available("7-0")[0]]
    assert found[:20] == [f"c{number}" for number in range(20)]
    assert found[20:] in ([], ["evil"])
    assert [each["model_call_id"] for each in store.read("8-0")] == ["kept"]
    assert (store.generation("7-0"), store.generation("8-0")) == (0, 2)


@pytest.mark.parametrize("forgery", FORGERIES, ids=range(len(FORGERIES)))
def test_a_damaged_head_does_not_let_its_payload_speak(forgery: bytes) -> None:
    disk, at = written(lambda log: forgery, synced=True)
    data = bytearray(disk.content(SEGMENT.file))
    data[at : at + FRAME_HEAD_BYTES] = b"\xff" * FRAME_HEAD_BYTES
    disk.put(SEGMENT.file, bytes(data))
    store = CaptureStore(disk.view())
    assert [each["model_call_id"] for each in store.read("7-0")] == [f"c{number}" for number in range(20)]
    assert store.generation("7-0") == 0


def test_a_search_reads_no_more_for_heads_that_claim_all_that_follows() -> None:
    """Their checksums fit a run that somebody guessed, so each is as good as any."""

    def bytes_read(heads: int) -> float:
        hostile = b"".join(forged(b"", OTHER_KEYS[1], body_bytes=0) for _ in range(heads))
        data = bytes(SEGMENT_HEAD_BYTES + 64) + hostile
        read = 0

        def read_at(at: int, length: int) -> bytes:
            nonlocal read
            read += len(data[at : at + length])
            return data[at : at + length]

        found = list(read_frames(read_at, SEGMENT_HEAD_BYTES, len(data), SEGMENT, RUN.bytes))
        assert found == [Damage(SEGMENT_HEAD_BYTES, len(data) - SEGMENT_HEAD_BYTES, "tear")]
        return read / len(data)

    assert bytes_read(4000) < 10
    assert bytes_read(32000) < 10


def frames_of(disk: FaultyDisk, name: SegmentName) -> list[int]:
    end = len(disk.content(name.file))
    found = SegmentSource(disk.view(), name).frames(SEGMENT_HEAD_BYTES, end)
    return [item.head.sequence for item in found if isinstance(item, Frame)]


def without_header(disk: FaultyDisk, name: SegmentName) -> None:
    disk.put(name.file, bytes(SEGMENT_HEAD_BYTES) + disk.content(name.file)[SEGMENT_HEAD_BYTES:])


def test_frames_are_known_by_RUN_where_the_header_is_damaged() -> None:  # noqa: N802 - the file's name
    disk, _ = written(lambda log: CLEARED, synced=True)
    whole = frames_of(disk, SEGMENT)
    without_header(disk, SEGMENT)
    assert frames_of(disk, SEGMENT) == whole


def test_frames_are_known_by_another_segment_where_header_and_RUN_are_gone() -> None:  # noqa: N802
    disk = FaultyDisk()
    owner = Owner(disk.view(), segment_bytes=1)
    for number in range(3):
        owner.send(Batch().commit("7-0", exchange(f"c{number}")), 1 + number)
    last = owner.writer.segment
    assert last.number
    whole = frames_of(disk, last)
    without_header(disk, last)
    disk.view().remove(names.RUN)
    assert frames_of(disk, last) == whole


def test_where_nothing_says_whose_the_frames_are_all_of_them_are_damage() -> None:
    disk, _ = written(lambda log: CLEARED, synced=True)
    without_header(disk, SEGMENT)
    disk.view().remove(names.RUN)
    assert frames_of(disk, SEGMENT) == []
    assert CaptureStore(disk.view()).read("7-0") == []
    assert not verify_log(disk.view(), NemoGymFiles(disk.view())).sound
