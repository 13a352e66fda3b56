"""Sealing while the run goes on: whatever comes to a rollout after it, the sealed run says what the log said."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_capture.errors import DamagedLog, DirectoryHeld, FormatError, RunSealed, UnsettledRun
from gym_capture.model.captured import CapturedRollout
from gym_capture.storage import fault_points, names, sealing_ahead
from gym_capture.storage.fault_points import after, before
from gym_capture.storage.files import FaultHook, no_faults
from gym_capture.storage.held_files import HeldFiles
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.sealed.reader import SealedReader
from gym_capture.storage.sealing import SealReport
from gym_capture.storage.sealing_ahead import AheadSealer
from gym_capture.storage.shard_store import ShardStore
from gym_capture.storage.store import CaptureStore
from tests.storage.captured_rollouts import conversation, listed
from tests.storage.conversing import Talker, turn_of
from tests.storage.owners import OTHER_CLIENT, Batch, Owner, exchange
from tests.storage.test_sealing import Killed, seal


class Run:
    """A directory with an owner, and what is sealed of it meanwhile."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700)
        self.directory = directory
        self.owner = Owner(PosixFiles(directory), segment_bytes=3000)
        self.sealer = self.another()
        self._batch = 0

    def another(self, hook: FaultHook = no_faults, **bounds: int) -> AheadSealer:
        return AheadSealer(PosixFiles(self.directory, hook), **{"least_bytes": 1, **bounds})

    def send(self, batch: Batch) -> None:
        self._batch += 1
        self.owner.send(batch, self._batch)

    def finished(self, *rollouts: str, calls: int = 2) -> None:
        for rollout in rollouts:
            batch = Batch()
            for number in range(calls):
                batch.commit(rollout, exchange(f"{rollout}-{number}", "hi" * 50))
            self.send(batch)
            self.owner.merge(rollout)

    def ahead(self) -> SealedReader:
        return SealedReader(PosixFiles(self.directory).folder(names.SEALED_AHEAD))

    def ahead_calls(self) -> dict[str, list[str]]:
        """The ids of the calls that whoever reads Parquet finds, by rollout."""
        found: dict[str, list[str]] = {}
        for table in self.ahead().call_tables(["rollout_id", "model_call_id"]):
            for row in table.to_pylist():
                found.setdefault(row["rollout_id"], []).append(row["model_call_id"])
        return found

    def end(self) -> SealReport:
        """Stop the owner, seal the run, and see that it says what its log said, and that nothing is there twice."""
        self.owner.stop()
        report = sealed_alike(self.directory)
        assert names.SEALED_AHEAD not in PosixFiles(self.directory).names()
        return report


def said(directory: Path) -> dict[str, CapturedRollout]:
    """What is captured of each rollout. Which rows are late is said by standings; a log says it nowhere else."""
    store = CaptureStore(directory)
    return {
        each: found._replace(calls=list(found.calls), late=0)
        for each in store.rollout_ids()
        for found in [store.captured(each)]
    }


def sealed_alike(directory: Path) -> SealReport:
    store = CaptureStore(directory)
    expected, standings = said(directory), store.standings()
    report = seal(directory)
    assert said(directory) == expected
    assert CaptureStore(directory).standings() == standings
    reader = SealedReader(PosixFiles(directory).folder(report.folder))
    rows = [(row["rollout_id"], row["call_index"]) for each in reader.call_tables() for row in each.to_pylist()]
    assert sorted(rows) == [(each, call.call_index) for each, found in sorted(expected.items()) for call in found.calls]
    assert (report.calls, report.rollouts) == (len(rows), len(standings))
    assert CaptureStore(directory).verify().sound
    return report


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


def test_what_is_merged_is_sealed_while_the_rest_goes_on_and_taken_over_at_the_end(run: Run) -> None:
    run.finished("b", "a")
    run.send(Batch().commit("running", exchange("x")).claim("claimed", 1))
    assert run.sealer.step()
    assert run.ahead_calls() == {"a": ["a-0", "a-1"], "b": ["b-0", "b-1"]}
    assert listed(run.ahead().rollout("a")) == listed(CaptureStore(run.directory).captured("a"))
    assert not run.sealer.step()
    run.send(Batch().release("claimed", 1))
    run.owner.merge("running")
    assert run.sealer.step()
    assert run.ahead_calls() == {"a": ["a-0", "a-1"], "b": ["b-0", "b-1"], "running": ["x"]}
    assert (run.sealer.report.parts, run.sealer.report.calls) == (2, 5)
    report = run.end()
    assert (report.calls, report.calls_ahead) == (5, 5)


def test_the_log_is_opened_anew_now_and_then(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[ShardStore] = []

    class Counted(ShardStore):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            opened.append(self)

    monkeypatch.setattr(sealing_ahead, "ShardStore", Counted)
    monkeypatch.setattr(sealing_ahead, "_REFRESHES", 2)
    for _ in range(6):
        assert not run.sealer.step()
    assert len(opened) == 2
    run.finished("a")
    assert run.sealer.step()


def test_nothing_is_sealed_until_there_is_enough(run: Run) -> None:
    run.finished("a")
    size = sum(call.raw_bytes for call in CaptureStore(run.directory).captured("a").calls)
    sealer = run.another(least_bytes=2 * size)
    assert not sealer.step()
    assert names.SEALED_AHEAD not in PosixFiles(run.directory).names()
    run.finished("b")
    assert sealer.step()
    assert run.end().calls_ahead == 4


def test_a_call_that_comes_after_the_merge_is_sealed_with_what_follows(run: Run) -> None:
    run.finished("a", "b")
    assert run.sealer.step()
    run.send(Batch().commit("a", exchange("late", "later")))
    assert not run.sealer.step()
    run.owner.merge("a")
    assert run.sealer.step()
    assert run.ahead_calls() == {"a": ["a-0", "a-1", "late"], "b": ["b-0", "b-1"]}
    run.send(Batch().commit("b", exchange("very late")))
    report = run.end()
    assert (report.calls, report.calls_ahead) == (6, 5)
    assert CaptureStore(run.directory).standing("b").late == 1


def test_what_becomes_known_of_a_rollout_without_a_call_is_in_the_sealed_run(run: Run) -> None:
    run.finished("a", "b")
    run.sealer.step()
    run.send(Batch().claim("a", 1).release("a", 1, "lost"))
    assert run.end().calls_ahead == 4
    assert CaptureStore(run.directory).standing("a").reasons is not None


def test_a_rollout_that_is_cleared_leaves_the_dataset_and_those_beside_it_stay(run: Run) -> None:
    run.finished("a", "b", "c")
    run.sealer.step()
    run.send(Batch().clear("b", "once"))
    run.finished("d")
    assert run.sealer.step()
    assert run.ahead_calls() == {each: [f"{each}-0", f"{each}-1"] for each in "acd"}
    assert [part.number for part in run.ahead().manifest.parts] == [2]
    run.finished("b", calls=1)
    assert run.sealer.step()
    report = run.end()
    assert (report.calls, report.calls_ahead) == (7, 7)


def test_a_rollout_that_is_cleared_and_finished_again_between_two_looks_is_there_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.finished("a", "b")
    assert run.sealer.step()
    run.finished("d")

    def retried(directory: str) -> HeldFiles:
        """The log is opened anew once there is enough; just before, a rollout that was sealed begins again."""
        monkeypatch.setattr(sealing_ahead, "HeldFiles", HeldFiles)
        run.send(Batch().clear("a", "once").commit("a", exchange("a-retried")))
        run.owner.merge("a")
        return HeldFiles(directory)

    monkeypatch.setattr(sealing_ahead, "HeldFiles", retried)
    assert run.sealer.step()
    assert run.ahead_calls() == {"a": ["a-retried"], "b": ["b-0", "b-1"], "d": ["d-0", "d-1"]}
    assert run.end().calls_ahead == 5


def test_a_rollout_that_is_cleared_at_the_end_is_not_carried_over(run: Run) -> None:
    run.finished("a", "b")
    run.sealer.step()
    run.finished("c")
    run.sealer.step()
    run.send(Batch().clear("b", "once"))
    report = run.end()
    assert (report.calls, report.calls_ahead) == (4, 2)


def test_what_a_later_owner_cut_off_is_not_in_the_dataset(run: Run) -> None:
    run.finished("a")
    segments = names.segments_in(PosixFiles(run.directory).names())
    kept = {each.file: (run.directory / each.file).stat().st_size for each in segments}
    run.finished("b")
    assert run.sealer.step()
    # The machine goes down before what came last is on disk, and another owner follows.
    for each in names.segments_in(PosixFiles(run.directory).names()):
        with (run.directory / each.file).open("rb+") as file:
            file.truncate(kept.get(each.file, 0))
        if each.file not in kept:
            (run.directory / each.file).unlink()
    shutil.copytree(run.directory, run.directory.parent / "copy")
    run.owner = Owner(PosixFiles(run.directory), "actor-2", takeover=True)
    run.send(Batch().commit("b", exchange("another")))
    run.owner.merge("b")
    assert run.sealer.step()
    assert run.ahead_calls() == {"a": ["a-0", "a-1"], "b": ["another"]}
    assert run.end().calls_ahead == 3
    owner = Owner(PosixFiles(run.directory.parent / "copy"), "actor-2", takeover=True)
    owner.stop()
    report = sealed_alike(run.directory.parent / "copy")
    assert (report.calls, report.calls_ahead) == (2, 0)


def test_another_sealer_goes_on_where_one_ended(run: Run) -> None:
    run.finished("a", "b")
    run.sealer.step()
    other = run.another()
    assert not other.step()
    run.finished("c")
    assert other.step()
    assert [part.rollout_count for part in run.ahead().manifest.parts] == [2, 1]
    assert run.end().calls_ahead == 6


def test_one_that_is_stopped_leaves_out_what_it_began(run: Run) -> None:
    run.finished("a", "b")
    answers = iter([False, True])
    assert not run.sealer.step(lambda: next(answers))
    assert PosixFiles(run.directory / names.SEALED_AHEAD).names() == []
    assert run.sealer.step()
    assert run.end().calls_ahead == 4


def test_killed_at_any_step_of_it_the_run_is_sealed_whole(run: Run, tmp_path: Path) -> None:
    run.finished("a", "b")
    run.sealer.step()
    run.send(Batch().clear("b", "once"))
    run.finished("c")
    points: list[str] = []
    shutil.copytree(run.directory, tmp_path / "whole")
    AheadSealer(PosixFiles(tmp_path / "whole", points.append), least_bytes=1).step()
    assert {before(name) for name in fault_points.SEALING_STEPS} <= set(points)
    for number in sorted({*map(points.index, points), len(points) - 1}):
        for goes_on in (True, False):
            directory = tmp_path / f"{number}-{goes_on}"
            shutil.copytree(run.directory, directory)
            left = iter(range(number))

            def kill(_point: str, left: Any = left) -> None:
                if next(left, None) is None:
                    raise Killed

            with pytest.raises(Killed):
                AheadSealer(PosixFiles(directory, kill), least_bytes=1).step()
            if goes_on:
                AheadSealer(PosixFiles(directory), least_bytes=1).step()
                ahead = SealedReader(PosixFiles(directory).folder(names.SEALED_AHEAD))
                assert ahead.rollout_ids() == ["a", "c"], points[number]
            owner = Owner(PosixFiles(directory), "actor-2", takeover=True)
            owner.stop()
            assert sealed_alike(directory).calls == 4, points[number]


@pytest.mark.parametrize("harm", ["flipped", "gone", "no manifest", "short index", "foreign manifest"])
def test_a_damaged_dataset_costs_only_what_it_saved(run: Run, harm: str) -> None:
    run.finished("a")
    run.sealer.step()
    run.finished("b")
    run.sealer.step()
    first, index = sorted((run.directory / names.SEALED_AHEAD).glob("part-00000001*"))
    manifest = run.directory / names.SEALED_AHEAD / "manifest.json"
    match harm:
        case "flipped":
            data = bytearray(first.read_bytes())
            data[len(data) // 3] ^= 1
            first.write_bytes(bytes(data))
        case "gone":
            first.unlink()
        case "no manifest":
            manifest.write_text("{")
        case "short index":
            index.write_bytes(index.read_bytes()[:-9])
        case "foreign manifest":
            manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))
    if "manifest" in harm:
        with pytest.raises((DamagedLog, FormatError), match="remove sealed-ahead"):
            run.another().step()
    run.owner.stop()
    report = sealed_alike(run.directory)
    assert (report.calls, report.calls_ahead) == (4, 0 if "manifest" in harm else 2)
    # What cannot be looked into is not removed.
    assert (names.SEALED_AHEAD in PosixFiles(run.directory).names()) == (harm not in ("flipped", "gone"))


def test_a_disk_that_fails_where_the_dataset_lies_costs_only_what_it_saved(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.finished("a")
    run.sealer.step()
    read_at = PosixFiles.read_at

    def fail(files: PosixFiles, name: str, offset: int, length: int) -> bytes:
        if files.directory.endswith(names.SEALED_AHEAD) and name.endswith(".calls.parquet"):
            raise OSError(errno.EIO, "Input/output error")
        return read_at(files, name, offset, length)

    run.owner.stop()
    monkeypatch.setattr(PosixFiles, "read_at", fail)
    assert sealed_alike(run.directory).calls_ahead == 0


def test_a_call_that_cannot_be_read_is_for_the_end_of_the_run(run: Run) -> None:
    run.finished("a", "b")
    run.send(Batch().commit("hurt", exchange("h", "needle")))
    run.owner.merge("hurt")
    for each in names.segments_in(PosixFiles(run.directory).names()):
        path = run.directory / each.file
        path.write_bytes(path.read_bytes().replace(b"needle", b"noodle"))
    assert not run.sealer.step()
    assert run.sealer.step()
    assert sorted(run.ahead_calls()) == ["a", "b"]
    run.owner.stop()
    with pytest.raises(UnsettledRun):
        seal(run.directory)
    report = seal(run.directory, as_it_is=True)
    assert (report.calls, report.calls_ahead, report.damaged) == (4, 4, 1)
    assert names.SEALED_AHEAD in PosixFiles(run.directory).names()


def test_what_was_sealed_ahead_is_kept_where_the_log_has_lost_it(run: Run) -> None:
    run.finished("a", "b")
    run.sealer.step()
    run.owner.stop()
    for each in names.segments_in(PosixFiles(run.directory).names())[:1]:
        data = bytearray((run.directory / each.file).read_bytes())
        data[data.index(b"a-0")] ^= 1
        (run.directory / each.file).write_bytes(bytes(data))
    for _ in range(2):
        seal(run.directory, as_it_is=True)
        assert run.ahead_calls() == {"a": ["a-0", "a-1"], "b": ["b-0", "b-1"]}


def test_a_part_that_the_log_cannot_confirm_any_more_is_not_withdrawn(run: Run) -> None:
    run.finished("a", "b")
    run.sealer.step()
    for each in names.segments_in(PosixFiles(run.directory).names())[:1]:
        data = bytearray((run.directory / each.file).read_bytes())
        data[data.index(b"a-0")] ^= 1
        (run.directory / each.file).write_bytes(bytes(data))
    run.finished("c")
    assert not run.another().step()
    run.owner.stop()
    seal(run.directory, as_it_is=True)
    assert run.ahead_calls() == {each: [f"{each}-0", f"{each}-1"] for each in "ab"}


def test_what_was_sealed_ahead_is_kept_where_the_whole_log_is_gone(run: Run) -> None:
    run.finished("a")
    run.sealer.step()
    run.owner.stop()
    for each in names.segments_in(PosixFiles(run.directory).names()):
        (run.directory / each.file).unlink()
    seal(run.directory, as_it_is=True)
    assert run.ahead_calls() == {"a": ["a-0", "a-1"]}


def test_what_was_sealed_ahead_is_kept_where_the_log_has_lost_its_end_unnoticed(run: Run) -> None:
    run.finished("a")
    segments = names.segments_in(PosixFiles(run.directory).names())
    kept = {each.file: (run.directory / each.file).stat().st_size for each in segments}
    run.send(Batch().commit("a", exchange("last")))
    run.owner.merge("a")
    run.sealer.step()
    for each in names.segments_in(PosixFiles(run.directory).names()):
        with (run.directory / each.file).open("rb+") as file:
            file.truncate(kept.get(each.file, 0))
        if each.file not in kept:
            (run.directory / each.file).unlink()
    Owner(PosixFiles(run.directory), "actor-2", takeover=True).stop()
    assert seal(run.directory).calls == 2
    assert run.ahead_calls() == {"a": ["a-0", "a-1", "last"]}


def test_a_manifest_that_says_something_else_is_not_believed(run: Run) -> None:
    run.finished("a", "b")
    run.sealer.step()
    manifest = run.directory / names.SEALED_AHEAD / "manifest.json"
    for said, other in (('"call_count": 4', '"call_count": 5'), ('"last": "b"', '"last": "bb"')):
        assert said in manifest.read_text()
        shutil.copytree(run.directory, run.directory.parent / "copy")
        changed = run.directory.parent / "copy" / names.SEALED_AHEAD / "manifest.json"
        changed.write_text(manifest.read_text().replace(said, other))
        Owner(PosixFiles(run.directory.parent / "copy"), "actor-2", takeover=True).stop()
        report = sealed_alike(run.directory.parent / "copy")
        assert (report.calls, report.calls_ahead) == (4, 0)
        shutil.rmtree(run.directory.parent / "copy")
    assert run.end().calls_ahead == 4


def test_a_lost_list_of_the_later_part_hides_none_of_its_calls(run: Run) -> None:
    run.finished("a")
    run.sealer.step()
    run.send(Batch().commit("a", exchange("late")).commit("a", exchange("later")))
    run.owner.merge("a")
    folder = run.directory / run.end().folder
    (folder / "part-00000002.rollouts.parquet").write_bytes(b"lost")
    store = CaptureStore(run.directory)
    assert [each["model_call_id"] for each in store.read("a")] == ["a-0", "a-1", "late", "later"]
    assert (store.standing("a").calls, store.standing("a").damaged) == (4, 0)


def test_no_more_than_a_part_is_written_before_it_counts(run: Run) -> None:
    run.finished("a", "b", "c")
    size = sum(call.raw_bytes for call in CaptureStore(run.directory).captured("a").calls)
    sealer = run.another(part_bytes=size)
    assert [sealer.step() for _ in range(4)] == [True, True, True, False]
    assert [part.rollout_count for part in run.ahead().manifest.parts] == [1, 1, 1]
    assert run.end().calls_ahead == 6


def test_two_that_take_turns_seal_nothing_twice(run: Run) -> None:
    other = run.another()
    run.finished("a")
    assert run.sealer.step()
    run.finished("b")
    assert other.step()
    run.finished("c")
    assert run.sealer.step()
    shutil.rmtree(run.directory / names.SEALED_AHEAD)
    run.finished("d")
    assert other.step()
    assert run.ahead_calls() == {each: [f"{each}-0", f"{each}-1"] for each in "abcd"}
    assert run.end().calls_ahead == 8


def test_two_that_seal_ahead_do_not_mix(run: Run) -> None:
    run.finished("a", "b")
    other: list[bool] = []

    def meanwhile(point: str) -> None:
        if point == after(fault_points.SEALED_SYNC) and not other:
            other.append(True)
            other.append(run.another().step())

    with pytest.raises(DirectoryHeld):
        run.another(meanwhile).step()
    assert other == [True, True]
    assert run.ahead_calls() == {"a": ["a-0", "a-1"], "b": ["b-0", "b-1"]}
    assert run.end().calls_ahead == 4


def test_one_that_is_overtaken_by_the_sealing_of_the_run_ends(run: Run) -> None:
    run.finished("a")
    run.sealer.step()
    run.end()
    with pytest.raises(RunSealed):
        run.sealer.step()
    assert names.SEALED_AHEAD not in PosixFiles(run.directory).names()


def test_behind_checkpoints_what_was_merged_meanwhile_is_found(run: Run) -> None:
    run.finished("a")
    run.send(Batch().commit("slow", exchange("s")).commit("idle", exchange("i")))
    assert run.sealer.step()
    for _ in range(2):
        run.finished("b" if _ else "c")
        run.owner.checkpoint()
    sealer = run.another()
    assert sealer.step()
    assert not sealer.step()
    run.owner.merge("slow")
    assert sealer.step()
    assert sorted(run.ahead_calls()) == ["a", "b", "c", "slow"]
    assert run.end().calls_ahead == 7


def test_growing_conversations_are_continued_exactly(run: Run) -> None:
    talker = Talker(OTHER_CLIENT)
    for number, each in enumerate(conversation(6)):
        talker.say("talk", turn_of(str(number), each["request"], each["response"]))
        talker.send(run.owner)
        if number in (2, 4):
            run.owner.merge("talk")
            assert run.sealer.step()
    report = run.end()
    assert (report.calls, report.calls_ahead) == (6, 5)


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from("abc")),
        st.tuples(st.just("merge"), st.sampled_from("abc")),
        st.tuples(st.just("clear"), st.sampled_from("abc")),
        st.tuples(st.just("lose"), st.sampled_from("abc")),
        st.tuples(st.sampled_from(["step", "step", "new sealer", "checkpoint", "new owner"]), st.just("")),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(steps=_steps)
def test_whatever_the_run_does_what_is_sealed_says_what_the_log_said(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    run = Run(tmp_path_factory.mktemp("any") / "run")
    for number, (kind, rollout) in enumerate(steps):
        match kind:
            case "commit":
                run.send(Batch().commit(rollout, exchange(f"call-{number}", "hello" * (number % 7))))
            case "merge":
                run.owner.merge(rollout)
            case "clear":
                run.send(Batch().clear(rollout, f"clear-{number}"))
            case "lose":
                run.send(Batch().claim(rollout, number + 1).release(rollout, number + 1, "lost"))
            case "step":
                run.sealer.step()
            case "new sealer":
                run.sealer = run.another()
            case "checkpoint":
                run.owner.checkpoint()
            case "new owner":
                run.owner.stop()
                run.owner = Owner(PosixFiles(run.directory), f"actor-{number}", segment_bytes=3000)
    run.end()


__all__ = ["Run"]
