"""CaptureStore: what a directory holds, at rest, while its owner writes, and beside NeMo Gym's files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_capture.errors import CaptureDirectoryError, DamagedLog, InvalidRolloutId
from gym_capture.model.codec import FrameRef
from gym_capture.model.ledger import Ledger
from gym_capture.model.merge import RolloutEvidence
from gym_capture.model.record import derive_fields, record_view
from gym_capture.model.rows import MergeRow, PartKind, Row
from gym_capture.storage import fault_points, names
from gym_capture.storage.log_reader import Frame
from gym_capture.storage.log_scan import scan_log
from gym_capture.storage.names import SegmentName
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.segments import owner_frame
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import CrashMode, FaultyDisk, Stopped
from tests.storage.owners import CLIENT, OTHER_CLIENT, Batch, Owner, calls, exchange


def ids(exchanges: list[dict[str, Any]]) -> list[str]:
    return [each["model_call_id"] for each in exchanges]


def journal(owner: Owner, rows: list[Row]) -> None:
    ref = FrameRef(owner.ledger.last_sequence + 1, owner.ownership.epoch)
    owner.ledger.apply_owner_rows(rows, ref)
    frame = owner_frame(rows, ref.sequence, owner.ownership.epoch)
    owner.writer.append([frame._replace(ref=ref)])
    owner.writer.sync()


def break_part(disk: FaultyDisk, call: str, kind: PartKind) -> None:
    """Flip a bit in one part of a committed exchange."""
    for item in scan_log(disk.view()):
        if not isinstance(item, Frame):
            continue
        for row in item.rows:
            if getattr(row, "model_call_id", None) == call and hasattr(row, "parts"):
                part = next(part for part in row.parts if part.kind == kind)
                name = SegmentName(item.ref.epoch, item.ref.segment).file
                disk.flip_bit(name, (item.ref.body_offset + part.offset) * 8 + 3)
                return
    raise AssertionError(f"no {kind.name} of {call}")


def test_exchanges_come_back_as_they_were_committed() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    given = {
        **exchange("one"),
        "request": b'{"messages": [ {"role":"user", "content":"\\u00e9", "n": 123456789012345678901234567890} ] }',
        "response": b"not json at all \xff",
        "unknown_key": {"kept": [1, 2.5, None]},
    }
    owner.send(Batch().commit("a", given).commit("a", exchange("two")), 1)
    store = CaptureStore(disk.view())
    first, second = store.read("a")
    assert first["request"] == json.loads(given["request"])
    assert first["response"] is None
    assert first["response_raw"] == "not json at all \\xff"
    assert first["unknown_key"] == {"kept": [1, 2.5, None]}
    assert second == exchange("two")
    assert store.read_bytes("a", 0, "request") == given["request"]
    assert store.read_bytes("a", 0, "response") == given["response"]
    with pytest.raises(KeyError):
        store.read_bytes("a", 0, "request_raw")
    with pytest.raises(KeyError):
        store.read_bytes("a", 7, "request")
    assert store.read("unknown") == []
    assert store.rollout_ids() == ["a"]
    with pytest.raises(InvalidRolloutId):
        store.read("../escape")


def test_damage_is_named_by_the_strict_reader_and_counted_by_the_others() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    for number, call in enumerate(["one", "two", "three"], 1):
        owner.send(Batch().commit("a", exchange(call)), number)
    break_part(disk, "two", PartKind.RESPONSE)
    store = CaptureStore(disk.view())
    with pytest.raises(DamagedLog, match="exchange 1 of rollout a is damaged") as caught:
        store.read("a")
    assert (caught.value.call_index, caught.value.rollout_id) == (1, "a")
    exchanges, damaged = store.read_available("a")
    assert (ids(exchanges), damaged) == (["one", "three"], 1)
    assert [index for index, _ in store.read_indexed("a")[0]] == [0, 2]
    with pytest.raises(DamagedLog, match="exchange 1"):
        store.read_bytes("a", 1, "response")
    assert store.read_bytes("a", 1, "request") == json.dumps(exchange("two")["request"], separators=(",", ":")).encode()

    # A merge without payloads does not look at it; one with payloads does, and the others keep their index.
    assert store.evidence("a").damaged == 0
    with_payloads = store.evidence("a", include_payloads=True)
    assert (with_payloads.damaged, [record["call_index"] for record in with_payloads.records]) == (1, [0, 2])
    break_part(disk, "three", PartKind.RECORD)
    assert store.evidence("a").damaged == 1
    assert [record["call_index"] for record in store.evidence("a").records] == [0, 1]


@pytest.mark.parametrize("include_payloads", [False, True])
def test_evidence_is_what_the_exchanges_derive(include_payloads: bool) -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    judged = {**exchange("judge"), "verifier_invocation": {"invocation_id": "v1", "name": "judge"}}
    owner.send(Batch().commit("a", exchange("one")).commit("a", judged).claim("a", 5), 1)
    evidence = CaptureStore(disk.view()).evidence("a", include_payloads)
    shown = [exchange("one"), judged]
    assert evidence == RolloutEvidence(
        "a",
        [
            record_view(derive_fields(each), index, each if include_payloads else None)
            for index, each in enumerate(shown)
        ],
        [("v1", "judge")],
        outstanding=1,
    )


def test_a_cleared_rollout_is_empty_and_the_next_generation_is_read_alone() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    owner.send(Batch().commit("a", exchange("old")).claim("b", 1).commit("c", exchange("c")), 1)
    owner.send(Batch().clear("a", "clear-1"), 2)
    owner.send(Batch().release("b", 1), 3)
    store = CaptureStore(disk.view())
    assert (store.read("a"), store.generation("a"), store.knows("a")) == ([], 1, True)
    assert store.rollout_ids() == ["b", "c"]
    assert (store.is_incomplete("b"), store.is_incomplete("c")) == (True, False)
    assert store.evidence("b").incomplete == {"released": 1}
    owner.send(Batch().commit("a", exchange("new")), 4)
    store.refresh()
    assert ids(store.read("a")) == ["new"]


def test_a_refresh_reads_only_what_was_appended() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view(), segment_bytes=1500)
    read: list[tuple[str, int]] = []
    files = disk.view()
    real = files.read_at

    def counted(name: str, offset: int, length: int) -> bytes:
        data = real(name, offset, length)
        read.append((name, len(data)))
        return data

    files.read_at = counted  # type: ignore[method-assign]
    store = CaptureStore(files)
    for number in range(1, 30):
        owner.send(Batch().commit("a", exchange(f"call-{number}")), number)
        read.clear()
        before = owner.writer.segment
        store.refresh()
        assert ids(store.read("a")) == [f"call-{n}" for n in range(1, number + 1)]
        read.clear()
        store.refresh()
        # Nothing new: at most a look at the start of the last segment.
        assert {name for name, _ in read} <= {before.file}
        assert sum(length for _, length in read) <= 4096
    assert owner.writer.segment.number > 5
    assert store.report.frames == scan_report_frames(disk)


def scan_report_frames(disk: FaultyDisk) -> int:
    scan = scan_log(disk.view())
    list(scan)
    return scan.report.frames


def test_a_frame_that_is_half_written_is_read_when_it_is_whole() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    owner.send(Batch().commit("a", exchange("one")), 1)
    name = SegmentName(1, 0).file
    start = len(disk.content(name))
    owner.send(Batch().commit("a", exchange("two")), 2)
    whole = disk.content(name)
    disk.put(name, whole[:start])
    store = CaptureStore(disk.view())
    for end in range(start, len(whole), 13):
        disk.put(name, whole[:end])
        store.refresh()
        assert ids(store.read("a")) == ["one"]
        assert len(store.report.tears) == (end > start)
    disk.put(name, whole)
    store.refresh()
    assert ids(store.read("a")) == ["one", "two"]
    assert store.report.tears == []
    assert not store.report.damaged


def test_a_live_store_follows_a_takeover() -> None:
    disk = FaultyDisk()
    old = Owner(disk.view(), "old")
    old.send(Batch().commit("a", exchange("one")), 1)
    store = CaptureStore(disk.view())
    new = Owner(disk.view(), "new", takeover=True)
    old.append(Batch().commit("a", exchange("ghost")), 2)
    old.writer.sync()
    new.send(Batch().commit("a", exchange("two")), 1, OTHER_CLIENT)
    store.refresh()
    assert ids(store.read("a")) == ["one", "two"]
    assert [cut.epoch for cut in store.report.cuts] == [1]


def test_a_live_store_is_right_at_every_step_of_a_takeover() -> None:
    probe = FaultyDisk()
    Owner(probe.view(), "old").send(Batch().commit("a", exchange("one")), 1)
    files = probe.view()
    Owner(files, "new", takeover=True)
    for point in dict.fromkeys(files.points):
        disk = FaultyDisk()
        old = Owner(disk.view(), "old")
        old.send(Batch().commit("a", exchange("one")), 1)
        old.append(Batch().commit("a", exchange("two")), 2)
        store = CaptureStore(disk.view())
        seen: list[list[str]] = []

        def look(store: CaptureStore = store, seen: list[list[str]] = seen) -> None:
            store.refresh()
            seen.append(ids(store.read("a")))

        files = disk.view()
        files.run_at(point, look)
        Owner(files, "new", takeover=True)
        look()
        assert seen == [["one", "two"]] * 2, point


def test_a_live_store_follows_a_directory_that_was_removed_and_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "captures"

    def run_of(*names: str) -> None:
        """A run of two owners, so that nothing but its marker tells its files from those of another such run."""
        folder.mkdir()
        for number, name in enumerate(names):
            owner = Owner(PosixFiles(folder))
            owner.send(Batch().commit("r", exchange(name)), number + 1)
            owner.stop()

    run_of("a", "b")
    store = CaptureStore(folder)
    assert ids(store.read("r")) == ["a", "b"]
    shutil.rmtree(folder)
    run_of("c", "d")
    store.refresh()
    assert ids(store.read("r")) == ["c", "d"]
    assert not store.evidence("r").damaged


def test_the_store_says_what_the_owner_says_after_any_crash() -> None:
    for seed in range(20):
        for mode in CrashMode:
            disk = FaultyDisk()
            files = disk.view()
            owner = Owner(files, segment_bytes=1500)
            owner.send(Batch().claim("a", 1).claim("b", 2).commit("c", exchange("c0")), 1)
            owner.send(Batch().commit("a", exchange("a0"), 1), 2)
            files.stop_at(fault_points.before(fault_points.SYNC))
            with pytest.raises(Stopped):
                owner.send(Batch().clear("c", "x").commit("c", exchange("c1"), generation=1).release("b", 2), 3)
            disk.crash(mode, seed)
            store = CaptureStore(disk.view())
            again = Owner(disk.view())
            fresh = CaptureStore(disk.view())
            store.refresh()
            for each in (store, fresh):
                for rollout in ("a", "b", "c"):
                    view = again.ledger.view(rollout)
                    assert ids(each.read(rollout)) == calls(again.ledger, rollout)
                    assert each.generation(rollout) == view.generation
                    assert each.outstanding(rollout) == view.outstanding
                    assert each.is_incomplete(rollout) == (view.reasons is not None)
                assert each.outstanding() == again.ledger.outstanding


def test_verify_reads_everything_and_names_what_is_broken_late_and_open() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    owner.send(Batch().commit("a", exchange("gone")).commit("b", exchange("b0")).claim("c", 1), 1)
    owner.send(Batch().clear("a", "x"), 2)
    journal(owner, [MergeRow("b", 0, 1)])
    owner.send(Batch().commit("b", exchange("late")), 3)
    assert CaptureStore(disk.view()).verify().sound
    break_part(disk, "gone", PartKind.META)
    report = CaptureStore(disk.view()).verify()
    assert not report.sound
    assert [(b.rollout_id, b.generation, b.call_index, b.kind) for b in report.broken] == [("a", 0, 0, "meta")]
    assert (report.late, report.outstanding, report.holes) == ({"b": 1}, {"c": 1}, {})
    assert report.parts == 3 * 4


# -- NeMo Gym's files ---------------------------------------------------------------------------------------------


def nemo(disk: FaultyDisk, rollout: str, *lines: dict[str, Any] | bytes, incomplete: bool = False) -> None:
    data = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    if lines:
        disk.put(names.nemo_gym_file(rollout), data)
    if incomplete:
        disk.put(names.nemo_gym_incomplete_file(rollout), b"")


def test_a_nemo_gym_directory_is_read_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "0-1.capture.jsonl").write_text(json.dumps(exchange("x")) + "\n{broken\n" + json.dumps(exchange("y")))
    (tmp_path / "0-2.capture.incomplete").touch()
    store = CaptureStore(tmp_path)
    assert store.rollout_ids() == ["0-1", "0-2"]
    assert (ids(store.read_available("0-1")[0]), store.read_available("0-1")[1]) == (["x", "y"], 1)
    assert [index for index, _ in store.read_indexed("0-1")[0]] == [0, 2]
    with pytest.raises(DamagedLog, match="exchange 1 of rollout 0-1"):
        store.read("0-1")
    assert (store.is_incomplete("0-1"), store.is_incomplete("0-2")) == (False, True)
    assert (store.knows("0-1"), store.knows("0-2"), store.knows("0-3")) == (True, True, False)
    evidence = store.evidence("0-1")
    assert evidence.records == [record_view(derive_fields(exchange(c)), i) for c, i in (("x", 0), ("y", 2))]
    assert (evidence.damaged, evidence.incomplete) == (1, None)
    assert store.evidence("0-2") == RolloutEvidence("0-2", [], incomplete={})
    assert store.evidence("0-1", include_payloads=True).records[0]["request"] == exchange("x")["request"]


@pytest.mark.parametrize(
    ("in_log", "expected"),
    [
        (None, ["file"]),
        (lambda owner: owner.send(Batch().commit("a", exchange("log")), 1), ["log"]),
        (lambda owner: owner.send(Batch().clear("a", "x"), 1), []),
        (lambda owner: journal(owner, [MergeRow("a", 0, 0)]), ["file"]),
    ],
    ids=["unknown to the log", "committed", "cleared", "merged only"],
)
def test_where_the_log_knows_a_rollout_the_log_alone_counts(
    in_log: Callable[[Owner], object] | None, expected: list[str]
) -> None:
    disk = FaultyDisk()
    nemo(disk, "a", exchange("file"), incomplete=True)
    owner = Owner(disk.view())
    if in_log is not None:
        in_log(owner)
    store = CaptureStore(disk.view())
    assert ids(store.read("a")) == expected
    assert store.is_incomplete("a") == (expected == ["file"])
    assert store.rollout_ids() == (["a"] if expected else [])


def test_verify_counts_the_damaged_lines_of_the_files_that_count() -> None:
    disk = FaultyDisk()
    nemo(disk, "bad", exchange("x"), b"null", b"{bad")
    nemo(disk, "good", exchange("x"))
    nemo(disk, "logged", b"{bad")
    assert CaptureStore(disk.view()).read_available("bad") == ([exchange("x")], 2)
    report = CaptureStore(disk.view()).verify()
    assert (report.sound, report.lines) == (False, {"bad": 2, "logged": 1})
    Owner(disk.view()).send(Batch().commit("logged", exchange("log")).clear("bad", "x"), 1)
    report = CaptureStore(disk.view()).verify()
    assert (report.sound, report.lines) == (True, {})


def test_an_empty_or_foreign_directory_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    store = CaptureStore(str(tmp_path))
    assert (store.rollout_ids(), store.read("a"), store.is_incomplete("a")) == ([], [], False)
    assert store.evidence("a") == RolloutEvidence("a", [])
    with pytest.raises(CaptureDirectoryError):
        CaptureStore("relative")


def test_a_ledger_replayed_twice_from_one_log_is_the_same() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    owner.send(Batch().claim("a", 1), 1)
    owner.send(Batch().commit("a", exchange("x"), 1), 2)
    for _ in range(3):
        owner = Owner(disk.view())
    ledger: Ledger = owner.ledger
    assert calls(ledger, "a") == ["x"]
    assert ledger.outstanding == 0
    assert ledger.clients[CLIENT].answers.keys() == {1, 2}
