"""The end of a log is gone, and something proves that it was there: whoever reads or continues it says so, at once and
for good.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gym_capture.model.codec import FRAME_HEAD_BYTES, SEGMENT_HEAD_BYTES
from gym_capture.model.ledger import Ledger
from gym_capture.storage import fault_points, names
from gym_capture.storage.log_plan import plan_log
from gym_capture.storage.log_reader import Frame
from gym_capture.storage.log_scan import replay_log, scan_log
from gym_capture.storage.names import SegmentName
from gym_capture.storage.owner_file import Endpoint, LogEnd, end_of_log, is_stopped, owner_state, stop_note
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.segment_source import SegmentSource
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import FaultyDisk
from gym_capture.testing.manual_clock import ManualClock
from tests.storage.damage_corpus import mend
from tests.storage.owners import OTHER_CLIENT, Batch, Owner, calls, exchange, identity

EPOCH = 1


def written(segment_bytes: int) -> tuple[FaultyDisk, Owner]:
    """An epoch of several segments: `early` in the first, `late` in the last, `r` in all."""
    disk = FaultyDisk()
    owner = Owner(disk.view(), segment_bytes=segment_bytes)
    owner.send(Batch().commit("early", exchange("early")), 1)
    for number in range(2, 9):
        owner.send(Batch().commit("r", exchange(f"call-{number}")), number)
    owner.send(Batch().clear("late", "clear-1"), 9)
    owner.send(Batch().commit("r", exchange("last")).commit("late", exchange("late")), 10)
    return disk, owner


def stopped(segment_bytes: int = 1500) -> FaultyDisk:
    """Its owner stopped cleanly."""
    disk, owner = written(segment_bytes)
    owner.stop()
    return disk


def killed(segment_bytes: int = 1500) -> FaultyDisk:
    """Its owner was killed after a checkpoint."""
    disk, owner = written(segment_bytes)
    owner.checkpoint()
    return disk


def segments(disk: FaultyDisk) -> list[SegmentName]:
    return [name for name in names.segments_in(disk.view().names()) if name.epoch == EPOCH]


def delete_last(disk: FaultyDisk) -> None:
    disk.view().remove(segments(disk)[-1].file)


def empty_last(disk: FaultyDisk) -> None:
    disk.put(segments(disk)[-1].file, b"")


def zero_last(disk: FaultyDisk) -> None:
    name = segments(disk)[-1].file
    disk.put(name, bytes(len(disk.content(name))))


def keep_half_a_head(disk: FaultyDisk) -> None:
    name = segments(disk)[-1]
    *_, last = SegmentSource(disk.view(), name).frames(SEGMENT_HEAD_BYTES, len(disk.content(name.file)))
    assert isinstance(last, Frame)
    disk.put(name.file, disk.content(name.file)[: last.offset + FRAME_HEAD_BYTES // 2])


def shorten_to_the_header(disk: FaultyDisk) -> None:
    name = segments(disk)[-1].file
    disk.put(name, disk.content(name)[:SEGMENT_HEAD_BYTES])


def delete_all(disk: FaultyDisk) -> None:
    for name in segments(disk):
        disk.view().remove(name.file)


LOSSES = [delete_last, empty_last, keep_half_a_head, zero_last, shorten_to_the_header, delete_all]
each_loss = pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
one_or_many = pytest.mark.parametrize("segment_bytes", [1500, 1 << 20], ids=["many segments", "one segment"])
each_end = pytest.mark.parametrize("ended", [stopped, killed], ids=lambda ended: ended.__name__)


def fold(disk: FaultyDisk) -> Ledger:
    ledger = Ledger()
    replay_log(scan_log(disk.view()), ledger)
    return ledger


@each_end
@one_or_many
@each_loss
def test_verify_of_the_directory_at_rest_is_unsound(
    lose: Callable[[FaultyDisk], None], segment_bytes: int, ended: Callable[[int], FaultyDisk]
) -> None:
    disk = ended(segment_bytes)
    assert (len(segments(disk)) > 2) == (segment_bytes == 1500)
    assert CaptureStore(disk.view()).verify().sound
    last = segments(disk)[-1]
    lose(disk)
    report = CaptureStore(disk.view()).verify()
    assert not report.sound
    assert last in [place.segment for place in report.log.damages]
    assert report.log.tears == []


@each_end
@one_or_many
@each_loss
def test_every_rollout_that_may_have_had_rows_there_is_marked_and_nothing_lost_is_given_out_again_unnoticed(
    lose: Callable[[FaultyDisk], None], segment_bytes: int, ended: Callable[[int], FaultyDisk]
) -> None:
    disk = ended(segment_bytes)
    lose(disk)
    known = sorted(fold(disk).rollouts)
    owner = Owner(disk.view(), "second", takeover=True)
    assert owner.report.damaged
    assert {rollout: owner.ledger.view(rollout).reasons for rollout in known} == {key: {"damaged": 1} for key in known}
    # What comes of `late` now is no complete evidence, and its next generation is a new one.
    owner.send(Batch().commit("late", exchange("again")).commit("r", exchange("again")), 1, OTHER_CLIENT)
    for rollout in ("late", "r", "never heard of"):
        assert owner.ledger.view(rollout).reasons == {"damaged": 1}, rollout
    (cleared,) = owner.send(Batch().clear("late", "clear-2"), 2, OTHER_CLIENT)
    generation = cleared.generation
    assert generation > 1
    assert owner.ledger.view("late").reasons is None, "a cleared rollout begins anew"

    # Readers and all later owners say the same.
    owner.stop()
    for ledger in (fold(disk), Owner(disk.view(), "third").ledger, fold(disk)):
        assert ledger.view("r").reasons == {"damaged": 1}
        assert (ledger.view("late").generation, ledger.view("late").reasons) == (generation, None)
    report = CaptureStore(disk.view()).verify()
    assert not report.sound
    assert EPOCH in [place.segment.epoch for place in report.log.damages]


@each_end
@each_loss
def test_a_store_calls_no_rollout_complete_either_whose_rows_may_be_gone(
    lose: Callable[[FaultyDisk], None], ended: Callable[[], FaultyDisk]
) -> None:
    disk = ended()
    beside = "beside"
    disk.put(names.nemo_gym_file(beside), b"{}\n")
    assert not CaptureStore(disk.view()).is_incomplete("nowhere")
    lose(disk)
    store = CaptureStore(disk.view())
    for rollout in ("early", "r", "late", "nowhere"):
        assert store.is_incomplete(rollout), rollout
        assert store.evidence(rollout).incomplete == {"damaged": 1}, rollout
    assert not store.is_incomplete(beside)


def flip_in_the_last_frame(disk: FaultyDisk) -> None:
    name = segments(disk)[-1]
    *_, last = SegmentSource(disk.view(), name).frames(SEGMENT_HEAD_BYTES, len(disk.content(name.file)))
    assert isinstance(last, Frame)
    disk.flip_bit(name.file, (last.offset + FRAME_HEAD_BYTES + 1) * 8)


def test_a_last_payload_that_is_cut_off_costs_that_exchange_and_no_other() -> None:
    disk = killed()
    name = segments(disk)[-1].file
    disk.put(name, disk.content(name)[:-1])
    assert not CaptureStore(disk.view()).verify().sound
    assert not CaptureStore(disk.view()).is_incomplete("nowhere")
    owner = Owner(disk.view(), "second", takeover=True)
    assert [calls(owner.ledger, rollout)[-1] for rollout in ("early", "r", "late")] == ["early", "last", "late"]
    assert owner.ledger.view("nowhere").reasons is None
    owner.stop()
    store = CaptureStore(disk.view())
    assert [each["model_call_id"] for each in store.read("r")][-1] == "last"
    assert store.read_available("late") == ([], 1)


@one_or_many
def test_a_damaged_last_frame_of_a_killed_owner_is_no_tear_where_a_checkpoint_holds_it(segment_bytes: int) -> None:
    disk = killed(segment_bytes)
    flip_in_the_last_frame(disk)
    report = CaptureStore(disk.view()).verify()
    assert not report.sound
    assert report.log.tears == []
    assert CaptureStore(disk.view(), checkpoints=False).is_incomplete("nowhere")
    owner = Owner(disk.view(), "second", takeover=True, checkpoints=False)
    for rollout in ("early", "r", "late"):
        assert owner.ledger.view(rollout).reasons == {"damaged": 1}, rollout
    owner.stop()
    assert fold(disk).view("nowhere").reasons == {"damaged": 1}


def end_in_the_middle(disk: FaultyDisk, name: SegmentName, into: int) -> None:
    """The segment ends before its last frame, or so many bytes into it."""
    *_, last = SegmentSource(disk.view(), name).frames(SEGMENT_HEAD_BYTES, len(disk.content(name.file)))
    assert isinstance(last, Frame)
    disk.put(name.file, disk.content(name.file)[: last.offset + into])


@pytest.mark.parametrize("proof", ["checkpoint", "endpoint"])
@pytest.mark.parametrize("lost", ["emptied", "removed", "at a frame", "inside a frame"])
def test_a_segment_that_was_begun_behind_a_lost_end_hides_nothing(lost: str, proof: str) -> None:
    """The owner was killed between making the next segment and writing to it."""
    disk = FaultyDisk()
    owner = Owner(disk.view(), segment_bytes=2000 if proof == "checkpoint" else 1 << 20)
    owner.send(Batch().commit("early", exchange("early")), 1)
    number = 1
    while proof == "checkpoint" and (owner.writer.segment.number, owner.writer.position) < (1, 2000):
        number += 1
        owner.send(Batch().commit("r", exchange(f"call-{number}")), number)
    if proof == "checkpoint":
        owner.checkpoint()
    else:
        owner.ownership.publish(Endpoint("127.0.0.1", 4711))
    name = owner.writer.segment
    disk.put(SegmentName(EPOCH, name.number + 1).file, b"")
    assert CaptureStore(disk.view()).verify().sound
    if lost == "removed":
        disk.view().remove(name.file)
    elif lost == "emptied" or proof == "endpoint":
        disk.put(name.file, b"")
    else:
        end_in_the_middle(disk, name, 9 if lost == "inside a frame" else 0)
    for checkpoints in (True, False):
        report = CaptureStore(disk.view(), checkpoints=checkpoints).verify()
        assert not report.sound
        assert name in [place.segment for place in report.log.damages]
    reader = fold(disk)
    after = Owner(disk.view(), "second", takeover=True).ledger
    for rollout in ("early", "r", "nowhere"):
        assert reader.view(rollout).reasons == after.view(rollout).reasons == {"damaged": 1}, rollout


def test_what_came_behind_the_last_checkpoint_may_be_torn_as_ever() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    owner.send(Batch().commit("r", exchange("one")), 1)
    owner.checkpoint()
    whole = len(disk.content(segments(disk)[-1].file))
    owner.append(Batch().commit("r", exchange("two")), 2)
    name = segments(disk)[-1].file
    data = disk.content(name)
    for end in (whole, whole + 1, len(data) - 1):
        disk.put(name, data[:end])
        report = CaptureStore(disk.view()).verify()
        assert report.sound
        assert sum(tear.length for tear in report.log.tears) == end - whole
    after = Owner(disk.view(), "second", takeover=True)
    assert (calls(after.ledger, "r"), after.ledger.view("r").reasons) == (["one"], None)


def test_an_owner_that_told_its_endpoint_had_an_opening() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    assert CaptureStore(disk.view()).verify().sound
    owner.ownership.publish(Endpoint("127.0.0.1", 4711))
    assert CaptureStore(disk.view()).verify().sound
    disk.view().remove(segments(disk)[0].file)
    report = CaptureStore(disk.view()).verify()
    assert [place.segment for place in report.log.damages] == [SegmentName(EPOCH, 0)]
    # A taker that dies at once forgets it no more than one that goes on.
    Ownership.take(disk.view(), identity("dies"), ManualClock(), takeover=True)
    after = Owner(disk.view(), "second", takeover=True)
    assert after.ledger.view("nowhere").reasons == {"damaged": 1}
    after.stop()
    assert not CaptureStore(disk.view()).verify().sound


def test_a_checkpoint_that_is_damaged_or_of_another_run_proves_nothing() -> None:
    for spoil in ("flip", "run"):
        disk = killed()
        name = names.checkpoints_in(disk.view().names())[-1].file
        if spoil == "flip":
            disk.flip_bit(name, 8 * len(disk.content(name)) - 1)
            delete_last(disk)
        else:
            disk.put(name, killed().content(name))
        assert plan_log(disk.view()).ends == {}, spoil
        assert plan_log(disk.view()).floors == {}, spoil


def test_a_repair_keeps_what_a_checkpoint_proved() -> None:
    for lose in LOSSES:
        disk = killed()
        lose(disk)
        for _ in range(2):
            mend(disk)
            assert fold(disk).view("nowhere").reasons == {"damaged": 1}, lose.__name__
        owner = Owner(disk.view(), "second", takeover=True)
        assert owner.ledger.view("nowhere").reasons == {"damaged": 1}, lose.__name__


def test_a_live_store_that_looks_while_a_checkpoint_is_written_takes_no_size_from_before_it() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    owner.send(Batch().commit("r", exchange("one")), 1)
    files = disk.view()
    real = files.size

    def goes_on_when_it_was_measured(name: str) -> int:
        size = real(name)
        if name.startswith("segment"):
            files.size = real  # type: ignore[method-assign]
            owner.send(Batch().commit("r", exchange("two")), 2)
            owner.checkpoint()
        return size

    files.size = goes_on_when_it_was_measured  # type: ignore[method-assign]
    store = CaptureStore(files)
    assert not store.report.damaged
    store.refresh()
    assert [each["model_call_id"] for each in store.read("r")] == ["one", "two"]
    assert not store.report.damaged


def test_of_two_stopped_epochs_the_loss_of_the_first_ones_end_is_seen_too() -> None:
    for lose in LOSSES:
        disk = stopped()
        second = Owner(disk.view(), "second")
        second.send(Batch().commit("r", exchange("next")), 1, OTHER_CLIENT)
        second.stop()
        assert CaptureStore(disk.view()).verify().sound
        lose(disk)
        assert not CaptureStore(disk.view()).verify().sound, lose.__name__
        assert fold(disk).view("r").reasons is not None, lose.__name__


def test_a_clean_stop_leaves_nothing_to_copy_and_nothing_to_ignore() -> None:
    disk = stopped()
    whole = fold(disk)
    owner = Owner(disk.view(), "second")
    last = segments(disk)[-1]
    assert [(cut.epoch, cut.segment, cut.offset) for cut in owner.report.cuts] == [
        (EPOCH, last.number, len(disk.content(last.file)))
    ]
    assert (owner.report.copied, owner.report.ignored_bytes, owner.report.tears) == (0, 0, [])
    owner.stop()
    report = CaptureStore(disk.view()).verify()
    assert report.sound
    assert (report.log.ignored_bytes, report.log.copies) == (0, 0)
    assert calls(fold(disk), "r") == calls(whole, "r")


def test_a_note_without_the_logs_end_is_still_a_clean_stop() -> None:
    disk = stopped()
    disk.put(names.beat_file(EPOCH), b"stopped             \n")
    assert owner_state(disk.view(), lambda seconds: pytest.fail("nothing to wait for")) == "stopped"
    assert CaptureStore(disk.view()).verify().sound
    whole = calls(fold(disk), "r")
    owner = Owner(disk.view(), "second")
    assert (calls(owner.ledger, "r"), owner.report.copied, owner.report.damaged) == (whole, 1, False)


def test_a_damaged_note_is_a_clean_stop_and_cuts_nothing_off() -> None:
    whole = calls(fold(stopped()), "r")
    note = stopped().content(names.beat_file(EPOCH))
    for bit in range(len("stopped") * 8, len(note) * 8):
        disk = stopped()
        disk.flip_bit(names.beat_file(EPOCH), bit)
        assert is_stopped(disk.content(names.beat_file(EPOCH)))
        assert plan_log(disk.view()).ends == {}
        if bit % 16 == 0:
            assert calls(Owner(disk.view(), "second").ledger, "r") == whole, bit
            assert calls(fold(disk), "r") == whole, bit


def test_a_note_of_a_shorter_log_than_there_is_cuts_nothing_off() -> None:
    disk = stopped()
    whole = calls(fold(disk), "r")
    disk.put(names.beat_file(EPOCH), stop_note(LogEnd(0, SEGMENT_HEAD_BYTES)))
    assert calls(Owner(disk.view(), "second").ledger, "r") == whole


def test_the_note_says_where_the_log_ended() -> None:
    disk = stopped()
    last = segments(disk)[-1]
    note = disk.content(names.beat_file(EPOCH))
    assert end_of_log(note) == LogEnd(last.number, len(disk.content(last.file)))
    assert len(note) == len(stop_note(LogEnd(0, 0))) == len(stop_note(LogEnd(2**32 - 1, 2**40)))
    assert [end_of_log(each) for each in (None, b"", b"%020d\n" % 7, b"stopped\n", note[:-1])] == [None] * 5


def test_an_owner_that_thaws_in_its_stop_after_a_takeover_brings_nothing_back() -> None:
    disk = FaultyDisk()
    old = Owner(disk.view(), "old")
    old.send(Batch().commit("r", exchange("one")), 1)
    new = Owner(disk.view(), "new", takeover=True)
    old.append(Batch().commit("r", exchange("ghost")), 2)
    old.stop()
    for ledger in (new.ledger, fold(disk), Owner(disk.view(), "third", takeover=True).ledger):
        assert calls(ledger, "r") == ["one"]
    report = CaptureStore(disk.view()).verify()
    assert report.sound
    assert report.log.ignored_bytes > 0


def test_a_live_store_sees_no_damage_at_any_step_of_a_clean_stop() -> None:
    def owner_of(disk: FaultyDisk) -> Owner:
        owner = Owner(disk.view(), segment_bytes=1500)
        for number in range(1, 6):
            owner.send(Batch().commit("r", exchange(f"call-{number}")), number)
        return owner

    probe = owner_of(FaultyDisk())
    begun = len(probe.files.points)  # type: ignore[attr-defined]
    probe.stop()
    points = probe.files.points[begun:]  # type: ignore[attr-defined]
    assert fault_points.after(fault_points.step(fault_points.STOP, "rename")) in points
    for point in points:
        disk = FaultyDisk()
        owner = owner_of(disk)
        store = CaptureStore(disk.view())
        seen: list[bool] = []

        def look(store: CaptureStore = store, seen: list[bool] = seen) -> None:
            store.refresh()
            seen.append(store.report.damaged)

        owner.files.run_at(point, look)  # type: ignore[attr-defined]
        owner.stop()
        look()
        look()
        assert seen == [False] * 3, point
        assert [each["model_call_id"] for each in store.read("r")] == [f"call-{number}" for number in range(1, 6)]


def test_a_live_store_that_looks_while_the_owner_stops_takes_no_size_from_before_the_note() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    owner.send(Batch().commit("r", exchange("one")), 1)
    files = disk.view()
    store = CaptureStore(files)
    real = files.read

    def stop_just_before_the_beat_is_read(name: str, point: str | None = None) -> bytes:
        if name == names.beat_file(EPOCH):
            files.read = real  # type: ignore[method-assign]
            owner.stop()
        return real(name, point)

    files.read = stop_just_before_the_beat_is_read  # type: ignore[method-assign]
    store.refresh()
    assert not store.report.damaged
    assert files.read == real
