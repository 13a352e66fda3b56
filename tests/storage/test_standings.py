"""How rollouts stand that are on disk only is known without reading what they hold."""

from __future__ import annotations

from collections import Counter

from gym_capture.storage.checkpoints import read_checkpoint
from gym_capture.storage.names import CheckpointName
from gym_capture.storage.standing import RolloutStanding
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import FaultyDisk, FaultyFiles
from tests.storage.owners import Batch, Owner, exchange

PLAIN = [f"plain-{number}" for number in range(20)]
LACKING = ["late", "released", "holder"]


class _Counted(FaultyFiles):
    """A view that counts the bytes that are read of each file."""

    def __init__(self, disk: FaultyDisk) -> None:
        super().__init__(disk)
        self.bytes: Counter[str] = Counter()
        self.reads = 0

    def read_at(self, name: str, offset: int, length: int) -> bytes:
        data = super().read_at(name, offset, length)
        self.bytes[name.split("-")[0]] += len(data)
        self.reads += 1
        return data

    def forget(self) -> None:
        self.bytes.clear()
        self.reads = 0


def checkpointed() -> tuple[FaultyDisk, Owner]:
    """Plain rollouts of two calls with long payloads, some that lack something, all in a checkpoint."""
    disk = FaultyDisk()
    owner = Owner(disk.view())
    batch = Batch().claim("released", 1).release("released", 1).commit("late", exchange("l0")).claim("holder", 2)
    for rollout in PLAIN:
        batch.commit(rollout, exchange("p0", "x" * 5000)).commit(rollout, exchange("p1", "y" * 5000))
    owner.send(batch, 1)
    owner.merge("late")
    owner.merge(PLAIN[0])
    owner.send(Batch().commit("late", exchange("l1")).clear("cleared", "once"), 2)
    owner.checkpoint()
    return disk, owner


def test_only_rollouts_that_lack_something_are_read_for_how_they_stand_and_only_once() -> None:
    disk, _ = checkpointed()
    files = _Counted(disk)
    store = CaptureStore(files)
    assert store.report.checkpoint == CheckpointName(1, 0).file
    files.forget()
    standings = {each.rollout_id: each for each in store.standings()}
    # The one with the open claim was read for that when the store was opened.
    assert (set(files.bytes), files.reads) == ({"index"}, 2)
    assert standings == {
        **{rollout: RolloutStanding(rollout, 0, 2) for rollout in PLAIN},
        "late": RolloutStanding("late", 0, 2, late=1),
        "released": RolloutStanding("released", 0, 0, reasons={"released": 1}),
        "holder": RolloutStanding("holder", 0, 0, outstanding=1),
        "cleared": RolloutStanding("cleared", 1, 0),
    }
    files.forget()
    assert store.standings() == sorted(standings.values())
    assert [store.standing(rollout) for rollout in sorted(standings)] == sorted(standings.values())
    assert store.standing("nowhere") == RolloutStanding("nowhere", 0, 0)
    assert files.reads == 0


def test_a_rollout_of_which_only_the_issued_calls_are_known_lacks_them_whoever_asks() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    owner.merge("none", 3)
    owner.stop()
    store = CaptureStore(disk.view())
    missing = {"unaccounted": 3}
    assert store.standings() == [RolloutStanding("none", 0, 0, reasons=missing)]
    assert store.captured("none").reasons == store.evidence("none").incomplete == missing
    assert store.is_incomplete("none")


def test_records_of_a_rollout_on_disk_cost_its_page_and_no_payload() -> None:
    disk, _ = checkpointed()
    files = _Counted(disk)
    store = CaptureStore(files)
    files.forget()
    [first, second] = store.records(PLAIN[3])
    assert (first.call_index, second.call_index) == (0, 1)
    assert first.record is not None
    assert first.stored_bytes is not None
    assert files.reads == 3
    assert files.bytes["segment"] < 2000
    assert [record.call_index for record in store.records(PLAIN[3], 1)] == [1]


def test_a_live_directory_shows_what_comes_after_its_checkpoint() -> None:
    disk, owner = checkpointed()
    store = CaptureStore(disk.view())
    assert [(claim.rollout_id, claim.opened_at) for claim in store.open_claims()] == [("holder", owner.clock.time())]
    owner.bring_back(*owner.ledger.archived)
    owner.send(
        Batch().commit("holder", exchange("h0"), 2).clear("late", "again").claim(PLAIN[1], 3).release("released", 9), 3
    )
    store.refresh()
    whole = CaptureStore(disk.view(), checkpoints=False)
    assert store.report.checkpoint
    assert store.standings() == whole.standings()
    assert store.standing("late") == RolloutStanding("late", 1, 0)
    assert store.standing(PLAIN[1]) == RolloutStanding(PLAIN[1], 0, 2, outstanding=1)
    assert store.standing("holder").calls == 1
    assert [claim.rollout_id for claim in store.open_claims()] == [PLAIN[1]]
    owner.checkpoint()
    owner.stop()
    assert CaptureStore(disk.view()).standings() == whole.standings()


def test_where_a_page_is_damaged_the_whole_log_says_how_all_stand() -> None:
    disk, owner = checkpointed()
    owner.stop()
    expected = CaptureStore(disk.view(), checkpoints=False).standings()
    name = CheckpointName(1, 0)
    size = disk.view().size(name.file)
    fell_back = 0
    for offset in range(32, size, 37):
        damaged = disk.copy()
        damaged.flip_bit(name.file, 8 * offset)
        store = CaptureStore(damaged.view())
        assert store.standings() == expected, offset
        fell_back += not store.report.checkpoint
    assert fell_back
    read_checkpoint(disk.view(), name)
