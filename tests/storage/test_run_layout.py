"""A run's directory says how many shards it has, and each shard's that it is one of them."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from gym_capture.directory.repairing import repair_at_rest
from gym_capture.errors import CaptureDirectoryError, MissingRunMarker, SettingsDiffer, ShardGiven
from gym_capture.model.codec import FORMAT_VERSION, checksum
from gym_capture.storage import names
from gym_capture.storage.owner_file import OwnerIdentity
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_layout import create_or_adopt_shards, marker_of_shards, require_shard, shards_of
from gym_capture.storage.run_marker import RunMarker, create_or_adopt_run, encode_marker
from gym_capture.storage.store import CaptureStore


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path)


def runs_of(directory: str) -> list[dict[str, object]]:
    return [json.loads((Path(directory) / name).read_bytes()) for name in ("RUN", "shard-000/RUN", "shard-001/RUN")]


def test_a_run_of_one_shard_is_laid_out_as_it_always_was(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    run = uuid.uuid4()
    create_or_adopt_shards(str(tmp_path / "one"), 1, lambda: run)
    create_or_adopt_run(PosixFiles(tmp_path / "other"), lambda: run)
    assert os.listdir(tmp_path / "one") == os.listdir(tmp_path / "other") == ["RUN"]
    assert (tmp_path / "one/RUN").read_bytes() == (tmp_path / "other/RUN").read_bytes()


def test_the_runs_marker_names_the_number_and_each_shards_its_own(directory: str) -> None:
    marker = create_or_adopt_shards(directory, 2)
    common = {"run": marker.run, "format": FORMAT_VERSION, "shards": 2}
    runs = runs_of(directory)
    for run in runs:
        # As the format says: of the whole, without blanks and with 0 there.
        said = json.dumps({**run, "crc32c": 0}, separators=(",", ":")).encode()
        assert run.pop("crc32c") == checksum(said)
    assert runs == [common, {**common, "shard": 0}, {**common, "shard": 1}]
    assert create_or_adopt_shards(directory, 2) == marker


@pytest.mark.parametrize(("there", "here"), [(2, 3), (2, 1), (1, 2)])
def test_another_number_is_refused_and_both_are_named(directory: str, there: int, here: int) -> None:
    create_or_adopt_shards(directory, there)
    before = sorted(os.listdir(directory))
    with pytest.raises(SettingsDiffer, match=rf"has {there} shards?, and capture.shards is {here}") as refused:
        create_or_adopt_shards(directory, here)
    assert refused.value.keys == ["capture.shards"]
    assert sorted(os.listdir(directory)) == before


def test_two_starts_at_once_make_one_run(directory: str) -> None:
    """The second comes after each step of the first: it finds shard 0's marker, and goes on from there."""
    first = uuid.uuid4()
    others = []

    def at_first_name() -> uuid.UUID:
        others.append(create_or_adopt_shards(directory, 2))
        return first

    marker = create_or_adopt_shards(directory, 2, at_first_name)
    assert others == [marker]
    assert marker.run != first.hex
    assert {each["run"] for each in runs_of(directory)} == {marker.run}


def test_a_start_that_was_killed_between_the_markers_is_gone_on_with(directory: str) -> None:
    marker = create_or_adopt_shards(directory, 2)
    os.unlink(f"{directory}/RUN")
    shutil.rmtree(f"{directory}/shard-001")
    assert create_or_adopt_shards(directory, 2) == marker
    assert len(runs_of(directory)) == 3


def take(files: PosixFiles) -> Ownership:
    return Ownership.take(files, OwnerIdentity("a"), wait=lambda seconds: None)


def test_a_lost_marker_of_a_run_that_was_owned_is_not_made_anew(directory: str) -> None:
    marker = create_or_adopt_shards(directory, 2)
    take(PosixFiles(require_shard(directory, marker.run, 1, 2)))
    os.unlink(f"{directory}/RUN")
    for shards in (1, 2):
        with pytest.raises(MissingRunMarker, match="verify --repair"):
            create_or_adopt_shards(directory, shards)
    assert "RUN" not in os.listdir(directory)


def remove_runs_marker(directory: str) -> None:
    os.unlink(f"{directory}/RUN")


def remove_marker(directory: str) -> None:
    os.unlink(f"{directory}/shard-001/RUN")


def remove_folder(directory: str) -> None:
    shutil.rmtree(f"{directory}/shard-001")


@pytest.mark.parametrize("lose", [remove_runs_marker, remove_marker, remove_folder])
def test_no_shard_is_served_whose_markers_are_not_all_there(directory: str, lose: Callable[[str], None]) -> None:
    marker = create_or_adopt_shards(directory, 2)
    assert require_shard(directory, marker.run, 1, 2) == f"{directory}/shard-001"
    lose(directory)
    with pytest.raises(MissingRunMarker):
        require_shard(directory, marker.run, 1, 2)
    if lose is not remove_runs_marker:
        # The run is there, so its shard was lost: nothing makes an empty one in its place.
        create_or_adopt_shards(directory, 2)
        with pytest.raises(MissingRunMarker):
            require_shard(directory, marker.run, 1, 2)


def test_a_shard_of_another_place_or_run_is_not_served(directory: str) -> None:
    marker = create_or_adopt_shards(directory, 3)
    shutil.rmtree(f"{directory}/shard-001")
    shutil.copytree(f"{directory}/shard-002", f"{directory}/shard-001")
    with pytest.raises(CaptureDirectoryError, match="is not shard 1 of 3"):
        require_shard(directory, marker.run, 1, 3)
    with pytest.raises(CaptureDirectoryError, match="is not shard 0 of 3"):
        require_shard(directory, uuid.uuid4().hex, 0, 3)
    with pytest.raises(CaptureDirectoryError, match="says that it is shard 2"):
        CaptureStore(directory)


def one_shard(marker: RunMarker) -> RunMarker:
    return RunMarker(marker.run, FORMAT_VERSION)


def another_run(marker: RunMarker) -> RunMarker:
    return RunMarker(uuid.uuid4().hex, FORMAT_VERSION, 2)


def more_shards(marker: RunMarker) -> RunMarker:
    return RunMarker(marker.run, FORMAT_VERSION, 3)


@pytest.mark.parametrize("wrong", [one_shard, another_run, more_shards])
@pytest.mark.parametrize("owned", [False, True])
def test_a_runs_marker_is_outvoted_by_its_shards_and_restored(
    directory: str, wrong: Callable[[RunMarker], RunMarker], owned: bool
) -> None:
    marker = create_or_adopt_shards(directory, 2)
    if owned:
        for shard in (0, 1):
            take(PosixFiles(require_shard(directory, marker.run, shard, 2))).release(0, 0)
    path = Path(directory, names.RUN)
    whole = path.read_bytes()
    path.write_bytes(encode_marker(wrong(marker)))
    with pytest.raises(CaptureDirectoryError):
        require_shard(directory, marker.run, 1, 2)
    store = CaptureStore(directory)
    assert (store.run, [each.file for each in store.verify().files]) == (marker.run, [names.RUN])
    assert repair_at_rest(directory)[""].files == [names.RUN]
    assert path.read_bytes() == whole
    assert CaptureStore(directory).verify().sound


def test_shards_beside_a_marker_of_one_are_damage_and_no_run_of_one(directory: str) -> None:
    marker = create_or_adopt_shards(directory, 2)
    Path(directory, names.RUN).write_bytes(encode_marker(one_shard(marker)))
    for shards in (1, 2):
        with pytest.raises(CaptureDirectoryError, match=r"has one shard, and shard-000 lies beside.*verify --repair"):
            create_or_adopt_shards(directory, shards)
    # Where there is a log beside them, too, nobody says which is right.
    take(PosixFiles(directory))
    for read in (CaptureStore, repair_at_rest):
        with pytest.raises(CaptureDirectoryError, match="move away what does not belong"):
            read(directory)


def test_a_start_of_one_shard_does_not_go_on_with_one_of_several(directory: str) -> None:
    os.mkdir(f"{directory}/shard-000")
    with pytest.raises(CaptureDirectoryError, match=r"shard-000 was made by a start with several.*remove that folder"):
        create_or_adopt_shards(directory, 1)
    create_or_adopt_shards(directory, 2)
    os.unlink(f"{directory}/RUN")
    with pytest.raises(SettingsDiffer, match=r"has 2 shards, and capture.shards is 1"):
        create_or_adopt_shards(directory, 1)
    assert sorted(os.listdir(directory)) == ["shard-000", "shard-001"]


def test_a_damaged_marker_of_a_shard_that_nobody_owned_yet_is_restored_from_the_runs(directory: str) -> None:
    create_or_adopt_shards(directory, 2)
    path = Path(directory, "shard-001", names.RUN)
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    assert repair_at_rest(directory)["shard-001/"].files == [names.RUN]
    assert path.read_bytes() == whole
    assert CaptureStore(directory).verify().sound


def test_a_shards_own_directory_is_not_taken_for_a_run(directory: str) -> None:
    create_or_adopt_shards(directory, 2)
    for use in (CaptureStore, lambda path: create_or_adopt_shards(path, 1), lambda path: shards_of(PosixFiles(path))):
        with pytest.raises(ShardGiven, match="is shard 1 of 2 of a run, whose directory is the one above"):
            use(f"{directory}/shard-001")


def test_without_the_runs_marker_the_shards_say_what_it_was(directory: str) -> None:
    marker = create_or_adopt_shards(directory, 2)
    files = PosixFiles(directory)
    for damage in (lambda: os.unlink(f"{directory}/RUN"), lambda: Path(f"{directory}/RUN").write_bytes(b"{")):
        damage()
        assert marker_of_shards(files) == marker
        assert [each.directory for each in shards_of(files)] == [f"{directory}/shard-000", f"{directory}/shard-001"]
        (found,) = CaptureStore(directory).verify().files
        assert found.file == names.RUN
        Path(f"{directory}/RUN").write_bytes(b"{}")
    shutil.rmtree(f"{directory}/shard-000")
    assert marker_of_shards(files) is None
    with pytest.raises(CaptureDirectoryError):
        CaptureStore(directory)
