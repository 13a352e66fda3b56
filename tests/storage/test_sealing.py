"""Sealing a run: its log becomes a dataset, wherever it is killed, and readers see each exchange once all the while."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from gym_capture.directory.resting import clear_at_rest
from gym_capture.directory.sealing import seal_at_rest
from gym_capture.errors import DamagedLog, DirectoryHeld, RunSealed, Superseded, UnsettledRun
from gym_capture.model.shards import shard_of
from gym_capture.storage import fault_points, names
from gym_capture.storage.closing import closed_in, sealed_in
from gym_capture.storage.fault_points import after, before
from gym_capture.storage.files import FaultHook, no_faults
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_layout import create_or_adopt_shards
from gym_capture.storage.run_marker import create_or_adopt_run
from gym_capture.storage.sealed.reader import SealedReader
from gym_capture.storage.sealing import SealReport, seal_log
from gym_capture.storage.standing import RolloutStanding
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.manual_clock import ManualClock
from tests.storage.captured_rollouts import HOSTILE, conversation
from tests.storage.conversing import Talker, turn_of
from tests.storage.owners import CLIENT, OTHER_CLIENT, Batch, Owner, calls, exchange, identity


class Killed(BaseException):
    """The process ends here."""


def beating(_ownership: Ownership) -> AbstractContextManager[None]:
    return nullcontext()


def seal(directory: Path, hook: FaultHook = no_faults, **options: Any) -> SealReport:
    clock = ManualClock()
    files = PosixFiles(directory, hook)
    return seal_log(files, identity("seal"), beating, clock=clock, wait=clock.advance, **options)


def captured_run(directory: Path) -> CaptureStore:
    """A directory at rest with a bit of everything, in several segments and two epochs."""
    directory.mkdir(mode=0o700)
    files = PosixFiles(directory)
    owner = Owner(files, segment_bytes=3000)
    batch = Batch().commit("cleared", exchange("old")).commit("again", exchange("first"))
    for number, each in enumerate(HOSTILE):
        batch.commit("hostile", {"dialect": "chat", "model_call_id": f"call-{number}", **each})
    owner.send(batch, 1)
    owner.send(Batch().clear("cleared", "once").clear("again", "once").claim("left", 1).release("left", 1), 2)
    talker = Talker(OTHER_CLIENT)
    for number, each in enumerate(conversation(4)):
        talker.say("talk", turn_of(str(number), each["request"], each["response"]))
        talker.send(owner)
    owner.send(Batch().commit("again", exchange("second", "hi" * 500)), 3)
    owner.stop()
    later = Owner(files, "actor-2")
    later.send(Batch().commit("hostile", exchange("one more")), 4)
    later.stop()
    assert len(names.segments_in(files.names())) > 3
    return CaptureStore(directory)


RUN_IDS = ["again", "hostile", "left", "talk"]


def told(store: CaptureStore) -> dict[str, Any]:
    """All that a store says of its rollouts, but how they are stored."""
    said: dict[str, Any] = {"ids": store.rollout_ids(), "standings": store.standings()}
    for rollout in [*RUN_IDS, "cleared", "nowhere"]:
        found = store.captured(rollout)
        said[rollout] = (
            store.knows(rollout),
            store.standing(rollout),
            store.generation(rollout),
            store.is_incomplete(rollout),
            found._replace(calls=list(found.calls)),
            [record[:2] for record in store.records(rollout)],
            [record[:2] for record in store.records(rollout, 2)],
            store.evidence(rollout),
            repr(store.evidence(rollout, include_payloads=True)),
            repr(store.read_indexed(rollout)),
            repr(store.read_payloads(rollout, iter([0, 3]))),
            [(entry.call_index, entry.model_call_id, entry.digest) for entry in store.view(rollout).entries],
        )
    return said


def segments(directory: Path) -> list[Any]:
    return names.segments_in(PosixFiles(directory).names())


def test_a_sealed_run_says_what_its_log_said_and_its_segments_are_gone(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    store = captured_run(directory)
    expected, count = told(store), len(segments(directory))
    assert expected["ids"] == RUN_IDS
    asked: list[Callable[[CaptureStore], Any]] = [
        lambda each: each.read("talk"),
        lambda each: each.read_available("talk"),
        lambda each: each.evidence("talk"),
        lambda each: each.read_payloads("talk", iter([1, 2])),
        lambda each: each.read_bytes("hostile", 1, "response"),
        lambda each: each.verify().sound,
    ]
    opened_before = [CaptureStore(directory) for _ in asked]
    answers = [ask(store) for ask in asked]
    report = seal(directory)
    assert [ask(each) for ask, each in zip(asked, opened_before, strict=True)] == answers
    assert (report.rollouts, report.calls, report.segments, report.lost, report.damaged) == (5, 12, count, 0, 0)
    assert report.folder == "sealed-00000003"
    assert segments(directory) == []
    assert told(CaptureStore(directory)) == expected
    assert told(store) == expected
    store.refresh()
    assert store.verify().sound
    assert store.read_bytes("hostile", 1, "request") == HOSTILE[1]["request"]
    with pytest.raises(KeyError):
        store.read_bytes("hostile", 2, "response_raw")
    # Cleared generations are not carried over, and neither are the messages of histories as such.
    reader = SealedReader(PosixFiles(directory).folder(report.folder))
    assert reader.generations("again") == [1]
    assert reader.generations("cleared") == [1]
    assert "old" not in [call.model_call_id for each in reader.rollouts() for call in each.calls]


def steps(directory: Path) -> list[str]:
    points: list[str] = []
    seal(directory, points.append)
    return points


def test_killed_at_any_step_each_exchange_is_there_once_for_readers_and_owners_and_sealing_goes_on(
    tmp_path: Path,
) -> None:
    origin = tmp_path / "origin"
    expected = told(captured_run(origin))
    shutil.copytree(origin, tmp_path / "whole")
    points = steps(tmp_path / "whole")
    for name in (*fault_points.SEALING_STEPS, *fault_points.CLOSING_STEPS):
        assert {before(name), after(name)} <= set(points)
    outcomes: set[tuple[bool, bool, bool]] = set()
    for number in sorted({*map(points.index, points), len(points) - 1}):
        directory = tmp_path / str(number)
        shutil.copytree(origin, directory)
        reader = CaptureStore(directory)
        left = iter(range(number))

        def kill(_point: str, left: Any = left) -> None:
            if next(left, None) is None:
                raise Killed

        with pytest.raises(Killed):
            seal(directory, kill)
        assert told(reader) == expected, points[number]
        assert told(CaptureStore(directory)) == expected, points[number]
        files = PosixFiles(directory)
        closed = closed_in(files) is not None
        outcomes.add((closed, sealed_in(files) is not None, bool(segments(directory))))
        taken = tmp_path / f"{number}-taken"
        shutil.copytree(directory, taken)
        if closed:
            with pytest.raises(RunSealed):
                Owner(PosixFiles(taken), "actor-3")
        else:
            owner = Owner(PosixFiles(taken), "actor-3")
            assert calls(owner.ledger, "hostile") == [*(f"call-{each}" for each in range(6)), "one more"]
            owner.send(Batch().commit("talk", exchange("later")), 5)
            assert [each["model_call_id"] for each in CaptureStore(taken).read("talk")] == [*"0123", "later"]
        seal(directory)
        assert told(CaptureStore(directory)) == expected, points[number]
        assert segments(directory) == []
        assert len(names.sealed_folders_in(files.names())) == 1
    assert outcomes == {(False, False, True), (True, False, True), (True, True, True), (True, True, False)}


def test_segments_go_after_the_log_is_closed_and_that_after_the_dataset_is_on_disk(tmp_path: Path) -> None:
    captured_run(tmp_path / "run")
    points = steps(tmp_path / "run")
    order = [
        after(f"{fault_points.SEALED_MANIFEST}-directory-sync"),
        before(f"{fault_points.SEALED_CLOSE}-link"),
        after(f"{fault_points.SEALED_CLOSE}-directory-sync"),
        before(f"{fault_points.SEALED_SWITCH}-link"),
        after(f"{fault_points.SEALED_SWITCH}-directory-sync"),
        before(fault_points.SEALED_REMOVE),
    ]
    assert [points.index(point) for point in order] == sorted(points.index(point) for point in order)
    assert max(n for n, point in enumerate(points) if point == after(fault_points.SEALED_SYNC)) < points.index(order[0])


def test_a_reader_that_is_in_the_middle_goes_on_from_the_dataset(tmp_path: Path) -> None:
    store = captured_run(tmp_path / "run")
    expected = list(store.captured("hostile").calls)
    records = [each[:2] for each in store.records("hostile")]
    going, others, fresh = store.captured("hostile"), store.records("hostile"), store.captured("talk")
    found, listed = [next(iter(going.calls))], [next(others)[:2]]
    iterator = iter(store.captured("hostile").calls)
    assert next(iterator) == expected[0]
    seal(tmp_path / "run")
    assert list(iterator) == expected[1:]
    assert [*listed, *(each[:2] for each in others)] == records
    assert [call.call_index for call in fresh.calls] == [0, 1, 2, 3]
    assert found == expected[:1]


def test_an_owner_that_takes_the_directory_meanwhile_keeps_its_log(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    store = captured_run(directory)
    owners: list[Owner] = []

    def take(point: str) -> None:
        if point == before(f"{fault_points.SEALED_CLOSE}-link"):
            owners.append(Owner(PosixFiles(directory), "actor-9", takeover=True))

    with pytest.raises(Superseded):
        seal(directory, take)
    owners[0].send(Batch().commit("left", exchange("new")), 9)
    store.refresh()
    assert [each["model_call_id"] for each in store.read("left")] == ["new"]
    assert store.rollout_ids() == RUN_IDS
    assert not closed_in(PosixFiles(directory))
    owners[0].stop()
    assert seal(directory).calls == 13


def test_an_owner_that_comes_when_the_log_is_closed_takes_no_epoch(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    expected = told(captured_run(directory))
    sealed: list[SealReport] = []

    def close(point: str) -> None:
        if point == before(f"{fault_points.EPOCH}-link") and not sealed:
            sealed.append(seal(directory))

    with pytest.raises(RunSealed, match="sealed-00000003"):
        Owner(PosixFiles(directory, close), "actor-9")
    assert names.epochs_in(PosixFiles(directory).names()) == [1, 2, 3, 4]
    assert told(CaptureStore(directory)) == expected


def test_nobody_writes_into_a_sealed_run(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    expected = told(captured_run(directory))
    seal(directory)
    listed = PosixFiles(directory).names()
    with pytest.raises(RunSealed):
        clear_at_rest(directory, ["talk"])
    with pytest.raises(RunSealed):
        create_or_adopt_shards(str(directory), 1)
    assert seal(directory).segments == 0
    assert PosixFiles(directory).names() == listed
    assert told(CaptureStore(directory)) == expected


def test_open_claims_and_damage_are_sealed_only_when_that_is_said(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    files = PosixFiles(directory)
    owner = Owner(files)
    owner.send(Batch().claim("open", 1).claim("open", 2).commit("open", exchange("a"), claim=1), 1)
    owner.send(Batch().commit("hurt", exchange("b", "needle")), 2)
    owner.send(Batch().commit("hurt", exchange("c")), 3)
    owner.stop()
    with pytest.raises(UnsettledRun, match="1 claims are open"):
        seal(directory)
    segment = directory / segments(directory)[0].file
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"needle", b"noodle"))
    before_sealing = CaptureStore(directory)
    assert before_sealing.standing("open") == RolloutStanding("open", 0, 1, 0, None, 1)
    assert names.sealed_folders_in(files.names()) == []
    report = seal(directory, as_it_is=True)
    assert (report.calls, report.lost, report.damaged) == (2, 1, 1)
    store = CaptureStore(directory)
    assert store.standings() == [
        RolloutStanding("hurt", 0, 2, 1, None, 0),
        RolloutStanding("open", 0, 1, 0, {"lost": 1}, 0),
    ]
    assert (store.evidence("open").incomplete, store.evidence("hurt").damaged) == ({"lost": 1}, 1)
    with pytest.raises(DamagedLog, match="exchange 0 of rollout hurt"):
        store.read("hurt")
    verified = store.verify()
    assert (verified.holes, verified.sound) == ({"hurt": 1}, False)


def test_damage_of_a_text_alone_keeps_a_log_from_being_sealed(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    captured_run(directory)
    for name in segments(directory):
        path = directory / name.file
        path.write_bytes(path.read_bytes().replace(b"one more", b"one less"))
    listed = PosixFiles(directory).names()
    with pytest.raises(UnsettledRun, match="damaged"):
        seal(directory)
    assert segments(directory)
    assert [name for name in PosixFiles(directory).names() if name not in listed] == [
        "beat-00000003",
        "epoch-00000003",
        "token-00000003",
    ]


def test_a_dataset_that_does_not_read_back_closes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    expected = told(captured_run(directory))

    def rot(point: str) -> None:
        if point == before(f"{fault_points.SEALED_MANIFEST}-write"):
            part = next(directory.glob("sealed-*/*.calls.parquet"))
            data = bytearray(part.read_bytes())
            data[len(data) // 2] ^= 1
            part.write_bytes(bytes(data))

    with pytest.raises(DamagedLog, match="does not read back"):
        seal(directory, rot)
    assert told(CaptureStore(directory)) == expected
    assert not closed_in(PosixFiles(directory))


def test_a_sealed_run_whose_dataset_is_gone_is_damaged_and_not_empty(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    captured_run(directory)
    folder = seal(directory).folder
    (directory / folder / "manifest.json").unlink()
    with pytest.raises(DamagedLog, match="restore the folder"):
        CaptureStore(directory)
    shutil.rmtree(directory / folder)
    with pytest.raises(DamagedLog, match="restore the folder"):
        CaptureStore(directory)


def test_what_lies_beside_is_read_where_it_lies_unless_the_dataset_knows_it(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    captured_run(directory)
    line = b'{"model_call_id":"m","dialect":"chat","request":{"n":1},"response":null}\n'
    for rollout in ("beside", "talk", "cleared"):
        (directory / f"{rollout}.capture.jsonl").write_bytes(line + b"no JSON\n" * (rollout == "beside"))
    expected = told(CaptureStore(directory))
    expected["beside"] = CaptureStore(directory).evidence("beside", include_payloads=True)
    seal(directory)
    store = CaptureStore(directory)
    assert {**told(store), "beside": store.evidence("beside", include_payloads=True)} == expected
    assert store.verify().lines == {"beside": 1}


def test_an_empty_run_is_sealed_and_says_that_it_is_empty(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    Owner(PosixFiles(directory)).stop()
    assert seal(directory).calls == 0
    assert CaptureStore(directory).standings() == []


def test_a_live_run_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    owner = Owner(PosixFiles(directory))
    clock = ManualClock()

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        owner.ownership.beat()

    with pytest.raises(DirectoryHeld):
        seal_log(PosixFiles(directory), identity("seal"), beating, clock=clock, wait=wait)
    owner.send(Batch().commit("r", exchange("a")), 1)


def test_shards_are_sealed_one_by_one_and_read_as_one(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    create_or_adopt_shards(str(directory), 2)
    ids = [f"r-{number}" for number in range(6)]
    for shard in range(2):
        owner = Owner(PosixFiles(directory / names.shard_folder(shard)))
        batch = Batch()
        for rollout in ids:
            if shard_of(rollout, 2) == shard:
                batch.commit(rollout, exchange(rollout))
        owner.send(batch, 1, CLIENT)
        owner.stop()
    expected = {rollout: CaptureStore(directory).read(rollout) for rollout in ids}
    seal(directory / "shard-001")
    store = CaptureStore(directory)
    assert ({each: store.read(each) for each in ids}, store.rollout_ids()) == (expected, ids)
    assert [(each.folder, each.files) for each in store.datasets()] == [("shard-001/sealed-00000002", 2)]
    reports = seal_at_rest(directory)
    assert {key: bool(report.segments) for key, report in reports.items()} == {"shard-000/": True, "shard-001/": False}
    assert sum(report.calls for report in reports.values()) == 6
    store = CaptureStore(directory)
    assert [each.folder for each in store.datasets()] == [f"shard-00{shard}/sealed-00000002" for shard in range(2)]
    assert ({each: store.read(each) for each in ids}, store.rollout_ids()) == (expected, ids)
    assert store.verify().sound


@pytest.mark.parametrize("harm", ["gone", "cut", "no manifest"])
@pytest.mark.parametrize(
    "seam", [before(f"{fault_points.SEALED_SWITCH}-write"), before(fault_points.SEALED_REMOVE)], ids=["closed", "shown"]
)
def test_sealing_that_goes_on_removes_no_segment_while_the_dataset_is_not_whole(
    tmp_path: Path, seam: str, harm: str
) -> None:
    directory = tmp_path / "run"
    expected = told(captured_run(directory))

    def killed(point: str) -> None:
        if point == seam:
            raise Killed

    with pytest.raises(Killed):
        seal(directory, killed)
    log, switched = segments(directory), sealed_in(PosixFiles(directory))
    dataset = next(directory.glob("sealed-*"))
    copy = shutil.copytree(dataset, tmp_path / "copy")
    if harm == "gone":
        shutil.rmtree(dataset)
    elif harm == "cut":
        part = next(dataset.glob("*.calls.parquet"))
        part.write_bytes(part.read_bytes()[:-100])
    else:
        (dataset / "manifest.json").unlink()
    with pytest.raises(DamagedLog, match="no segment was removed"):
        seal(directory)
    assert (segments(directory), sealed_in(PosixFiles(directory))) == (log, switched)
    if switched is None:
        assert told(CaptureStore(directory)) == expected
    shutil.rmtree(dataset, ignore_errors=True)
    copy.rename(dataset)
    assert seal(directory).segments == len(log)
    assert told(CaptureStore(directory)) == expected


def test_no_shard_is_sealed_where_another_has_open_claims(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    create_or_adopt_shards(str(directory), 2)
    for shard in range(2):
        owner = Owner(PosixFiles(directory / names.shard_folder(shard)))
        owner.send(Batch().claim("r", 1) if shard else Batch().commit("r", exchange("a")), 1, CLIENT)
        owner.stop()
    with pytest.raises(UnsettledRun, match="1 claims are open"):
        seal_at_rest(directory)
    assert [closed_in(PosixFiles(directory / names.shard_folder(shard))) for shard in range(2)] == [None, None]
    create_or_adopt_shards(str(directory), 2)
    assert seal_at_rest(directory, as_it_is=True)["shard-001/"].lost == 1


@pytest.mark.parametrize("kind", ["calls", "rollouts"])
def test_a_damaged_file_of_a_dataset_is_named_and_the_others_are_looked_at(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "run"
    captured_run(directory)
    folder = seal(directory).folder
    part = next((directory / folder).glob(f"*.{kind}.parquet"))
    part.write_bytes(b"PAR1" + b"\x55" * (part.stat().st_size - 4))
    report = CaptureStore(directory).verify()
    assert not report.sound
    assert [damage.file for damage in report.files] == [f"{folder}/{part.name}"]


def test_readers_are_told_that_only_the_file_that_leads_to_the_dataset_is_lost(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    expected = told(captured_run(directory))
    made = seal(directory)
    (directory / names.SEALED).unlink()
    with pytest.raises(DamagedLog, match=rf"sealed into {made.folder}.*SEALED.* gone.*gym-capture seal"):
        CaptureStore(directory)
    again = seal(directory)
    assert (again.folder, again.segments, again.files_read_back) == (made.folder, 0, 2)
    assert told(CaptureStore(directory)) == expected


def test_a_run_into_which_nothing_was_written_is_empty_also_between_two_steps_of_sealing(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    create_or_adopt_run(PosixFiles(directory))
    seal(directory)
    (directory / names.SEALED).unlink()  # as it is before sealing comes to it
    assert closed_in(PosixFiles(directory)) is not None
    assert CaptureStore(directory).rollout_ids() == []
    assert seal(directory).calls == 0
    assert CaptureStore(directory).rollout_ids() == []


def test_sealing_again_reads_the_dataset_and_leads_readers_to_what_is_left_of_it(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    captured_run(directory)
    folder = seal(directory).folder
    (directory / names.SEALED).unlink()
    part = next((directory / folder).glob("*.calls.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(DamagedLog, match=rf"{part.name} in .* the log is gone"):
        seal(directory)
    assert CaptureStore(directory).rollout_ids() == RUN_IDS


def test_a_dataset_that_nothing_names_any_more_is_found_where_the_log_is_gone(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    expected = told(captured_run(directory))
    folder = seal(directory).folder
    (directory / names.SEALED).unlink()
    (directory / names.epoch_file(4)).unlink()
    with pytest.raises(DamagedLog, match=rf"sealed into {folder}.*gym-capture seal"):
        CaptureStore(directory)
    assert seal(directory).folder == folder
    assert told(CaptureStore(directory)) == expected
