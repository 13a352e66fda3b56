"""A log with checkpoints whose bytes are damaged: what is intact comes back, and after a repair all of it opens equal.

What a checkpoint holds stays known whatever becomes of the log before it, so a reader may know more than the log says
until a repair has settled what that is.
"""

from __future__ import annotations

import pytest

from gym_capture.errors import DamagedLog, FormatError
from gym_capture.model.ledger import Ledger
from gym_capture.storage import names
from gym_capture.storage.log_plan import plan_log
from gym_capture.storage.names import CheckpointName, SegmentName
from gym_capture.storage.repair import RepairReport
from gym_capture.storage.resume import open_log
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import FaultyDisk
from tests.storage.damage_corpus import (
    ROLLOUTS,
    Damage,
    Known,
    byte_damages,
    check_reader,
    frames_of,
    known_exchanges,
    log_damages,
    mend,
    removed,
    rewritten,
    said,
    sampled,
    tiny,
    written,
)
from tests.storage.owners import Batch, Owner
from tests.storage.reader_says import says

SAMPLE = 60


@pytest.fixture(scope="module")
def stopped() -> FaultyDisk:
    return written(checkpoints=True)


@pytest.fixture(scope="module")
def known(stopped: FaultyDisk) -> list[Known]:
    return known_exchanges(stopped)


@pytest.fixture(scope="module")
def cases(stopped: FaultyDisk) -> list[Damage]:
    return log_damages(stopped)


@pytest.fixture(scope="module")
def cache_cases(stopped: FaultyDisk) -> list[Damage]:
    return [damage for name in indexes(stopped) for damage in byte_damages(stopped, name.file)]


def indexes(disk: FaultyDisk) -> list[CheckpointName]:
    return names.checkpoints_in(disk.view().names())


def opened(disk: FaultyDisk) -> Ledger:
    """What whoever opens the directory knows, all of it in memory."""
    files = disk.view()
    for checkpoints in (True, False):
        ledger = Ledger()
        found = open_log(files, plan_log(files), ledger, checkpoints=checkpoints)
        try:
            found.fold.bring_back(list(ledger.archived))
            break
        except DamagedLog:
            continue  # a page: whoever meets one reads the log
    return ledger


def same_with_and_without(disk: FaultyDisk) -> bool:
    whole = says(CaptureStore(disk.view(), checkpoints=False), ROLLOUTS)
    return says(CaptureStore(disk.view()), ROLLOUTS) == whole


def test_the_log_has_checkpoints_that_are_opened_behind(stopped: FaultyDisk) -> None:
    assert len(indexes(stopped)) == 6
    assert CaptureStore(stopped.view()).report.checkpoint == indexes(stopped)[-1].file
    assert same_with_and_without(stopped)


def test_what_is_intact_comes_back_and_what_is_lost_is_counted_or_marked(
    stopped: FaultyDisk, known: list[Known], cases: list[Damage]
) -> None:
    behind = 0
    for damage in sampled(cases, SAMPLE):
        after = stopped.copy()
        damage.apply(after)
        check_reader(damage, stopped, after, known)
        behind += bool(CaptureStore(after.view()).report.checkpoint)
    assert 0 < behind < min(SAMPLE, len(cases))


def test_damage_of_a_checkpoint_changes_nothing_that_is_said(stopped: FaultyDisk, cache_cases: list[Damage]) -> None:
    expected = says(CaptureStore(stopped.view()), ROLLOUTS)
    for damage in sampled(cache_cases, SAMPLE):
        after = stopped.copy()
        damage.apply(after)
        assert says(CaptureStore(after.view()), ROLLOUTS) == expected, damage.label


def test_an_owner_that_recovers_says_what_a_reader_says_before_and_after(
    stopped: FaultyDisk, cases: list[Damage], cache_cases: list[Damage]
) -> None:
    for damage in [*sampled(cases, SAMPLE // 2), *sampled(cache_cases, SAMPLE // 2)]:
        after = stopped.copy()
        damage.apply(after)
        before = says(CaptureStore(after.view()), ROLLOUTS)
        try:
            owner = Owner(after.view(), "next")
        except DamagedLog:  # a page; whoever meets one reads the log
            owner = Owner(after.view(), "next", takeover=True, checkpoints=False)
        owner.stop()
        assert says(CaptureStore(after.view()), ROLLOUTS) == before, damage.label
        assert said(opened(after)) == said(owner.ledger), damage.label


def test_after_a_repair_a_directory_opens_behind_its_checkpoints_as_without_them(
    stopped: FaultyDisk, cases: list[Damage], cache_cases: list[Damage]
) -> None:
    for damage in [*sampled(cases, SAMPLE), *sampled(cache_cases, SAMPLE // 2)]:
        after = stopped.copy()
        damage.apply(after)
        mend(after)
        assert CaptureStore(after.view()).verify().checkpoints == [], damage.label
        assert same_with_and_without(after), damage.label
        assert mend(after) == RepairReport(), damage.label


def test_of_a_log_that_died_too() -> None:
    died = written(stopped=False, checkpoints=True)
    whole = known_exchanges(died)
    for damage in sampled(log_damages(died), SAMPLE):
        after = died.copy()
        damage.apply(after)
        taken = after.copy()
        owner = Owner(taken.view(), "next")
        owner.stop()
        assert said(opened(taken)) == said(owner.ledger), damage.label
        mend(after)
        assert same_with_and_without(after), damage.label
    assert whole


def test_each_frame_lost_before_a_checkpoint_is_told_after_a_repair(stopped: FaultyDisk) -> None:
    for frame in frames_of(stopped):
        file = SegmentName(frame.ref.epoch, frame.ref.segment).file
        after = stopped.copy()
        rewritten(
            f"frame at {frame.offset} of",
            file,
            lambda data, at=frame.offset: data[: at + 60] + bytes([data[at + 60] ^ 1]) + data[at + 61 :],  # type: ignore[misc]
        ).apply(after)
        mend(after)
        assert same_with_and_without(after), (file, frame.offset)
        assert CaptureStore(after.view()).verify().checkpoints == []


def test_a_segment_that_is_gone_is_told_after_a_repair(stopped: FaultyDisk) -> None:
    for name in names.segments_in(stopped.view().names()):
        after = stopped.copy()
        removed(name.file).apply(after)
        try:
            mend(after)
        except FormatError:
            continue
        assert same_with_and_without(after), name.file


def test_what_is_written_over_damage_opens_behind_its_checkpoints_as_without_them(
    stopped: FaultyDisk, cases: list[Damage]
) -> None:
    holes = 0
    for damage in sampled(cases, SAMPLE):
        after = stopped.copy()
        damage.apply(after)
        for name in indexes(after):
            after.view().remove(name.file)
        owner = Owner(after.view(), "next", segment_bytes=900)
        owner.send(Batch().commit("a", tiny("later")).claim("e", 1), 10)
        owner.checkpoint()
        owner.bring_back(*owner.ledger.archived)
        owner.send(Batch().commit("b", tiny("later")).commit("e", tiny("later"), 1).claim("e", 2), 11)
        owner.checkpoint()
        owner.stop()
        store = CaptureStore(after.view())
        assert store.report.checkpoint == indexes(after)[-1].file
        assert same_with_and_without(after), damage.label
        assert store.verify().checkpoints == [], damage.label
        holes += sum(standing.damaged for standing in store.standings())
    assert holes
