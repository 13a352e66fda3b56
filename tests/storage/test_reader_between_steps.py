"""A reader of a live directory, at and between the owners' steps: it reports no damage, misses nothing acknowledged."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from gym_capture.storage import fault_points
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import FaultyDisk, FaultyFiles, Stopped
from tests.storage.directory_history import History, PassingFiles
from tests.storage.owners import CLIENT, OTHER_CLIENT, Batch, Owner, exchange

SEGMENT_BYTES = 1500
READERS = 9


class Scene:
    """Owners one after another, and the calls that they are sent."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.history = History(self.random)
        self.calls = 0
        self.batches = {CLIENT: 0, OTHER_CLIENT: 0}

    def owner(self, actor: str) -> Owner:
        return Owner(self.history.view(), actor, takeover=True, segment_bytes=SEGMENT_BYTES)

    def append(self, owner: Owner, number: int = 1) -> list[str]:
        """Batches of both clients, some with a claim, not synced yet."""
        sent = []
        for _ in range(number):
            self.calls += 1
            call = f"call-{self.calls}"
            client = self.random.choice([CLIENT, OTHER_CLIENT])
            self.batches[client] += 1
            batch = Batch()
            if self.random.random() < 0.5:
                batch.claim("r", self.calls)
                owner.append(batch, self.batches[client], client)
                self.batches[client] += 1
                batch = Batch().commit("r", exchange(call), claim=self.calls)
            else:
                batch.commit("r", exchange(call))
            owner.append(batch, self.batches[client], client)
            sent.append(call)
        return sent

    def send(self, owner: Owner, number: int) -> None:
        """Groups of one to three calls, each acknowledged."""
        while number > 0:
            sent = self.append(owner, min(number, self.random.randint(1, 3)))
            owner.writer.sync()
            owner.ownership.check()
            number -= len(sent)
            for call in sent:
                self.history.acknowledge(call)


def _appends(scene: Scene, frozen: Owner) -> None:
    scene.append(frozen)


def life(seed: int) -> History:
    """Rotation, a failed write, a frozen owner that thaws at any step of its successor's, one that dies, a stop."""
    scene = Scene(seed)
    first = scene.owner("one")
    scene.send(first, 8)
    # A write fails, and the same process takes the next epoch.
    first.files.fail_at(  # type: ignore[attr-defined]  # a faulty view's
        fault_points.before(fault_points.APPEND), errno.EIO, short_bytes=scene.random.choice([0, 1, 100, 300])
    )
    with pytest.raises(OSError, match="Input/output"):
        scene.append(first)
    second = scene.owner("one")
    scene.send(second, 4)
    # It freezes with a group that is not synced, and thaws while it is being replaced, and again later.
    scene.append(second, scene.random.randint(1, 6))
    successor = scene.history.view()
    for _ in range(3):
        step = scene.random.choice([fault_points.COPY_APPEND, fault_points.COPY_SYNC, fault_points.CUT_APPEND])
        around = scene.random.choice([fault_points.before, fault_points.after])
        successor.run_at(around(step), partial(_appends, scene, second))
    third = Owner(successor, "three", takeover=True, segment_bytes=SEGMENT_BYTES)
    scene.append(second)
    scene.send(third, 4)
    scene.append(second, 2)
    scene.append(third, 3)
    # A taker that dies in the middle, and one that does not.
    dying = scene.history.view()
    dying.stop_at(scene.random.choice([fault_points.after(fault_points.COPY_APPEND), "before cut-sync"]))
    with pytest.raises(Stopped):
        Owner(dying, "four", takeover=True, segment_bytes=SEGMENT_BYTES)
    scene.append(second)
    fifth = scene.owner("five")
    scene.send(fifth, 5)
    fifth.stop()
    scene.history.step()
    scene.send(scene.owner("six"), 3)
    return scene.history


def look(store: CaptureStore, where: object) -> list[str]:
    """The calls that a store shows of the rollout; it has found no damage."""
    assert store.report.damages == [], where
    assert not store.report.damaged, where
    evidence = store.evidence("r")
    assert (evidence.damaged, evidence.incomplete) == (0, None), where
    assert [record["call_index"] for record in evidence.records] == list(range(len(evidence.records))), where
    shown = [record["model_call_id"] for record in evidence.records]
    assert len(set(shown)) == len(shown), where
    return shown


@pytest.fixture(autouse=True)
def small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of a last group are several steps, and fill several segments."""
    monkeypatch.setattr("gym_capture.storage.recovery._COPY_BYTES", 1)


@pytest.mark.parametrize("seed", range(2))
def test_a_reader_is_right_after_every_step_and_between_them(seed: int) -> None:
    history = life(seed)
    still = PassingFiles(history, Random(seed), hurry=0)
    kept = CaptureStore(still)
    shown: list[set[str]] = []
    for still.now in range(len(history.states)):
        kept.refresh()
        seen = look(kept, still.now)
        if still.now % 4 == 0:
            assert seen == look(CaptureStore(still), still.now), still.now
        assert history.acknowledged[still.now] <= set(seen), still.now
        shown.append(set(seen))
    for number in range(READERS):
        passing = PassingFiles(history, Random(number), hurry=(3, 30, 300)[number % 3])
        passing.now = Random(number).randrange(len(history.states))
        store: CaptureStore | None = None
        while passing.now < passing.last:
            began = passing.now
            if store is None:
                store = CaptureStore(passing)
            else:
                store.refresh()
            where = (seed, number, began, passing.now)
            seen = look(store, where)
            assert history.acknowledged[began] <= set(seen), where
            # Whatever it shows was part of the log at some moment meanwhile; nothing comes back that was cut before.
            assert set(seen) <= set().union(*shown[began : passing.now + 1]), where
            passing.pass_time()


class StoppedWhileListing(FaultyFiles):
    """A reader's view; much happens between its first listing and what it does next."""

    def __init__(self, disk: FaultyDisk, meanwhile: Callable[[], None]) -> None:
        super().__init__(disk)
        self._meanwhile: Callable[[], None] | None = meanwhile

    def names(self) -> list[str]:
        listed = super().names()
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return listed


def test_what_an_old_owner_wrote_after_its_cut_is_not_shown_to_a_reader_that_was_stopped_while_it_listed() -> None:
    disk = FaultyDisk()
    old = Owner(disk.view(), "old")
    old.send(Batch().commit("r", exchange("one")), 1)

    def taken_over() -> None:
        Owner(disk.view(), "new", takeover=True)
        old.append(Batch().commit("r", exchange("ghost")), 2)

    assert look(CaptureStore(StoppedWhileListing(disk, taken_over)), "") == ["one"]
    assert look(CaptureStore(disk.view()), "") == ["one"]
