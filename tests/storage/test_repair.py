"""`verify --repair`: what is damaged is put aside, what was lost stays told, and nothing else changes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from gym_capture.errors import CaptureDirectoryError, DirectoryHeld, MissingRunMarker
from gym_capture.model.rows import MembersRow
from gym_capture.storage import fault_points, names
from gym_capture.storage.log_plan import plan_log
from gym_capture.storage.names import SegmentName
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.repair import RepairReport, repair
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import CrashMode, FaultyDisk, FaultyFiles, Stopped
from gym_capture.testing.manual_clock import ManualClock
from tests.storage.damage_corpus import (
    EXHAUSTIVE,
    ROLLOUTS,
    Damage,
    fold,
    frames_of,
    log_damages,
    removed,
    rewritten,
    said,
    sampled,
    segments,
    small_file_damages,
    written,
)
from tests.storage.owners import Batch, Owner, identity

SAMPLE = 70


def unmoved(ownership: Ownership) -> AbstractContextManager[None]:
    return nullcontext()


def mend(files: FaultyFiles, actor: str = "repair") -> RepairReport:
    clock = ManualClock()
    return repair(files, identity(actor), unmoved, clock=clock, wait=clock.advance, new_token=lambda: "secret")


@pytest.fixture(scope="module")
def stopped() -> FaultyDisk:
    return written()


@pytest.fixture(scope="module")
def cases(stopped: FaultyDisk) -> list[Damage]:
    return log_damages(stopped)


def test_a_sound_directory_is_left_as_it_is(stopped: FaultyDisk) -> None:
    disk = stopped.copy()
    before = {name: disk.content(name) for name in disk.view().names()}
    assert mend(disk.view()) == RepairReport()
    assert {name: disk.content(name) for name in disk.view().names()} == before


def test_after_a_repair_the_log_says_what_it_said_and_only_what_is_lost_is_unsound(
    stopped: FaultyDisk, cases: list[Damage]
) -> None:
    mended = 0
    for damage in sampled(cases, SAMPLE):
        disk = stopped.copy()
        damage.apply(disk)
        before, original = (
            said(fold(disk)[0]),
            disk.content(damage.file) if damage.file in disk.view().names() else None,
        )
        payloads = {r: CaptureStore(disk.view()).read_available(r) for r in ROLLOUTS}
        report = mend(disk.view())
        assert said(fold(disk)[0]) == before, damage.label
        assert {r: CaptureStore(disk.view()).read_available(r) for r in ROLLOUTS} == payloads, damage.label
        found = CaptureStore(disk.view()).verify()
        assert (found.log.headers, found.files) == ([], []), damage.label
        assert all(place.length < 41 for place in found.log.damages), damage.label
        assert mend(disk.view(), "again").epoch == 0, f"{damage.label}: a second repair finds something"
        if not report.epoch:
            continue
        mended += 1
        if original is not None:
            assert [disk.content(name) for name in report.quarantined] == [original], damage.label
        # Later owners and readers say it too.
        owner = Owner(disk.view(), "next")
        assert said(owner.ledger) == before, damage.label
        owner.stop()
        assert said(fold(disk)[0]) == before, damage.label
    assert mended > SAMPLE // 3


def test_who_may_be_concerned_is_the_same_after_a_repair_where_a_list_of_rollouts_was_damaged(
    stopped: FaultyDisk,
) -> None:
    lists = [frame for frame in frames_of(stopped) if any(isinstance(row, MembersRow) for row in frame.rows)]
    assert lists
    for frame in lists:
        disk = stopped.copy()
        file = SegmentName(frame.ref.epoch, frame.ref.segment).file
        content = bytearray(disk.content(file))
        content[frame.offset + 60] ^= 1  # within its rows
        disk.put(file, bytes(content))
        before = said(fold(disk)[0])
        assert mend(disk.view()).epoch
        assert said(fold(disk)[0]) == before


def test_what_was_lost_is_told_until_its_rollouts_are_cleared(stopped: FaultyDisk) -> None:
    disk = stopped.copy()
    name = segments(disk)[1]
    disk.put(name.file, disk.content(name.file)[:60])
    concerned = {r for r in ROLLOUTS if "damaged" in (CaptureStore(disk.view()).evidence(r).incomplete or {})}
    assert concerned
    report = mend(disk.view())
    assert report.segments == [name.file]
    found = CaptureStore(disk.view()).verify()
    assert [place.segment for place in found.log.fillers] == [name]
    assert (found.log.damages, found.log.affected, bool(found.holes)) == ([], set(), True)
    owner = Owner(disk.view(), "next")
    owner.send(Batch().clear("a", "1").clear("b", "2").clear("c", "3").clear("d", "4"), 1, b"client-000000003")
    owner.stop()
    found = CaptureStore(disk.view()).verify()
    assert found.sound
    assert [place.segment for place in found.log.fillers] == [name]


def test_a_repair_killed_anywhere_and_run_again_ends_the_same(stopped: FaultyDisk) -> None:
    last = segments(stopped)[-1]
    damages = [
        rewritten("zero", segments(stopped)[1].file, lambda data: data[:90] + bytes(40) + data[130:]),
        rewritten("header", segments(stopped)[2].file, lambda data: b"x" + data[1:]),
        removed(segments(stopped)[3].file),
        rewritten("cut", last.file, lambda data: data[:70]),
        rewritten("owner", names.OWNER, lambda data: data[:9]),
        rewritten("run", names.RUN, lambda data: b"{"),
        rewritten("epoch", names.epoch_file(1), lambda data: b""),
        rewritten("token", names.token_file(3), lambda data: b"\xff"),
        rewritten("beat", names.beat_file(1), lambda data: b"stopped 7"),
    ]

    def damaged() -> FaultyDisk:
        disk = stopped.copy()
        for damage in damages:
            damage.apply(disk)
        return disk

    def outcome(disk: FaultyDisk) -> object:
        kept = sorted(disk.content(name) for name in disk.view().names() if name.startswith(names.QUARANTINE + "/"))
        mended = [disk.content(name.file) for name in segments(disk) if name.epoch < 4]
        found = CaptureStore(disk.view()).verify()
        return said(fold(disk)[0]), kept, mended, found.log.fillers, found.holes, found.files, found.log.damages

    whole = damaged()
    before = said(fold(whole)[0])
    files = whole.view()
    mend(files)
    assert outcome(whole)[0] == before  # type: ignore[index]
    assert {f"before {name}" for name in fault_points.REPAIR_STEPS} <= set(files.points)
    seen: dict[str, int] = {}
    for index, point in enumerate(files.points):
        seen[point] = seen.get(point, 0) + 1
        if seen[point] > 1 and not EXHAUSTIVE:
            continue
        modes = (None, CrashMode.DROP, CrashMode.PREFIX, CrashMode.TORN)
        for mode in modes if EXHAUSTIVE else (modes[index % 4],):
            disk = damaged()
            view = disk.view()
            view.stop_at(point, seen[point])
            with pytest.raises(Stopped):
                mend(view)
            if mode is not None:
                disk.crash(mode, index)
            assert said(fold(disk)[0]) == before, (point, seen[point], mode)
            mend(disk.view(), "again")
            assert outcome(disk) == outcome(whole), (point, seen[point], mode)


def test_the_small_files_are_put_aside_and_the_directory_starts_again(stopped: FaultyDisk) -> None:
    sound = said(fold(stopped)[0])
    for damage in sampled(small_file_damages(stopped), SAMPLE // 2):
        disk = stopped.copy()
        damage.apply(disk)
        was = CaptureStore(disk.view()).verify()
        original = disk.content(damage.file) if damage.file in disk.view().names() else None
        report = mend(disk.view())
        assert bool(report.epoch) == (not was.sound), damage.label
        if report.epoch and original is not None:
            assert [disk.content(name) for name in report.quarantined] == [original], damage.label
        assert CaptureStore(disk.view()).verify().sound, damage.label
        owner = Owner(disk.view(), "next")
        assert said(owner.ledger) == sound, damage.label


def test_a_live_owner_is_left_alone() -> None:
    disk = written(stopped=False)
    disk.put(segments(disk)[0].file, b"x" + disk.content(segments(disk)[0].file)[1:])
    before = {name: disk.content(name) for name in disk.view().names()}
    clock = ManualClock()

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        disk.put(names.beat_file(3), b"%020d\n" % int(clock.monotonic() * 10))

    with pytest.raises(DirectoryHeld, match=r"gym-capture stop") as caught:
        repair(disk.view(), identity("repair"), unmoved, clock=clock, wait=wait)
    assert caught.value.epoch == 3
    assert {name: disk.content(name) for name in before if "beat" not in name} == {
        name: content for name, content in before.items() if "beat" not in name
    }


def test_a_log_that_died_is_mended_too(stopped: FaultyDisk) -> None:
    disk = written(stopped=False)
    name = segments(disk)[-2]
    disk.put(name.file, disk.content(name.file)[:50] + bytes(60) + disk.content(name.file)[110:])
    mend(disk.view())
    found = CaptureStore(disk.view()).verify()
    assert [place.segment for place in found.log.fillers] == [name]
    assert not found.log.damaged
    assert plan_log(disk.view()).settled


def test_a_marker_that_nothing_can_restore_is_refused_and_nothing_is_changed(stopped: FaultyDisk) -> None:
    disk = stopped.copy()
    for name in segments(disk):
        disk.put(name.file, b"x" + disk.content(name.file)[1:])
    disk.put(names.RUN, b"")
    before = {name: disk.content(name) for name in disk.view().names()}
    with pytest.raises(MissingRunMarker, match="restore RUN from a copy"):
        mend(disk.view())
    assert {name: disk.content(name) for name in disk.view().names()} == before


def test_on_a_real_directory_originals_are_kept_beside_it(tmp_path: Path, stopped: FaultyDisk) -> None:
    for name in stopped.view().names():
        (tmp_path / name).write_bytes(stopped.content(name))
    name = SegmentName(2, 0).file
    damaged = (tmp_path / name).read_bytes()[:70] + bytes(30) + (tmp_path / name).read_bytes()[100:]
    (tmp_path / name).write_bytes(damaged)
    clock = ManualClock()
    report = repair(PosixFiles(tmp_path), identity("repair"), unmoved, clock=clock, wait=clock.advance)
    assert report.quarantined == [f"quarantine/{name}.0"]
    assert (tmp_path / "quarantine" / f"{name}.0").read_bytes() == damaged
    assert (tmp_path / name).stat().st_size == len(damaged)
    assert (tmp_path / "quarantine").stat().st_mode & 0o777 == 0o700
    # Damaged once more, the next original gets a name of its own; the same again none.
    (tmp_path / name).write_bytes(damaged[:50])
    files = PosixFiles(tmp_path)
    kept = [files.set_aside(name, "x") for _ in range(2)]
    assert kept == [f"quarantine/{name}.1"] * 2
    with pytest.raises(CaptureDirectoryError):
        PosixFiles(tmp_path / "absent")
