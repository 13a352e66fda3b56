"""Crashes: at every fault point, in every way a host forgets, and in the middle of a recovery."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator

import pytest

from gym_capture.errors import FormatError, OwnerUnavailable
from gym_capture.model.codec import FrameFlag, FrameRef, PendingFrame
from gym_capture.model.ledger import Ledger
from gym_capture.model.rows import MarkRow
from gym_capture.storage import fault_points, names
from gym_capture.storage.log_reader import Frame
from gym_capture.storage.log_scan import LogScan, replay_log, scan_log
from gym_capture.storage.names import SegmentName
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.recovery import recover
from gym_capture.storage.recovery_report import Place
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import PAGE_BYTES, CrashMode, FaultyDisk, FaultyFiles, Stopped
from gym_capture.testing.manual_clock import ManualClock
from tests.storage.owners import CLIENT, OTHER_CLIENT, Batch, Owner, calls, exchange, identity

SEGMENT_BYTES = 1200
BATCHES = 7
CHECKPOINTS = {3, 6}


def batch(number: int) -> Batch:
    return Batch().commit("r", exchange(f"call-{number}"))


def expected(count: int = BATCHES) -> list[str]:
    return [f"call-{number}" for number in range(1, count + 1)]


def life(files: FaultyFiles, acked: set[int]) -> None:
    """An owner's life in order: it recovers, is sent every batch that was not acknowledged, and ends."""
    owner = Owner(files, segment_bytes=SEGMENT_BYTES)
    owner.ownership.beat()
    for number in range(1, BATCHES + 1):
        if number in acked:
            continue
        owner.send(batch(number), number)
        acked.add(number)
        if number in CHECKPOINTS:
            owner.checkpoint()
    owner.stop()


def begun(disk: FaultyDisk) -> set[int]:
    """An earlier owner's log: two acknowledged batches in two segments, and one appended and not synced."""
    owner = Owner(disk.view(), segment_bytes=SEGMENT_BYTES)
    acked = {1, 2}
    for number in sorted(acked):
        owner.send(batch(number), number)
    owner.append(batch(3), 3)
    return acked


def fold(disk: FaultyDisk) -> tuple[Ledger, LogScan]:
    scan = scan_log(disk.view())
    ledger = Ledger()
    replay_log(scan, ledger)
    return ledger, scan


def points_of(make: Callable[[FaultyDisk], set[int]]) -> list[tuple[str, int]]:
    disk = FaultyDisk()
    acked = make(disk)
    files = disk.view()
    life(files, acked)
    reached: dict[str, int] = {}
    listed = []
    for point in files.points:
        reached[point] = reached.get(point, 0) + 1
        listed.append((point, reached[point]))
    return listed


def nothing(disk: FaultyDisk) -> set[int]:
    return set()


CRASHES: list[tuple[CrashMode | None, int]] = [
    (None, 0),
    (CrashMode.DROP, 0),
    (CrashMode.PREFIX, 1),
    (CrashMode.PREFIX, 2),
    (CrashMode.TORN, 3),
    (CrashMode.TORN, 4),
]


def crash(disk: FaultyDisk, mode: CrashMode | None, seed: int) -> None:
    if mode is not None:
        disk.crash(mode, seed)


@pytest.mark.parametrize("make", [nothing, begun], ids=["fresh", "after an earlier owner"])
@pytest.mark.parametrize(("mode", "seed"), CRASHES, ids=lambda value: str(getattr(value, "value", value)))
def test_a_crash_at_any_fault_point_loses_and_doubles_nothing(
    make: Callable[[FaultyDisk], set[int]], mode: CrashMode | None, seed: int
) -> None:
    for point, occurrence in points_of(make):
        disk = FaultyDisk()
        acked = make(disk)
        files = disk.view()
        files.stop_at(point, occurrence)
        with pytest.raises(Stopped):
            life(files, acked)
        crash(disk, mode, seed)
        told = set(acked)
        where = f"{point} ({occurrence})"

        # The next owner knows what was acknowledged, and applies what is sent again once.
        owner = Owner(disk.view(), segment_bytes=SEGMENT_BYTES)
        found = calls(owner.ledger, "r")
        assert {f"call-{number}" for number in told} <= set(found), where
        assert found == expected(len(found)), where
        assert not owner.report.damaged, where
        for number in range(1, BATCHES + 1):
            owner.send(batch(number), number)
        assert calls(owner.ledger, "r") == expected(), where

        # What is on disk says the same, also after another crash right away.
        disk.crash()
        ledger, scan = fold(disk)
        assert calls(ledger, "r") == expected(), where
        assert not scan.report.damaged, where
        assert [each["model_call_id"] for each in CaptureStore(disk.view()).read("r")] == expected(), where


@pytest.mark.parametrize(("mode", "seed"), CRASHES, ids=lambda value: str(getattr(value, "value", value)))
def test_recoveries_that_crash_one_after_another_change_nothing(mode: CrashMode | None, seed: int) -> None:
    for first in recovery_points():
        for second in list(recovery_points())[1::3]:
            disk = FaultyDisk()
            begun(disk)
            crash(disk, mode, seed)
            survived = calls(fold(disk)[0], "r")
            for point in (first, second):
                files = disk.view()
                files.stop_at(point)
                with pytest.raises(Stopped):
                    Owner(files, segment_bytes=SEGMENT_BYTES)
                crash(disk, mode, seed)
            owner = Owner(disk.view(), segment_bytes=SEGMENT_BYTES)
            assert calls(owner.ledger, "r") == survived, (first, second)
            assert calls(fold(disk)[0], "r") == survived, (first, second)
            assert not owner.report.damaged


def recovery_points() -> Iterator[str]:
    for name in (
        fault_points.step(fault_points.OWNER, "directory-sync"),
        fault_points.step(fault_points.SEGMENT, "create"),
        fault_points.COPY_APPEND,
        fault_points.COPY_SYNC,
        fault_points.CUT_APPEND,
        fault_points.CUT_SYNC,
    ):
        yield fault_points.before(name)
        yield fault_points.after(name)


def test_every_fault_point_is_reached_by_these_lives() -> None:
    assert {point for point, _ in points_of(nothing) + points_of(begun)} == set(fault_points.ALL)


@pytest.mark.parametrize("point", [fault_points.APPEND, fault_points.SYNC])
@pytest.mark.parametrize("short_bytes", [0, 1, 300])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_append_or_sync_spends_the_writer_and_the_next_epoch_goes_on(
    point: str, short_bytes: int, number: int
) -> None:
    disk = FaultyDisk()
    files = disk.view()
    owner = Owner(files)
    owner.send(batch(1), 1)
    files.fail_at(fault_points.before(point), number, short_bytes=short_bytes)
    with pytest.raises(OSError, match=r"Input/output|No space"):
        owner.send(batch(2), 2)
    with pytest.raises(OwnerUnavailable, match="take the next epoch"):
        owner.send(batch(3), 3)
    with pytest.raises(OwnerUnavailable):
        owner.writer.sync()
    assert owner.writer.failed

    again = Owner(files)
    assert again.ownership.epoch == owner.ownership.epoch + 1
    for each in (1, 2, 3):
        again.send(batch(each), each)
    disk.crash()
    ledger, scan = fold(disk)
    assert calls(ledger, "r") == expected(3)
    assert not scan.report.damaged


def test_pages_that_a_failed_sync_forgot_reach_the_disk_by_the_copy() -> None:
    disk = FaultyDisk()
    files = disk.view()
    owner = Owner(files)
    owner.send(batch(1), 1)
    files.fail_at(fault_points.before(fault_points.SYNC))
    with pytest.raises(OSError, match="Input/output"):
        owner.send(batch(2), 2)
    again = Owner(files)
    assert calls(again.ledger, "r") == ["call-1", "call-2"]
    disk.crash()
    assert calls(fold(disk)[0], "r") == ["call-1", "call-2"]


def test_a_recovery_that_cannot_write_leaves_the_log_as_it_was() -> None:
    for point in recovery_points():
        disk = FaultyDisk()
        begun(disk)
        before = calls(fold(disk)[0], "r")
        files = disk.view()
        files.fail_at(point, errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            Owner(files, segment_bytes=SEGMENT_BYTES)
        assert calls(fold(disk)[0], "r") == before
        assert calls(Owner(files, segment_bytes=SEGMENT_BYTES).ledger, "r") == before


def noise(seed: int) -> str:
    """Text that hardly compresses."""
    return random.Random(seed).randbytes(9000).hex()


def big_group(disk: FaultyDisk) -> tuple[Owner, list[str]]:
    """One synced batch, then an unsynced group of six of several pages each, from two clients."""
    owner = Owner(disk.view())
    owner.send(Batch().commit("acked", exchange("acked")), 1)
    sent = []
    for number in range(2, 8):
        call = f"big-{number}"
        owner.append(Batch().commit("r", exchange(call, noise(number))), number, (CLIENT, OTHER_CLIENT)[number % 2])
        sent.append(call)
    return owner, sent


def test_a_group_torn_page_by_page_keeps_what_is_whole_and_takes_the_rest_when_it_is_sent_again() -> None:
    partial = 0
    for seed in range(24):
        disk = FaultyDisk()
        first, sent = big_group(disk)
        disk.crash(CrashMode.TORN, seed)
        owner = Owner(disk.view())
        kept = calls(owner.ledger, "r")
        assert set(kept) <= set(sent)
        assert calls(owner.ledger, "acked") == ["acked"]
        assert owner.report.affected == set(), f"seed {seed}: nothing of the group was acknowledged, so nothing is lost"
        partial += owner.report.broken_parts > 0
        for number, call in enumerate(sent, 2):
            owner.send(Batch().commit("r", exchange(call, noise(number))), number, (CLIENT, OTHER_CLIENT)[number % 2])
        disk.crash()
        store = CaptureStore(disk.view())
        read, _ = store.read_available("r")
        assert sorted(each["model_call_id"] for each in read) == sent, seed
        assert store.verify().broken == []
        assert not store.is_incomplete("r")
        assert first.acked.keys() == {(CLIENT, 1)}
    assert partial > 2


def test_the_copies_are_on_disk_before_the_cut_that_they_stand_for() -> None:
    split = 0
    for seed in range(12):
        disk = FaultyDisk()
        owner, sent = big_group(disk)
        owner.acknowledge(7, OTHER_CLIENT)
        files = disk.view()
        files.stop_at(fault_points.after(fault_points.CUT_APPEND))
        with pytest.raises(Stopped):
            Owner(files)
        disk.crash(CrashMode.TORN, seed)
        opened = [item for item in scan_log(disk.view()) if isinstance(item, Frame) and item.head.epoch == 2]
        split += len(opened) > 0
        assert calls(Owner(disk.view()).ledger, "r") == sent, seed
    assert 0 < split < 12  # with and without the opening on disk


def test_copies_that_are_there_twice_are_read_once() -> None:
    disk = FaultyDisk()
    begun(disk)
    for point in (fault_points.before(fault_points.CUT_APPEND), fault_points.after(fault_points.COPY_APPEND)):
        files = disk.view()
        files.stop_at(point)
        with pytest.raises(Stopped):
            Owner(files, segment_bytes=SEGMENT_BYTES)
    # Three times the same last group: the original, and two copies of it (the second of the first, too).
    scan = scan_log(disk.view())
    frames = [item for item in scan if isinstance(item, Frame)]
    identities = [(item.head.epoch, item.head.sequence) for item in frames if item.head.sequence]
    assert len(identities) == len(set(identities))
    assert scan.report.copies == 2

    owner = Owner(disk.view(), segment_bytes=SEGMENT_BYTES)
    assert owner.report.copies == 2
    copied = [item for item in scan_log(disk.view()) if isinstance(item, Frame) and item.head.flags & FrameFlag.COPIED]
    assert [item.head.epoch for item in copied if item.head.sequence] == [1]


def test_a_payload_that_rotted_in_the_last_group_is_left_out_and_its_rollout_marked() -> None:
    disk = FaultyDisk()
    first = Owner(disk.view())
    first.send(Batch().commit("r", exchange("one")).commit("s", exchange("two")), 1)
    (frame,) = [item for item in LogScan(disk.view()) if isinstance(item, Frame) and item.head.body_bytes]
    disk.flip_bit(SegmentName(1, 0).file, (frame.ref.body_offset + 20) * 8)

    owner = Owner(disk.view())
    assert (calls(owner.ledger, "r"), calls(owner.ledger, "s")) == ([], ["two"])
    assert owner.ledger.view("r").reasons == {"damaged": 1}
    assert owner.ledger.view("s").reasons is None
    assert (owner.report.broken_parts, owner.report.affected) == (1, {"r"})
    copy = next(item for item in LogScan(disk.view()) if isinstance(item, Frame) and item.head.body_bytes)
    assert copy.head.flags == FrameFlag.COPIED | FrameFlag.PARTIAL

    # The batch does not count as applied: what the client still has is taken, what is there stays as it is.
    owner.send(Batch().commit("r", exchange("one")).commit("s", exchange("two")), 1)
    ledger, _ = fold(disk)
    assert (calls(ledger, "r"), calls(ledger, "s")) == (["one"], ["two"])
    # The marks are rows of the log and outlive the next takeover.
    assert Owner(disk.view()).ledger.view("r").reasons == {"damaged": 1}


def test_damage_in_the_middle_neither_shortens_the_cut_nor_hides_what_follows() -> None:
    disk = FaultyDisk()
    first = Owner(disk.view())
    for number in (1, 2, 3, 4):
        first.send(batch(number), number)
    frames = [item for item in LogScan(disk.view()) if isinstance(item, Frame) and item.head.body_bytes]
    disk.flip_bit(SegmentName(1, 0).file, (frames[1].offset + 30) * 8)
    owner = Owner(disk.view())
    assert calls(owner.ledger, "r") == ["call-1", "call-3", "call-4"]
    assert owner.report.cuts[0].offset == frames[3].offset
    assert owner.ledger.view("r").reasons == {"damaged": 1}
    assert owner.ledger.view("r").holes == 1


def test_a_rotted_head_in_the_last_group_marks_the_segments_rollouts_for_good() -> None:
    disk = FaultyDisk()
    first = Owner(disk.view())
    first.send(batch(1), 1)
    first.append(batch(2), 2)
    first.append(batch(3), 3)
    first.acknowledge(3)
    frames = [item for item in LogScan(disk.view()) if isinstance(item, Frame) and item.head.body_bytes]
    disk.flip_bit(SegmentName(1, 0).file, (frames[1].offset + 30) * 8)
    owner = Owner(disk.view())
    assert owner.ledger.view("r").reasons == {"damaged": 1}
    assert calls(owner.ledger, "r") == ["call-1", "call-3"]
    ledger, scan = fold(disk)
    assert ledger.view("r").reasons == {"damaged": 1}
    marks = [row for item in scan_log(disk.view()) if isinstance(item, Frame) for row in item.rows]
    assert [row.rollout for row in marks if isinstance(row, MarkRow)] == ["r"]
    assert not scan.report.damages  # it lies beyond the cut now


def test_a_flipped_bit_in_the_opening_does_not_bring_a_cut_tail_back() -> None:
    disk = FaultyDisk()
    frozen = Owner(disk.view(), "old")
    frozen.send(batch(1), 1)
    owner = Owner(disk.view(), "new", takeover=True)
    owner.send(Batch().commit("s", exchange("later")), 1, OTHER_CLIENT)
    frozen.append(Batch().commit("r", exchange("ghost")), 2)
    frozen.writer.sync()
    openings = [item for item in LogScan(disk.view()) if isinstance(item, Frame) and item.head.epoch == 2]
    name = SegmentName(2, 0).file
    for opening in openings[:2]:
        for bit in range(opening.offset * 8, opening.ref.body_offset * 8):
            disk.flip_bit(name, bit)
            ledger, _ = fold(disk)
            assert calls(ledger, "r") == ["call-1"], bit
            disk.flip_bit(name, bit)


def test_a_seal_says_when_bytes_of_a_finished_segment_are_missing() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view(), segment_bytes=SEGMENT_BYTES)
    for number in range(1, 8):
        owner.send(batch(number), number)
    name = SegmentName(1, 0)
    disk.put(name.file, disk.content(name.file)[:-10])
    _, scan = fold(disk)
    assert scan.report.damages == [Place(name, len(disk.content(name.file)), 10)]
    assert scan.report.tears == []
    # Only the payload is short, so only its exchange is damaged.
    assert scan.report.affected == set()
    assert CaptureStore(disk.view()).read_available("r")[1] == 1
    disk.put(name.file, disk.content(name.file)[:-1000])
    _, scan = fold(disk)
    assert [place.segment for place in scan.report.damages] == [name]
    assert scan.report.affected == {"r"}


def test_a_segment_that_is_gone_is_reported_and_marks_its_neighbours() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view(), segment_bytes=SEGMENT_BYTES)
    for number in range(1, 12):
        owner.send(batch(number), number)
    assert owner.writer.segment.number >= 3
    disk.view().remove(SegmentName(1, 1).file)
    ledger, scan = fold(disk)
    assert [place.segment for place in scan.report.damages] == [SegmentName(1, 1)]
    assert ledger.view("r").reasons is not None
    assert scan.report.affected == {"r"}


def test_segments_of_another_run_are_refused_before_anything_is_written() -> None:
    disk, other = FaultyDisk(), FaultyDisk()
    Owner(disk.view()).send(batch(1), 1)
    Owner(other.view()).send(batch(1), 1)
    disk.put(names.RUN, other.content(names.RUN))
    files = disk.view()
    ownership = Ownership.take(files, identity(), ManualClock(), takeover=True)
    with pytest.raises(FormatError, match="belong to run"):
        recover(files, ownership, Ledger())
    assert SegmentName(ownership.epoch, 0).file not in files.names()


def test_a_segment_is_left_only_when_all_of_it_is_synced() -> None:
    disk = FaultyDisk()
    files = disk.view()
    owner = Owner(files, segment_bytes=600)
    first = owner.writer.segment
    while owner.writer.position < 600:
        owner.append(batch(1 + len(calls(owner.ledger, "r"))), 1 + len(calls(owner.ledger, "r")))
    files.points.clear()
    owner.append(batch(50), 50)
    assert owner.writer.segment.number == first.number + 1
    assert files.points.index(fault_points.after(fault_points.SYNC)) < files.points.index("before segment-create")
    disk.crash()
    _, scan = fold(disk)
    assert not scan.report.damaged
    assert calls(Owner(disk.view()).ledger, "r")[-1] != "call-50"


def test_files_that_are_not_ours_are_left_alone() -> None:
    disk = FaultyDisk()
    for name in ("segment-1-1.log", "epoch-1x", "notes.txt", "7-0.capture.jsonl", "segment-00000001-00000000.log.bak"):
        disk.put(name, b"mine")
    owner = Owner(disk.view())
    owner.send(batch(1), 1)
    assert owner.ownership.epoch == 1
    assert calls(fold(disk)[0], "r") == ["call-1"]
    assert disk.content("notes.txt") == b"mine"


def test_the_copied_group_is_synced_in_pieces_and_still_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_capture.storage.recovery._COPY_BYTES", PAGE_BYTES)
    disk = FaultyDisk()
    _, sent = big_group(disk)
    files = disk.view()
    owner = Owner(files)
    assert calls(owner.ledger, "r") == sent
    assert files.points.count(fault_points.before(fault_points.COPY_APPEND)) == len(sent)
    assert files.points.count(fault_points.before(fault_points.COPY_SYNC)) == 1
    copied = [item for item in LogScan(files) if isinstance(item, Frame) and item.head.flags & FrameFlag.COPIED]
    assert {item.head.group for item in copied} == {1}


def test_a_frame_too_long_for_the_format_is_refused_and_spends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(FaultyDisk().view())
    monkeypatch.setattr("gym_capture.storage.segments.MAX_FRAME_BYTES", 100)
    with pytest.raises(ValueError, match="longer than 100"):
        owner.writer.append([PendingFrame(1, b"\x90", 0, [bytes(100)], FrameRef(9, owner.ownership.epoch))])
    assert not owner.writer.failed
