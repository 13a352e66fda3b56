"""A sealed run whose Parquet files were damaged: the rest is read as it was captured, and all that is lost shows."""

from __future__ import annotations

import errno
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gym_capture.directory.carrying import carry_sealed
from gym_capture.directory.sealing import seal_at_rest
from gym_capture.errors import DamagedLog, RemoteUnavailable
from gym_capture.storage import names, sealing
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.recovery_report import LostIndex
from gym_capture.storage.remote.remote_folder import RemoteFolder
from gym_capture.storage.sealed import writer
from gym_capture.storage.sealed.writer import SealedWriter
from gym_capture.storage.store import CaptureStore
from gym_capture.tables import open_tables
from gym_capture.transfer.export import export
from gym_capture.transfer.importing import import_captures
from tests.reading.calls import chat, user, written
from tests.storage.owners import Batch
from tests.storage.sealed.dataset_damage import LOSSES, flip

CALLS, ROLLOUTS = "part-0000000{}.calls.parquet", "part-0000000{}.rollouts.parquet"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sealed run: `a`, `b` in the first part, `c`, `d` in the second, three calls each, a row group for each."""
    return sealed_run(tmp_path, monkeypatch, dict.fromkeys("abcd", 3), group_bytes=1)


def sealed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: dict[str, int], *batches: Batch, **limits: Any
) -> Path:
    """A sealed run with so many calls of each rollout, and two row groups a part."""
    monkeypatch.setattr(writer, "PART_GROUPS", 2)
    monkeypatch.setattr(sealing, "SealedWriter", partial(SealedWriter, **limits))
    directory = tmp_path / "run"
    exchanges = {
        each: [chat(f"{each}{number}", [user(f"{each} says {number}")], at=number) for number in range(count)]
        for each, count in calls.items()
    }
    written(directory, exchanges, *batches)
    seal_at_rest(directory, as_it_is=True)
    return directory


def part(directory: Path, name: str, number: int = 1) -> Path:
    return next(directory.glob("sealed-*")) / name.format(number)


def told(store: CaptureStore, rollout_id: str) -> tuple[Any, ...]:
    """What is said of a rollout, its exact bytes and its marks among it."""
    captured = store.captured(rollout_id)
    return (
        captured._replace(calls=list(captured.calls)),
        store.standing(rollout_id),
        store.evidence(rollout_id, include_payloads=True),
        list(store.records(rollout_id)),
        store.read_indexed(rollout_id),
    )


@pytest.mark.parametrize("column", ["request", "record"])
def test_a_bit_flipped_in_a_page_costs_the_calls_of_its_row_group_and_no_others(run: Path, column: str) -> None:
    whole = CaptureStore(run)
    expected = {each: told(whole, each) for each in "acd"}
    flip(part(run, CALLS), 1, column)
    store = CaptureStore(run)
    assert store.rollout_ids() == list("abcd")
    assert {each: told(store, each) for each in "acd"} == expected
    assert store.report.call_files == []
    assert store.read_available("b") == ([], 3)
    assert list(store.captured("b").calls) == []
    assert store.captured("b").indexes == 3
    assert store.evidence("b", include_payloads=True).damaged == 3
    assert store.read_payloads("b", [0, 1]) == {}
    with pytest.raises(DamagedLog, match="exchange 0 of rollout b is damaged"):
        store.read_bytes("b", 0, "request")
    with pytest.raises(DamagedLog) as refused:
        store.read("b")
    assert refused.value.fields["call_indexes"] == [0, 1, 2]
    if column == "record":
        assert [(each.call_index, each.record) for each in store.records("b")] == [(0, None), (1, None), (2, None)]
        assert [each.call_index for each in store.records("b", 2)] == [2]
        assert store.evidence("b").damaged == 3
    assert store.report.damaged
    assert store.report.call_files == [f"sealed-00000002/{CALLS.format(1)}"]
    assert store.verify().holes == {"b": 3}
    assert not store.verify().sound
    rollouts = {row["rollout_id"]: row for row in open_tables(run).table("rollouts").to_pylist()}
    assert [rollouts[each]["damaged_calls"] for each in "abcd"] == [0, 3 if column == "record" else 0, 0, 0]
    assert export(run, run.parent / "out", "nemo-gym").notes == {"damaged_calls": 3}
    import_captures(run, run.parent / "again")
    assert CaptureStore(run.parent / "again").standing("b").reasons == {"unreadable": 3}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_file_of_calls_that_is_lost_costs_the_calls_of_its_part(run: Path, loss: str) -> None:
    whole = CaptureStore(run)
    expected = {each: told(whole, each) for each in "cd"}
    LOSSES[loss](part(run, CALLS))
    store = CaptureStore(run)
    assert [(each.rollout_id, each.calls) for each in store.standings()] == [(each, 3) for each in "abcd"]
    assert {each: told(store, each) for each in "cd"} == expected
    for each in "ab":
        assert store.read_available(each) == ([], 3)
        assert [record.record for record in store.records(each)] == [None] * 3
        assert store.evidence(each).damaged == 3
    assert store.verify().holes == {"a": 3, "b": 3}
    assert [file.file for file in store.verify().files] == [f"sealed-00000002/{CALLS.format(1)}"]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_file_of_rollouts_that_is_lost_is_replaced_by_the_calls_and_its_rollouts_are_marked(
    run: Path, loss: str
) -> None:
    whole = CaptureStore(run)
    expected = {each: told(whole, each) for each in "abcd"}
    LOSSES[loss](part(run, ROLLOUTS))
    store = CaptureStore(run)
    assert store.rollout_ids() == list("abcd")
    assert {each: told(store, each) for each in "cd"} == {each: expected[each] for each in "cd"}
    for each in "ab":
        assert store.standing(each).reasons == {"damaged": 1}
        assert store.evidence(each).incomplete == {"damaged": 1}
        assert told(store, each)[0] == expected[each][0]._replace(reasons={"damaged": 1})
        assert told(store, each)[-1] == expected[each][-1]
    assert store.report.indexes == [LostIndex(f"sealed-00000002/{ROLLOUTS.format(1)}", 2, 6, 0)]
    assert store.report.affected == {"a", "b"}
    assert not store.verify().sound
    # There may have been others between them, without a call: of these nobody can say that nothing is missing.
    assert (store.is_incomplete("aa"), store.knows("aa"), store.is_incomplete("bb")) == (True, False, False)
    assert export(run, run.parent / "out", "nemo-gym").rollouts == 4
    assert sorted(each.name for each in (run.parent / "out").glob("*incomplete*")) == [
        names.nemo_gym_incomplete_file(each) for each in "ab"
    ]
    import_captures(run, run.parent / "again")
    again = CaptureStore(run.parent / "again")
    assert [again.standing(each).reasons for each in "abcd"] == [{"damaged": 1}, {"damaged": 1}, None, None]
    assert [again.read_indexed(each) for each in "abcd"] == [expected[each][-1] for each in "abcd"]


def test_where_both_files_of_a_part_are_lost_the_other_part_is_read_and_what_goes_through_all_refuses(
    run: Path,
) -> None:
    whole = CaptureStore(run)
    expected = {each: told(whole, each) for each in "cd"}
    part(run, CALLS).unlink()
    part(run, ROLLOUTS).unlink()
    store = CaptureStore(run)
    assert store.rollout_ids() == ["c", "d"]
    assert {each: told(store, each) for each in "cd"} == expected
    assert store.report.indexes == [LostIndex(f"sealed-00000002/{ROLLOUTS.format(1)}", 2, 6, 2)]
    assert store.evidence("a").incomplete == {"damaged": 1}
    assert store.is_incomplete("b")
    assert not store.is_incomplete("e")
    assert not store.verify().sound
    refusal = rf"{ROLLOUTS.format(1)}, which lists 2 rollouts of 6 calls \(2 of these rollouts are not known\)"
    with pytest.raises(DamagedLog, match=refusal):
        open_tables(run)
    with pytest.raises(DamagedLog, match=refusal):
        export(run, run.parent / "out", "nemo-gym")
    with pytest.raises(DamagedLog, match=refusal):
        import_captures(run, run.parent / "again")
    assert [each.name for each in run.parent.iterdir()] == ["run"]


def test_where_the_index_is_lost_and_a_row_group_too_the_other_row_groups_tell_of_their_rollouts(run: Path) -> None:
    whole = CaptureStore(run).read("b")
    flip(part(run, CALLS), 0, "rollout_id")
    part(run, ROLLOUTS).unlink()
    store = CaptureStore(run)
    assert store.rollout_ids() == ["b", "c", "d"]
    assert store.read("b") == whole
    assert store.report.indexes[0].unnamed == 1
    with pytest.raises(DamagedLog, match="1 of these rollouts are not known"):
        open_tables(run)


def test_a_rollout_in_several_parts_keeps_what_the_readable_ones_say_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sealed_run(tmp_path, monkeypatch, {"long": 6}, Batch().claim("long", 1), group_bytes=1, large_group_bytes=1)
    whole = CaptureStore(run).read("long")
    assert CaptureStore(run).standing("long").reasons == {"lost": 1}
    assert part(run, ROLLOUTS, 3).exists()
    part(run, ROLLOUTS, 3).unlink()
    flip(part(run, CALLS, 3), 1, "response")
    flip(part(run, CALLS, 2), 0, "record")
    store = CaptureStore(run)
    assert store.read_indexed("long") == ([(index, whole[index]) for index in (0, 1, 3, 4)], 2)
    assert store.standing("long").calls == 6
    assert store.standing("long").reasons == {"lost": 1, "damaged": 1}
    assert store.evidence("long", include_payloads=True).damaged == 2
    assert [each.call_index for each in store.records("long")] == list(range(6))
    part(run, CALLS, 3).unlink()
    again = CaptureStore(run)
    assert again.read_indexed("long") == ([(index, whole[index]) for index in (0, 1, 3)], 3)
    assert again.evidence("long").damaged == 3
    assert again.standing("long").reasons == {"lost": 1, "damaged": 1}


def test_rows_before_the_damage_of_an_index_keep_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_ROLLOUTS_A_GROUP", 1)
    run = sealed_run(tmp_path, monkeypatch, {"a": 1, "b": 1}, Batch().claim("a", 1).claim("b", 2), group_bytes=1)
    flip(part(run, ROLLOUTS), 1, "calls")
    store = CaptureStore(run)
    assert [(each.rollout_id, each.calls, each.reasons) for each in store.standings()] == [
        ("a", 1, {"lost": 1, "damaged": 1}),
        ("b", 1, {"damaged": 1}),
    ]


def test_a_file_of_nemo_gyms_that_a_lost_index_may_have_cleared_is_not_sound(run: Path) -> None:
    line = json.dumps({"model_call_id": "old", "dialect": "chat", "request": {}, "response": {}}) + "\n"
    for each in ("aa", "zz"):
        (run / names.nemo_gym_file(each)).write_text(line)
    part(run, ROLLOUTS).unlink()
    store = CaptureStore(run)
    assert {each: store.standing(each).reasons for each in ("aa", "zz")} == {"aa": {"damaged": 1}, "zz": None}
    assert {each.rollout_id: each.reasons for each in store.standings()}["aa"] == {"damaged": 1}
    assert store.captured("aa").reasons == {"damaged": 1}
    assert store.evidence("aa").incomplete == {"damaged": 1}
    assert store.evidence("zz").incomplete is None


def test_a_footer_that_places_calls_elsewhere_shows_no_calls_of_other_rollouts(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gym_capture.storage.sealed.reader import SealedReader

    rows_of = SealedReader.rows_of
    monkeypatch.setattr(
        SealedReader, "rows_of", lambda reader, of: (row._replace(first_row=0) for row in rows_of(reader, of))
    )
    store = CaptureStore(run)
    assert store.read_available("a")[1] == 0
    assert store.read_available("b") == ([], 3)


def test_a_footer_that_names_columns_otherwise_is_damage(run: Path) -> None:
    for name, column in ((CALLS, b"derivation"), (ROLLOUTS, b"outstanding")):
        file = part(run, name, 2 if name is CALLS else 1)
        file.write_bytes(file.read_bytes().replace(column, column[:-1] + b"~"))
    store = CaptureStore(run)
    assert store.rollout_ids() == list("abcd")
    assert [store.read_available(each)[1] for each in "abcd"] == [0, 0, 3, 3]
    assert store.report.affected == {"a", "b"}


def test_what_the_system_refuses_for_a_moment_is_an_error_and_counts_as_no_damage(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = CaptureStore(run).read("a")
    store = CaptureStore(run)
    read_at = PosixFiles.read_at

    def refused(files: PosixFiles, name: str, offset: int, length: int) -> bytes:
        if name.endswith(".parquet"):
            raise OSError(errno.EMFILE, "Too many open files")
        return read_at(files, name, offset, length)

    with monkeypatch.context() as patch:
        patch.setattr(PosixFiles, "read_at", refused)
        with pytest.raises(OSError, match="Too many open files"):
            store.rollout_ids()
    assert store.rollout_ids() == list("abcd")
    with monkeypatch.context() as patch:
        patch.setattr(PosixFiles, "read_at", refused)
        with pytest.raises(OSError, match="Too many open files"):
            store.read_available("a")
    assert store.read("a") == whole
    assert not store.report.damaged


def test_a_store_elsewhere_that_is_not_reached_is_an_error_and_counts_as_no_damage(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_sealed(run, f"file://{tmp_path}/there")
    store = CaptureStore(f"file://{tmp_path}/there")
    assert store.rollout_ids() == list("abcd")

    def unreachable(_folder: RemoteFolder, _file: object, _offset: int, _length: int) -> bytes:
        raise RemoteUnavailable("the network is down")

    with monkeypatch.context() as patch:
        patch.setattr(RemoteFolder, "read_at", unreachable)
        with pytest.raises(RemoteUnavailable, match="the network is down"):
            store.read_available("a")
    assert store.read_available("a")[1] == 0
    assert not store.report.damaged
