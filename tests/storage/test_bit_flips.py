"""Every single flipped bit of a small log: what it costs, exactly."""

from __future__ import annotations

import pytest

from gym_capture.errors import DamagedLog
from gym_capture.model.codec import SEGMENT_HEAD_BYTES
from gym_capture.model.ledger import Ledger
from gym_capture.model.rows import CommitRow
from gym_capture.storage.log_reader import Frame
from gym_capture.storage.log_scan import replay_log, scan_log
from gym_capture.storage.names import SegmentName
from gym_capture.storage.recovery_report import RecoveryReport
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import FaultyDisk
from tests.storage.owners import Batch, Owner, calls

ROLLOUTS = ("a", "b")


def tiny(call: str) -> dict[str, str]:
    return {"model_call_id": call, "dialect": "chat", "request": "q" + call, "response": "r"}


@pytest.fixture(scope="module")
def disk() -> FaultyDisk:
    """Two epochs, the second with two segments, ended cleanly."""
    disk = FaultyDisk()
    first = Owner(disk.view())
    first.send(Batch().commit("a", tiny("a0")), 1)
    second = Owner(disk.view(), segment_bytes=1500)
    second.send(Batch().claim("b", 1).commit("a", tiny("a1")), 2)
    second.send(Batch().commit("b", tiny("b0"), 1).commit("b", tiny("b1")), 3)
    second.send(Batch().commit("a", tiny("a2")).commit("b", tiny("b2")), 4)
    second.stop()
    assert len([name for name in disk.view().names() if name.startswith("segment-00000002")]) == 2
    return disk


def answers(store: CaptureStore, *rollouts: str) -> dict[str, tuple[list[str], int]]:
    found = {}
    for rollout in rollouts or ROLLOUTS:
        exchanges, damaged = store.read_available(rollout)
        found[rollout] = ([each["model_call_id"] for each in exchanges], damaged)
    return found


def fold(disk: FaultyDisk) -> tuple[Ledger, RecoveryReport]:
    scan = scan_log(disk.view())
    ledger = Ledger()
    replay_log(scan, ledger)
    return ledger, scan.report


def commits(frame: Frame) -> list[CommitRow]:
    return [row for row in frame.rows if isinstance(row, CommitRow)]


def frames(disk: FaultyDisk) -> list[Frame]:
    return [item for item in scan_log(disk.view()) if isinstance(item, Frame)]


def without(call_ids: list[str], lost: set[str]) -> list[str]:
    return [call for call in call_ids if call not in lost]


WHOLE = {"a": ["a0", "a1", "a2"], "b": ["b0", "b1", "b2"]}


def test_the_whole_log_is_sound(disk: FaultyDisk) -> None:
    store = CaptureStore(disk.view())
    assert answers(store) == {"a": (WHOLE["a"], 0), "b": (WHOLE["b"], 0)}
    assert store.verify().sound


def test_a_bit_of_a_payload_costs_exactly_one_exchange(disk: FaultyDisk) -> None:
    checked = 0
    before = CaptureStore(disk.view())  # opening reads heads only, so one store will do for most bits
    for frame in frames(disk):
        name = SegmentName(frame.ref.epoch, frame.ref.segment).file
        for row in commits(frame):
            expected = {r: (without(WHOLE[r], {row.model_call_id}), int(r == row.rollout)) for r in ROLLOUTS}
            for part in row.parts:
                for bit in range(part.length * 8):
                    place = (frame.ref.body_offset + part.offset) * 8 + bit
                    disk.flip_bit(name, place)
                    assert answers(before, row.rollout) == {row.rollout: expected[row.rollout]}
                    if bit == 0:
                        assert answers(CaptureStore(disk.view())) == expected
                    checked += 1
                    disk.flip_bit(name, place)
            disk.flip_bit(name, place)
            store = CaptureStore(disk.view())
            assert not any(store.is_incomplete(rollout) for rollout in ROLLOUTS)
            with pytest.raises(DamagedLog) as caught:
                store.read(row.rollout)
            assert caught.value.call_index == row.call_index
            assert [broken.call_index for broken in store.verify().broken] == [row.call_index]
            disk.flip_bit(name, place)
    assert checked > 5000


def test_a_bit_of_a_head_costs_at_most_its_batch_and_marks_what_its_segment_may_concern(disk: FaultyDisk) -> None:
    whole = frames(disk)
    for frame in whole:
        segment = SegmentName(frame.ref.epoch, frame.ref.segment)
        lost = {row.model_call_id for row in commits(frame)}
        # What the next segment, the closing seal or the next owner noted of this one counts the lost frame's too.
        concerned = {
            row.rollout
            for other in whole
            if (other.ref.epoch, other.ref.segment) == segment
            for row in other.rows
            if hasattr(row, "rollout")
        }
        for bit in range(frame.offset * 8, frame.ref.body_offset * 8):
            disk.flip_bit(segment.file, bit)
            ledger, report = fold(disk)
            for rollout in ROLLOUTS:
                assert calls(ledger, rollout) == without(WHOLE[rollout], lost), (segment, bit)
            marked = {rollout for rollout in ROLLOUTS if ledger.view(rollout).reasons is not None}
            assert marked == concerned, (segment, bit)
            # The stop's note says that the closing frame was on disk too, so no end of this log passes for torn.
            assert (len(report.damages), report.tears) == (1, [])
            disk.flip_bit(segment.file, bit)


def test_a_bit_of_a_segment_header_costs_nothing_and_is_reported(disk: FaultyDisk) -> None:
    for name in [SegmentName(1, 0), SegmentName(2, 0), SegmentName(2, 1)]:
        for bit in range(SEGMENT_HEAD_BYTES * 8):
            disk.flip_bit(name.file, bit)
            ledger, report = fold(disk)
            assert {rollout: calls(ledger, rollout) for rollout in ROLLOUTS} == WHOLE
            assert (report.headers, report.damaged) == ([name], True)
            disk.flip_bit(name.file, bit)
