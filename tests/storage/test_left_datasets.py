"""Datasets without a log, where nothing says that they stand for it: copies that were cut short, lost files."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gym_capture.directory.carrying import carry_sealed, require_place
from gym_capture.directory.repairing import repair_at_rest
from gym_capture.directory.sealing import seal_at_rest
from gym_capture.errors import CaptureDirectoryError, DamagedLog, RunSealed
from gym_capture.model.shards import shard_of
from gym_capture.storage import fault_points, names
from gym_capture.storage.fault_points import before
from gym_capture.storage.owner_file import LogEnd, stop_note
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_layout import create_or_adopt_shards
from gym_capture.storage.store import CaptureStore
from gym_capture.transfer.importing import import_captures
from tests.storage.owners import CLIENT, Batch, Owner, exchange
from tests.storage.test_sealing import Killed, captured_run, seal, segments, told

FOLDER = "sealed-00000003"


def files_under(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def seal_two_shards(directory: Path) -> None:
    """A run of two shards with a rollout each, sealed."""
    directory.mkdir(mode=0o700)
    create_or_adopt_shards(str(directory), 2)
    for shard in range(2):
        owner = Owner(PosixFiles(directory / names.shard_folder(shard)))
        rollout = next(f"r-{number}" for number in range(9) if shard_of(f"r-{number}", 2) == shard)
        owner.send(Batch().commit(rollout, exchange(rollout)), 1, CLIENT)
        owner.stop()
    seal_at_rest(directory)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A sealed run that was carried elsewhere and copied back: it has none of its owners' files."""
    captured_run(tmp_path / "run")
    seal(tmp_path / "run")
    carry_sealed(tmp_path / "run", f"file://{tmp_path}/carried")
    return Path(shutil.copytree(tmp_path / "carried", tmp_path / "copy"))


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("led", [True, False])
def test_a_copy_of_several_shards_that_lacks_its_markers_gets_no_other_ones(
    tmp_path: Path, shards: int, led: bool
) -> None:
    run = tmp_path / "run"
    seal_two_shards(run)
    for path in [path for path in run.rglob("*") if path.is_file() and "sealed-" not in str(path)]:
        if path.name != names.SEALED or not led:
            path.unlink()
    left = files_under(run)
    with pytest.raises(RunSealed):
        create_or_adopt_shards(str(run), shards)
    assert files_under(run) == left


def test_another_programs_contents_say_nothing(tmp_path: Path) -> None:
    (tmp_path / names.CONTENTS).write_text("my notes")
    assert create_or_adopt_shards(str(tmp_path), 1).shards == 1


@pytest.mark.parametrize("missing", [["SEALED"], ["SEALED", "CONTENTS"]])
def test_a_copy_without_the_file_that_leads_to_its_dataset_is_told_and_made_whole(
    copy: Path, tmp_path: Path, missing: list[str]
) -> None:
    expected = told(CaptureStore(copy))
    for name in missing:
        (copy / name).unlink()
    left = files_under(copy)
    with pytest.raises(DamagedLog, match=rf"sealed into {FOLDER}.*SEALED.* gone.*gym-capture seal"):
        CaptureStore(copy)
    with pytest.raises(RunSealed, match=FOLDER):
        create_or_adopt_shards(str(copy), 1)
    with pytest.raises(RunSealed, match=FOLDER):
        Owner(PosixFiles(copy))
    repair_at_rest(copy)
    require_place(copy, f"file://{tmp_path}/carried")
    assert files_under(copy) == left
    report = seal(copy)
    assert (report.folder, report.rollouts, report.calls, report.files_read_back) == (FOLDER, 5, 12, 2)
    assert told(CaptureStore(copy)) == expected
    assert {name: data for name, data in files_under(copy).items() if name != names.SEALED} == left


def without_manifest(copy: Path) -> None:
    (copy / FOLDER / "manifest.json").unlink()
    (copy / "CONTENTS").unlink()


def without_dataset(copy: Path) -> None:
    shutil.rmtree(copy / FOLDER)


def with_a_torn_manifest(copy: Path) -> None:
    (copy / FOLDER / "manifest.json").write_bytes(b"{")
    (copy / "CONTENTS").unlink()
    for part in (copy / FOLDER).glob("*.parquet"):
        part.unlink()


@pytest.mark.parametrize("harm", [without_manifest, without_dataset, with_a_torn_manifest])
def test_a_copy_that_lacks_more_is_no_empty_run_and_is_left_as_it_is(copy: Path, harm: Callable[[Path], None]) -> None:
    (copy / "SEALED").unlink()
    harm(copy)
    left = files_under(copy)
    with pytest.raises(DamagedLog, match=rf"sealed into {FOLDER}"):
        CaptureStore(copy)
    with pytest.raises(DamagedLog, match="restore the folder from a copy"):
        seal(copy)
    assert files_under(copy) == left


def test_a_copy_that_lacks_a_part_is_read_as_far_as_it_is_there(copy: Path) -> None:
    (copy / "SEALED").unlink()
    part = next((copy / FOLDER).glob("*.calls.parquet"))
    part.unlink()
    with pytest.raises(DamagedLog, match=rf"{part.name} in .* the log is gone"):
        seal(copy)
    assert CaptureStore(copy).rollout_ids() == ["again", "hostile", "left", "talk"]


def test_a_copy_without_its_marker_gets_no_other_one(copy: Path) -> None:
    (copy / "RUN").unlink()
    (copy / "SEALED").unlink()
    left = files_under(copy)
    with pytest.raises(RunSealed, match=FOLDER):
        create_or_adopt_shards(str(copy), 1)
    with pytest.raises(RunSealed, match=FOLDER):
        import_captures(captured_run(copy.parent / "source").directory, copy)
    assert files_under(copy) == left


def test_a_shard_that_was_not_copied_is_no_empty_shard(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    seal_two_shards(directory)
    carry_sealed(directory, f"file://{tmp_path}/copy")
    copy = tmp_path / "copy"
    shutil.rmtree(copy / "shard-001" / "sealed-00000002")
    (copy / "shard-001" / "SEALED").unlink()
    left = files_under(copy)
    with pytest.raises(DamagedLog, match=r"shard-001 was sealed into sealed-00000002"):
        CaptureStore(copy)
    with pytest.raises(DamagedLog, match="restore the folder from a copy"):
        seal_at_rest(copy)
    assert files_under(copy) == left
    (copy / "CONTENTS").write_bytes(b"{")
    with pytest.raises(DamagedLog, match="CONTENTS"):
        CaptureStore(copy)


def test_a_dataset_stays_beside_a_log_that_has_not_what_is_in_it(
    copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "other"
    directory.mkdir(mode=0o700)
    owner = Owner(PosixFiles(directory))
    owner.send(Batch().commit("new", exchange("a")), 1)
    owner.stop()
    theirs = [shutil.copytree(copy / FOLDER, directory / f"sealed-0000000{epoch}") for epoch in (1, 2, 9)]
    left = [files_under(each) for each in theirs]
    listed = PosixFiles(directory).names()
    # The second epoch's folder is taken, so this attempt has none.
    with pytest.raises(CaptureDirectoryError, match=r"sealed-00000002 has something .* seal it again"):
        seal(directory)
    assert [files_under(each) for each in theirs] == left
    assert set(PosixFiles(directory).names()) - set(listed) == {"beat-00000002", "epoch-00000002", "token-00000002"}
    with caplog.at_level(logging.WARNING, "gym_capture.storage"):
        report = seal(directory)
    assert (report.folder, report.calls) == (FOLDER, 1)
    assert [each.split(" in ")[0] for each in caplog.messages] == [each.name for each in theirs]
    assert [files_under(each) for each in theirs] == left
    assert CaptureStore(directory).rollout_ids() == ["new"]


def killed_when_whole(directory: Path) -> None:
    """A first attempt, all of whose dataset is on disk."""

    def kill(point: str) -> None:
        if point == before(f"{fault_points.SEALED_CLOSE}-link"):
            shutil.copytree(directory / FOLDER, directory.parent / "left")
            raise Killed

    with pytest.raises(Killed):
        seal(directory, kill)
    (directory.parent / "left").rename(directory / FOLDER)  # a killed process does not clean up


def test_an_attempt_that_was_killed_goes_though_a_rollout_of_it_was_cleared_since(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    captured_run(directory)
    killed_when_whole(directory)
    owner = Owner(PosixFiles(directory), "actor-4", takeover=True)
    owner.send(Batch().clear("talk", "anew").commit("talk", exchange("retry")), 9)
    owner.stop()
    assert seal(directory).folder == "sealed-00000005"
    assert names.sealed_folders_in(PosixFiles(directory).names()) == ["sealed-00000005"]
    assert [each["model_call_id"] for each in CaptureStore(directory).read("talk")] == ["retry"]


def test_a_dataset_is_not_taken_for_what_owners_wrote_after_it(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    captured_run(directory)
    killed_when_whole(directory)
    owner = Owner(PosixFiles(directory), "actor-4", takeover=True)
    owner.send(Batch().commit("later", exchange("a")), 9)
    owner.stop()
    for name in segments(directory):
        (directory / name.file).unlink()
    left = files_under(directory)
    for attempt in (seal, CaptureStore, lambda each: Owner(PosixFiles(each), "actor-5")):
        with pytest.raises(DamagedLog, match=rf"segments of the log .* are gone. {FOLDER} has what was there"):
            attempt(directory)
    assert files_under(directory) == left
    (directory / names.SEALED).write_text(f'{{"actor_id":"","sealed":"{FOLDER}"}}')
    assert CaptureStore(directory).rollout_ids() == ["again", "hostile", "left", "talk"]


@pytest.mark.parametrize("wrote", [0, 100, None])
def test_owners_that_came_after_a_dataset_hide_it_only_if_they_may_have_written(copy: Path, wrote: int | None) -> None:
    (copy / "SEALED").unlink()
    (copy / names.epoch_file(4)).write_text('{"actor_id":"seal-1"}')
    beat = b"%020d\n" % 7 if wrote is None else stop_note(LogEnd(0, wrote))
    (copy / names.beat_file(4)).write_bytes(beat)
    if wrote == 0:
        assert seal(copy).calls == 12
    else:
        with pytest.raises(DamagedLog, match="owners may have written more"):
            seal(copy)
    assert (copy / FOLDER / "manifest.json").exists()
