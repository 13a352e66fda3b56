"""Checkpoints are a cache: whatever becomes of them, a directory says what its log says."""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from gym_capture.errors import DamagedLog
from gym_capture.model.codec import checksum
from gym_capture.model.ledger import Ledger
from gym_capture.model.pages import unpack_archived
from gym_capture.model.rows import MembersRow
from gym_capture.storage import checkpoints, names
from gym_capture.storage.checkpoints import Checkpoint, read_checkpoint, read_rollout
from gym_capture.storage.log_plan import plan_log
from gym_capture.storage.log_reader import Frame
from gym_capture.storage.log_scan import LogScan
from gym_capture.storage.names import CheckpointName
from gym_capture.storage.repair import RepairReport, repair
from gym_capture.storage.resume import open_log
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import FaultyDisk
from gym_capture.testing.manual_clock import ManualClock
from tests.model.ledgers import state_of
from tests.storage import reader_says
from tests.storage.owners import OTHER_CLIENT, Batch, Owner, exchange, identity

FIRST, SECOND = CheckpointName(1, 0), CheckpointName(1, 1)


def busy_life(disk: FaultyDisk, *, stop: bool = True) -> Owner:
    """Merged, late, cleared, released and open ones over two checkpoints, and rows behind them."""
    owner = Owner(disk.view(), segment_bytes=1500)
    owner.send(Batch().claim("a", 1).claim("b", 2).commit("a", exchange("a1"), 1), 1)
    owner.send(Batch().commit("c", exchange("c1")).claim("d", 3).release("d", 3), 2)
    owner.merge("a")
    owner.merge("c")
    owner.checkpoint()
    owner.send(Batch().commit("a", exchange("a2")).clear("c", "again").claim("e", 4), 3)
    owner.send(Batch().commit("c", exchange("c2")).commit("b", exchange("b1"), 2), 1, OTHER_CLIENT)
    owner.merge("c")
    owner.checkpoint()
    owner.send(Batch().commit("a", exchange("a3")).commit("f", exchange("f1")), 4)
    if stop:
        owner.stop()
    return owner


@pytest.fixture(scope="module")
def lived() -> FaultyDisk:
    disk = FaultyDisk()
    busy_life(disk)
    return disk


def without_checkpoints(disk: FaultyDisk) -> FaultyDisk:
    bare = disk.copy()
    files = bare.view()
    for name in names.checkpoints_in(files.names()):
        files.remove(name.file)
    return bare


def says(store: CaptureStore) -> dict[str, Any]:
    """Everything that a reader says of a directory."""
    return reader_says.says(store, "abcdefg")


def open_ledger(disk: FaultyDisk, *, resume: bool = True) -> tuple[Ledger, str]:
    """The ledger of a directory with everything in memory, and the checkpoint that it was opened behind."""
    files, ledger = disk.view(), Ledger()
    opened = open_log(files, plan_log(files), ledger, checkpoints=resume)
    opened.fold.bring_back(list(ledger.archived))
    return ledger, opened.scan.report.checkpoint


def replace(disk: FaultyDisk, name: CheckpointName, data: bytes) -> None:
    files = disk.view()
    files.remove(name.file)
    files.create(name.file, data, "checkpoint")


# -- with checkpoints as without --------------------------------------------------------------------------------------


def test_a_directory_opened_behind_a_checkpoint_says_what_its_whole_log_says(lived: FaultyDisk) -> None:
    with_checkpoints, bare = CaptureStore(lived.view()), CaptureStore(without_checkpoints(lived).view())
    assert (with_checkpoints.report.checkpoint, bare.report.checkpoint) == (SECOND.file, "")
    assert says(with_checkpoints) == says(bare)
    assert with_checkpoints.report.frames < bare.report.frames / 3


def test_an_owner_that_opens_behind_a_checkpoint_has_the_ledger_of_the_whole_log(lived: FaultyDisk) -> None:
    ledger, name = open_ledger(lived)
    assert name == SECOND.file
    assert state_of(ledger) == state_of(open_ledger(lived, resume=False)[0])
    assert ledger.counts == open_ledger(lived, resume=False)[0].counts


def test_a_reader_takes_in_what_comes_later_for_archived_rollouts_too() -> None:
    disk = FaultyDisk()
    owner = busy_life(disk, stop=False)
    store = CaptureStore(disk.view())
    owner.send(Batch().commit("c", exchange("c3")).clear("a", "x").claim("b", 9), 5)
    owner.checkpoint()
    owner.send(Batch().commit("c", exchange("c4")), 6)
    store.refresh()
    assert store.report.checkpoint == SECOND.file
    assert says(store) == says(CaptureStore(without_checkpoints(disk).view()))
    assert [each["model_call_id"] for each in store.read("c")] == ["c2", "c3", "c4"]


def test_an_owner_goes_on_with_the_chain_of_the_owner_before(lived: FaultyDisk) -> None:
    disk = lived.copy()
    owner = Owner(disk.view())
    assert owner.report.checkpoint == SECOND.file
    owner.send(Batch().commit("c", exchange("c3")), 7)
    owner.checkpoint()
    header = read_checkpoint(disk.view(), CheckpointName(2, 0)).header
    assert header.previous is not None
    assert header.previous[:2] == SECOND
    disk.crash()
    assert says(CaptureStore(disk.view())) == says(CaptureStore(without_checkpoints(disk).view()))


def test_frames_that_were_seen_before_the_checkpoint_count_as_seen(lived: FaultyDisk) -> None:
    disk = lived.copy()
    for number in (1, 2):
        owner = Owner(disk.view(), f"actor-{number + 1}", takeover=True)
        owner.send(Batch().commit("a", exchange(f"later-{number}")), 10 + number)
        owner.checkpoint()
        owner.send(Batch().commit("b", exchange(f"latest-{number}")), 20 + number)
    seen = []
    for resume in (True, False):
        files = disk.view()
        seen.append(open_log(files, plan_log(files), Ledger(), checkpoints=resume).scan.seen.runs())
    assert seen[0] == seen[1]
    assert set(seen[0]) == {1, 2, 3}


def test_a_new_owner_lists_whose_rows_the_cut_segment_has_before_the_checkpoint_too() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    owner.send(Batch().commit("early", exchange("1")).claim("early too", 1), 1)
    owner.checkpoint()
    owner.send(Batch().commit("middle", exchange("2")), 2)
    owner.checkpoint()
    owner.send(Batch().commit("late", exchange("3")), 3)
    owner.send(Batch().commit("last", exchange("4")), 4)
    successor = Owner(disk.view(), "actor-2", takeover=True)
    assert successor.report.checkpoint == SECOND.file
    rows = [row for item in LogScan(disk.view()) if isinstance(item, Frame) for row in item.rows]
    [members] = [row for row in rows if isinstance(row, MembersRow)]
    assert (members.epoch, members.rollouts) == (1, ["early", "early too", "late", "middle"])


def test_a_batch_that_an_earlier_owner_applied_is_answered_from_a_checkpoint(lived: FaultyDisk) -> None:
    owner = Owner(lived.copy().view())
    again = Batch().commit("a", exchange("a2")).clear("c", "again").claim("e", 4)
    assert owner.append(again, 3) is None
    _, results = owner.ledger.clients[b"client-000000001"].answers[3]
    assert [(each.outcome, each.generation, each.call_index) for each in results] == [(0, 0, 1), (0, 1, -1), (0, 0, -1)]


# -- what does not count ----------------------------------------------------------------------------------------------


def test_a_checkpoint_beyond_its_epochs_cut_does_not_count() -> None:
    disk = FaultyDisk()
    owner = busy_life(disk, stop=False)
    owner.checkpoint()  # holds the last group, which the next owner cannot know to be on disk: it is copied and cut
    assert CaptureStore(disk.view()).report.checkpoint == CheckpointName(1, 2).file
    successor = Owner(disk.view(), "actor-2", takeover=True)
    assert successor.report.checkpoint == SECOND.file
    assert says(CaptureStore(disk.view())) == says(CaptureStore(without_checkpoints(disk).view()))


def test_what_a_superseded_owner_still_writes_never_counts() -> None:
    disk = FaultyDisk()
    owner = busy_life(disk, stop=False)
    Owner(disk.view(), "actor-2", takeover=True)
    owner.append(Batch().commit("a", exchange("frozen")), 9)
    owner.writer.sync()
    owner.ledger.durable(owner.ledger.last_sequence)
    owner.checkpoint()
    assert CheckpointName(1, 2) in names.checkpoints_in(disk.view().names())
    store = CaptureStore(disk.view())
    assert store.report.checkpoint == SECOND.file
    assert [each["model_call_id"] for each in store.read("a")] == ["a1", "a2", "a3"]


def changed_header(disk: FaultyDisk, name: CheckpointName, **changes: Any) -> bytes:
    """The checkpoint's file with another header, its checksum made right."""
    data = disk.view().read(name.file)
    found = read_checkpoint(disk.view(), name)
    fixed = checkpoints._FIXED.unpack_from(data)
    pages = data[checkpoints.CHECKPOINT_HEAD_BYTES :][: fixed[1]]
    header = msgspec.structs.replace(found.header, **changes)
    tail = [msgspec.msgpack.encode(part) for part in (header, found.state, found.table)]
    head = checkpoints._FIXED.pack(checkpoints.CHECKPOINT_MAGIC, len(pages), *map(len, tail))
    crc = checkpoints._CRC.pack(checksum(head + b"".join(tail)))
    return b"".join((head, crc, pages, *tail))


@pytest.mark.parametrize(
    "changes",
    [
        {"run": uuid.UUID(int=7).bytes},
        {"sequence": 1},
        {"sequence": 10_000},
        {"segment": 0},
        {"segment": 77},
        {"end": 41},
        {"end": 1 << 40},
        {"start": 43},
        {"previous": (1, 0, 12345)},
        {"previous": (1, 1, 0)},
        {"epoch": 3},
    ],
    ids=str,
)
def test_a_checkpoint_that_does_not_fit_its_log_does_not_count(lived: FaultyDisk, changes: dict[str, Any]) -> None:
    disk = lived.copy()
    replace(disk, SECOND, changed_header(disk, SECOND, **changes))
    store = CaptureStore(disk.view())
    assert store.report.checkpoint != SECOND.file
    assert says(store) == says(CaptureStore(without_checkpoints(lived).view()))


def test_a_log_that_is_damaged_behind_the_checkpoint_is_read_from_its_beginning(lived: FaultyDisk) -> None:
    disk = lived.copy()
    header = read_checkpoint(disk.view(), SECOND).header
    segment = names.SegmentName(1, header.segment)
    disk.flip_bit(segment.file, 8 * (header.end + 45))
    store, bare = CaptureStore(disk.view()), CaptureStore(without_checkpoints(disk).view())
    assert (store.report.checkpoint, store.report.damaged) == ("", True)
    assert store.report.affected == bare.report.affected
    for rollout in "abcdef":
        assert store.evidence(rollout) == bare.evidence(rollout)


# -- damage -----------------------------------------------------------------------------------------------------------


def test_every_flipped_byte_of_a_checkpoint_is_noticed(lived: FaultyDisk) -> None:
    files = lived.view()
    found = read_checkpoint(files, SECOND)
    data = files.read(SECOND.file)
    for offset in range(len(data)):
        changed = _Altered(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        with pytest.raises(DamagedLog):
            read_everything(changed, found)


def test_every_shorter_checkpoint_is_noticed(lived: FaultyDisk) -> None:
    data = lived.view().read(SECOND.file)
    for size in range(len(data)):
        with pytest.raises(DamagedLog):
            read_checkpoint(_Altered(data[:size]), SECOND)  # type: ignore[arg-type]


class _Altered:
    """One file with other bytes in it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self, _name: str) -> int:
        return len(self._data)

    def read_at(self, _name: str, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]


def read_everything(files: Any, found: Checkpoint) -> None:
    read_checkpoint(files, SECOND)
    for rollout, packed in {**found.table.busy, **found.table.quiet}.items():
        try:
            read_rollout(files, rollout, packed)
        except DamagedLog as error:
            if "another rollout" not in str(error):  # its earlier page is in the file before, which this is not
                raise


@pytest.mark.parametrize("name", [FIRST, SECOND], ids=str)
def test_with_a_damaged_checkpoint_a_directory_still_says_what_its_log_says(
    lived: FaultyDisk, name: CheckpointName
) -> None:
    expected = says(CaptureStore(without_checkpoints(lived).view()))
    ledger = state_of(open_ledger(lived, resume=False)[0])
    size = lived.view().size(name.file)
    for offset in [0, 9, 20, 30, *range(33, size, size // 12), size - 1]:
        disk = lived.copy()
        disk.flip_bit(name.file, 8 * offset + 4)
        assert says(CaptureStore(disk.view())) == expected, offset
        try:
            found, _ = open_ledger(disk)
        except DamagedLog:
            continue  # a page of a rollout that nothing is replayed of; whoever asks for it reads the whole log
        assert state_of(found) == ledger, offset
    for gone in (0, size // 2, size - 1):
        disk = lived.copy()
        replace(disk, name, lived.view().read(name.file)[:gone])
        assert says(CaptureStore(disk.view())) == expected, gone
    disk = lived.copy()
    disk.view().remove(name.file)
    assert says(CaptureStore(disk.view())) == expected


# -- verify and repair ------------------------------------------------------------------------------------------------


def mend(disk: FaultyDisk) -> RepairReport:
    clock = ManualClock()
    return repair(
        disk.view(), identity("repair"), lambda _: nullcontext(), clock=clock, wait=clock.advance, new_token=str
    )


def test_sound_checkpoints_agree_with_the_log_and_need_no_repair(lived: FaultyDisk) -> None:
    files = lived.view()
    report = CaptureStore(files).verify()
    assert (report.checkpoints, report.sound) == ([], True)
    disk = lived.copy()
    successor = Owner(disk.view(), "actor-2", takeover=True)
    successor.send(Batch().commit("a", exchange("a4")).commit("b", exchange("b2")), 8)
    successor.checkpoint()
    assert CaptureStore(disk.view()).verify().checkpoints == []
    assert mend(lived.copy()) == RepairReport()


def test_what_a_superseded_owner_wrote_beyond_its_cut_is_passed_over() -> None:
    disk = FaultyDisk()
    owner = busy_life(disk, stop=False)
    owner.checkpoint()
    Owner(disk.view(), "actor-2", takeover=True)
    assert CaptureStore(disk.view()).verify().checkpoints == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"run": uuid.UUID(int=7).bytes}, "belongs to run"),
        ({"sequence": 1}, "ends with frame 1"),
        ({"segment": 0, "end": 41}, "no frame of"),
        ({"previous": (1, 0, 12345)}, "the checkpoint before it"),
    ],
    ids=str,
)
def test_verify_names_a_checkpoint_that_does_not_fit_its_log(
    lived: FaultyDisk, changes: dict[str, Any], why: str
) -> None:
    disk = lived.copy()
    replace(disk, SECOND, changed_header(disk, SECOND, **changes))
    [found] = CaptureStore(disk.view()).verify().checkpoints
    assert found.file == SECOND.file
    assert why in found.why


def test_verify_names_each_damaged_place_and_a_repair_puts_the_checkpoint_aside(lived: FaultyDisk) -> None:
    expected = says(CaptureStore(without_checkpoints(lived).view()))
    size = lived.view().size(SECOND.file)
    for offset in (0, 40, size // 3, size - 1):
        disk = lived.copy()
        disk.flip_bit(SECOND.file, 8 * offset)
        report = CaptureStore(disk.view()).verify()
        assert [each.file for each in report.checkpoints] == [SECOND.file], offset
        assert report.sound
        mended = mend(disk)
        assert (mended.epoch, mended.quarantined) == (0, [f"quarantine/{SECOND.file}.0"])
        assert CaptureStore(disk.view()).verify().checkpoints == []
        store = CaptureStore(disk.view())
        assert store.report.checkpoint == FIRST.file
        assert says(store) == expected


def test_a_page_of_another_content_with_a_right_checksum_is_found(lived: FaultyDisk) -> None:
    disk = lived.copy()
    data = bytearray(disk.view().read(SECOND.file))
    place = unpack_archived(read_checkpoint(disk.view(), SECOND).table.quiet["a"]).place
    page = data[place.offset + 4 : place.offset + place.length].replace(b"a2", b"a9")
    data[place.offset : place.offset + place.length] = checkpoints._CRC.pack(checksum(bytes(page))) + page
    replace(disk, SECOND, bytes(data))
    [found] = CaptureStore(disk.view()).verify().checkpoints
    assert (found.file, found.offset) == (SECOND.file, place.offset)
    assert "rollout a" in found.why
