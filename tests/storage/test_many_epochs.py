"""A log of very many epochs: an owner whose disk fails for hours takes one after the other."""

from __future__ import annotations

from gym_capture.storage import names
from gym_capture.storage.log_plan import plan_log
from gym_capture.storage.recovery import REPEATED_OPENINGS
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import FaultyDisk
from tests.storage.owners import Batch, Owner, calls, exchange

EPOCHS = 2 * REPEATED_OPENINGS + 5


def haunted() -> FaultyDisk:
    """Each epoch's owner is overtaken, wakes, and writes on; every third taker dies before its opening is on disk."""
    disk = FaultyDisk()
    owners: list[Owner] = []
    for number in range(EPOCHS):
        owner = Owner(disk.view(), takeover=True)
        owners.append(owner)
        if number % 3:
            owner.send(Batch().commit("r", exchange(f"c{number}")), number + 1)
        for old in owners[:-1]:
            old.append(Batch().commit("r", exchange(f"ghost {number} of {old.ownership.epoch}")), 1000 + number)
    return disk


def segment_bytes(disk: FaultyDisk) -> int:
    return sum(len(disk.content(name.file)) for name in names.segments_in(disk.view().names()))


def test_every_cut_is_known_and_no_overtaken_owner_is_heard() -> None:
    disk = haunted()
    kept = [f"c{number}" for number in range(EPOCHS) if number % 3]
    assert sorted(plan_log(disk.view()).cuts) == list(range(1, EPOCHS))
    assert [each["model_call_id"] for each in CaptureStore(disk.view()).read("r")] == kept
    assert calls(Owner(disk.view(), takeover=True).ledger, "r") == kept


def test_losing_the_segments_of_many_epochs_in_a_row_forgets_no_cut_of_another() -> None:
    whole = haunted()
    for first in range(1, EPOCHS - REPEATED_OPENINGS + 2):
        disk = whole.copy()
        lost = range(first, first + REPEATED_OPENINGS - 1)
        for name in names.segments_in(disk.view().names()):
            if name.epoch in lost:
                disk.view().remove(name.file)
        cuts = plan_log(disk.view()).cuts
        assert [epoch for epoch in range(1, EPOCHS) if epoch not in cuts and epoch not in lost] == [], first
        found = [each["model_call_id"] for each in CaptureStore(disk.view()).read_available("r")[0]]
        assert not [each for each in found if each.startswith("ghost")], first


def test_the_log_grows_with_the_epochs_and_not_with_their_square() -> None:
    disk = FaultyDisk()
    sizes: list[int] = []
    for number in range(5 * REPEATED_OPENINGS):
        owner = Owner(disk.view(), takeover=True)
        owner.send(Batch().clear("r", f"clear {number}"), number + 1)
        sizes.append(segment_bytes(disk))
    half = len(sizes) // 2
    assert sizes[-1] - sizes[half] < 1.5 * (sizes[half] - sizes[REPEATED_OPENINGS]) * half / (half - REPEATED_OPENINGS)
