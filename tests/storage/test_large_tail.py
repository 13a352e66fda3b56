"""A last group so large that its copies fill several segments of the new owner: crashes, failures, another takeover."""

from __future__ import annotations

import errno
from collections import Counter

import pytest

from gym_capture.errors import Superseded
from gym_capture.model.ledger import Ledger
from gym_capture.storage import fault_points
from gym_capture.storage.log_scan import replay_log, scan_log
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import CrashMode, FaultyDisk, FaultyFiles, Stopped
from tests.storage.owners import Batch, Owner, calls, exchange

SEGMENT_BYTES = 1200
BATCHES = 8
CALLS = [f"call-{number}" for number in range(1, BATCHES + 1)]
STEPS = ("append", "sync", "segment")


@pytest.fixture(autouse=True)
def small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copied frame is an append of its own, so that every other one begins a segment."""
    monkeypatch.setattr("gym_capture.storage.recovery._COPY_BYTES", 1)


def batch(number: int) -> Batch:
    return Batch().commit("r", exchange(f"call-{number}"))


def begun() -> FaultyDisk:
    """What an earlier owner left that died once its last group was on disk, and acknowledged."""
    disk = FaultyDisk()
    owner = Owner(disk.view(), segment_bytes=1 << 20)
    owner.send(batch(1), 1)
    for number in range(2, BATCHES + 1):
        owner.append(batch(number), number)
    owner.acknowledge(BATCHES)
    return disk


def take_over(files: FaultyFiles, actor_id: str = "actor-1") -> Owner:
    return Owner(files, actor_id, takeover=True, segment_bytes=SEGMENT_BYTES)


def points() -> list[tuple[str, int]]:
    """Every fault point of the takeover, with its occurrence."""
    files = begun().view()
    assert take_over(files).writer.segment.number >= 3, "the copies fill several segments"
    reached: Counter[str] = Counter()
    listed = []
    for point in files.points:
        reached[point] += 1
        if any(step in point for step in STEPS):
            listed.append((point, reached[point]))
    return listed


def assert_all_there(disk: FaultyDisk, where: object) -> None:
    """The next owner and a reader know every call once and in order, also when the host forgets again."""
    owner = take_over(disk.view())
    assert calls(owner.ledger, "r") == CALLS, where
    assert not owner.report.damaged, where
    disk.crash()
    scan, ledger = scan_log(disk.view()), Ledger()
    replay_log(scan, ledger)
    assert calls(ledger, "r") == CALLS, where
    assert not scan.report.damaged, where
    store = CaptureStore(disk.view())
    assert [each["model_call_id"] for each in store.read("r")] == CALLS, where
    assert store.verify().broken == [], where


@pytest.mark.parametrize("mode", [None, CrashMode.PREFIX, CrashMode.TORN])
def test_a_crash_while_copies_fill_several_segments_loses_nothing(mode: CrashMode | None) -> None:
    for point, occurrence in points():
        disk = begun()
        files = disk.view()
        files.stop_at(point, occurrence)
        with pytest.raises(Stopped):
            take_over(files)
        if mode is not None:
            disk.crash(mode, occurrence)
        assert_all_there(disk, (point, occurrence))


@pytest.mark.parametrize(("number", "mode"), [(errno.EIO, CrashMode.DROP), (errno.ENOSPC, CrashMode.TORN)])
def test_a_failure_while_copies_fill_several_segments_loses_and_reorders_nothing(number: int, mode: CrashMode) -> None:
    for point, occurrence in points():
        if point.startswith("after"):
            continue
        for short_bytes in (0, 200) if "append" in point else (0,):
            disk = begun()
            files = disk.view()
            files.fail_at(point, number, occurrence=occurrence, short_bytes=short_bytes)
            with pytest.raises(OSError, match=r"Input/output|No space"):
                take_over(files)
            # The same process goes on with the next epoch, and loses its host in the middle of that.
            files.stop_at(fault_points.before(fault_points.CUT_SYNC))
            with pytest.raises(Stopped):
                take_over(files)
            disk.crash(mode, occurrence)
            assert_all_there(disk, (point, occurrence, short_bytes))


@pytest.mark.parametrize("mode", [None, CrashMode.DROP])
def test_a_takeover_while_copies_fill_several_segments_loses_nothing(mode: CrashMode | None) -> None:
    for point, occurrence in points():
        disk = begun()
        files = disk.view()
        others: list[Owner] = []

        def overtake(disk: FaultyDisk = disk, others: list[Owner] = others) -> None:
            others.append(take_over(disk.view(), "actor-2"))

        files.run_at(point, overtake, occurrence)
        try:
            others.append(take_over(files))
        except (Superseded, FileExistsError):
            pass
        where = (point, occurrence)
        *late, owner = sorted(others, key=lambda each: each.ownership.epoch)
        assert calls(owner.ledger, "r") == CALLS, where
        for other in late:
            with pytest.raises(Superseded):
                other.send(batch(99), 99)
        if mode is not None:
            disk.crash(mode, occurrence)
        assert_all_there(disk, where)
