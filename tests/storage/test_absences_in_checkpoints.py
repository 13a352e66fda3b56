"""Checkpoint files of a rollout lacking many calls: how large they are, and that `verify` compares all of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gym_capture.model.codec import checksum
from gym_capture.model.pages import unpack_archived
from gym_capture.model.rows import ClaimRow, CommitRow
from gym_capture.storage import checkpoints
from gym_capture.storage.checkpoints import read_checkpoint
from gym_capture.storage.names import CheckpointName
from gym_capture.storage.segments import owner_frame
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import FaultyDisk
from tests.model.ledgers import state_of
from tests.storage.owners import CLIENT, Batch, Owner
from tests.storage.test_checkpoints import open_ledger, replace

CALLS = 64


def released(owner: Owner, number: int, calls: range) -> None:
    batch = Batch()
    for call in calls:
        batch.rows.append(ClaimRow("a", call, f"call-{call:08d}"))
        batch.release("a", call)
    owner.send(batch, number)


def refused(owner: Owner, number: int, calls: range) -> None:
    batch = Batch()
    batch.rows += [CommitRow("a", 0, "call", call.to_bytes(16, "big"), []) for call in calls]
    owner.send(batch, number)


def lost(owner: Owner, number: int, calls: range) -> None:
    batch = Batch()
    batch.rows += [ClaimRow("a", call, f"call-{call:08d}") for call in calls]
    owner.send(batch, number)
    rows = owner.ledger.leave(CLIENT)
    frame = owner_frame(rows, owner.ledger.last_sequence + 1, owner.ownership.epoch)
    owner.ledger.apply_owner_rows(rows, frame.ref)
    owner.writer.append([frame])
    owner.writer.sync()
    owner.ledger.durable(owner.ledger.last_sequence)


KINDS = pytest.mark.parametrize("happens", [released, refused, lost], ids=lambda each: each.__name__)


def lived(happens: Callable[[Owner, int, range], None], count: int = 8) -> FaultyDisk:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    for number in range(1, count + 1):
        happens(owner, number, range(1 + number * CALLS, 1 + (number + 1) * CALLS))
        owner.checkpoint()
    owner.stop()
    return disk


def assert_opened_alike(disk: FaultyDisk) -> None:
    """The directory says behind its last checkpoint what its whole log says."""
    behind, found = open_ledger(disk)
    assert found
    whole, _ = open_ledger(disk, resume=False)
    assert state_of(behind)["rollouts"] == state_of(whole)["rollouts"]


@KINDS
def test_pages_grow_with_what_is_missing_and_not_with_its_square(
    happens: Callable[[Owner, int, range], None],
) -> None:
    disk = lived(happens)
    files = disk.view()
    sizes = []
    for number in range(8):
        table = read_checkpoint(files, CheckpointName(1, number)).table
        sizes.append(unpack_archived({**table.quiet, **table.busy}["a"]).place.length)
    assert max(sizes) < 1.3 * min(sizes)
    assert CaptureStore(files).verify().checkpoints == []
    assert_opened_alike(disk)


@KINDS
def test_a_page_that_lacks_one_of_them_is_found(happens: Callable[[Owner, int, range], None]) -> None:
    disk = lived(happens)
    name = CheckpointName(1, 4)
    table = read_checkpoint(disk.view(), name).table
    place = unpack_archived({**table.quiet, **table.busy}["a"]).place
    data = bytearray(disk.view().read(name.file))
    called = 5 * CALLS + 7
    old, new = f"call-{called:08d}".encode(), b"call-9999zzzz"
    if happens is refused:
        old, new = called.to_bytes(16, "big"), b"\xff" * 16
    page = data[place.offset + 4 : place.offset + place.length]
    assert page.count(old)
    page = page.replace(old, new)
    data[place.offset : place.offset + place.length] = checkpoints._CRC.pack(checksum(bytes(page))) + page
    replace(disk, name, bytes(data))
    found = CaptureStore(disk.view()).verify().checkpoints
    assert (found[0].file, found[0].offset) == (name.file, place.offset)


@KINDS
def test_a_checkpoint_that_is_there_though_its_owner_was_told_otherwise_agrees_with_the_log(
    happens: Callable[[Owner, int, range], None],
) -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    for number in range(1, 6):
        happens(owner, number, range(1 + number * CALLS, 1 + (number + 1) * CALLS))
        if number == 3:
            chain = owner.checkpoints._previous
            snapshot = owner.ledger.snapshot()
            owner.checkpoints.write(snapshot, owner.writer.last)
            owner.checkpoints._previous = chain
            owner.ledger.not_saved(snapshot)
        else:
            owner.checkpoint()
    owner.stop()
    assert CaptureStore(disk.view()).verify().checkpoints == []
    assert_opened_alike(disk)
