"""A run of several shards whose owners wrote checkpoints says at the command line what it says without them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gym_capture.cli.exits import Exit
from gym_capture.cli.main import app
from gym_capture.client.client import CaptureClient
from gym_capture.client.sharded_host import host_over
from gym_capture.model.shards import shard_of
from gym_capture.service.settings import OwnerSettings
from gym_capture.storage import names
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.conformance import some_exchange
from gym_capture.testing.threaded_shards import ThreadedShards

SHARDS = 2
FOLDERS = [names.shard_folder(shard) for shard in range(SHARDS)]
WHOLE = [f"7-{number}" for number in range(8)]
LACKING = next(f"8-{number}" for number in range(99) if shard_of(f"8-{number}", SHARDS) == 0)
LOOKS = [
    ("ls",),
    ("ls", "--gaps"),
    ("ls", "--sort", "calls"),
    ("show", "7-3"),
    ("show", LACKING),
    ("stats",),
    ("check",),
    ("diff", "7-0", "7-1"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight rollouts of three calls, half of them merged; one that released a claim."""
    directory = tmp_path_factory.mktemp("checkpointed") / "run"
    owners = ThreadedShards(directory, SHARDS, OwnerSettings(checkpoint_rows=4))
    owners.start()
    with CaptureClient(host_over(owners.in_process_transports())).sync as capture:
        with capture.rollout(LACKING).claim(dialect="chat"):
            pass
        for call in range(3):
            for number, rollout_id in enumerate(WHOLE):
                capture.record(rollout_id, some_exchange(f"c{call}"))
                if call == 1 and number % 2:
                    capture.merge({"_ng_rollout_id": rollout_id})
        capture.stop()
    owners.close()
    return directory


@pytest.fixture(scope="module")
def bare(run: Path) -> Path:
    """The same without checkpoints."""
    return Path(shutil.copytree(run, run.parent / "bare", ignore=shutil.ignore_patterns("index-*")))


def document(directory: Path, *words: str) -> Any:
    ran = CliRunner().invoke(app, [words[0], "--dir", str(directory), *words[1:], "--json"])
    assert ran.exit_code in (Exit.OK, Exit.EVIDENCE_MISSING), ran.output
    return json.loads(ran.stdout.replace(str(directory), "DIR"))


def test_each_shard_is_opened_behind_its_own_checkpoint(run: Path, bare: Path) -> None:
    newest = [names.checkpoints_in(PosixFiles(run / folder).names())[-1].file for folder in FOLDERS]
    store, whole = CaptureStore(run), CaptureStore(bare)
    assert (store.report.checkpoint, whole.report.checkpoint) == (", ".join(newest), "")
    assert CaptureStore(run, checkpoints=False).report.checkpoint == ""
    assert 0 < store.report.frames < whole.report.frames / 2
    assert store.standings() == whole.standings()
    assert [each.calls for each in store.standings()] == [3] * len(WHOLE) + [0]
    assert {each.late for each in store.standings()} == {0, 1}
    assert [store.read(rollout_id) for rollout_id in WHOLE] == [whole.read(rollout_id) for rollout_id in WHOLE]


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_a_look_shows_what_it_shows_without_checkpoints(run: Path, bare: Path, words: tuple[str, ...]) -> None:
    assert document(run, *words) == document(bare, *words)


def test_verify_names_the_shard_of_a_checkpoint_that_is_damaged_and_repair_puts_it_aside(run: Path) -> None:
    directory = Path(shutil.copytree(run, run.parent / "damaged"))
    path = sorted((directory / FOLDERS[1]).glob("index-*"))[-1]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    found = document(directory, "verify")
    assert (found["sound"], [each["file"] for each in found["checkpoints"]]) == (True, [f"{FOLDERS[1]}/{path.name}"])
    mended = document(directory, "verify", "--repair")
    assert mended["repair"] == {
        "epoch": None,
        "segments": [],
        "files": [],
        "quarantined": [f"{FOLDERS[1]}/quarantine/{path.name}.0"],
    }
    assert (mended["sound"], mended["checkpoints"]) == (True, [])
    ran = CliRunner().invoke(app, ["verify", str(directory), "--repair"])
    assert "nothing: nothing there can be mended" in ran.stdout


def test_an_import_finds_what_lies_behind_checkpoints_and_writes_it_no_second_time(run: Path, bare: Path) -> None:
    directory = Path(shutil.copytree(run, run.parent / "imported"))
    expected = CaptureStore(bare).standings()
    ran = CliRunner().invoke(app, ["import", str(bare), str(directory), "--json"])
    assert ran.exit_code == 0, ran.output
    imported = json.loads(ran.stdout)
    assert (imported["rollouts"], imported["calls"], imported["there_already"]) == (0, 0, len(WHOLE) + 1)
    assert CaptureStore(directory).standings() == expected


def test_sealing_removes_the_checkpoints_with_the_log_that_they_speak_of(run: Path, bare: Path) -> None:
    directory = Path(shutil.copytree(run, run.parent / "sealed"))
    expected = [CaptureStore(bare).read(rollout_id) for rollout_id in WHOLE]
    assert CliRunner().invoke(app, ["seal", str(directory)]).exit_code == 0
    left = [name for folder in FOLDERS for name in PosixFiles(directory / folder).names()]
    assert (names.checkpoints_in(left), names.segments_in(left)) == ([], [])
    assert [CaptureStore(directory).read(rollout_id) for rollout_id in WHOLE] == expected


def test_a_log_with_damage_before_its_checkpoint_is_not_sealed(run: Path) -> None:
    directory = Path(shutil.copytree(run, run.parent / "damaged-before"))
    first = min((directory / FOLDERS[0]).glob("segment-*"))
    data = bytearray(first.read_bytes())
    data[len(data) // 3] ^= 1
    first.write_bytes(bytes(data))
    ran = CliRunner().invoke(app, ["seal", str(directory)])
    assert (ran.exit_code, "damaged" in ran.output) == (Exit.ERROR, True), ran.output
    assert first.exists()


@pytest.mark.parametrize("look", ["standings", "standing", "view", "records", "is_incomplete", "generation", "knows"])
def test_a_reader_behind_checkpoints_says_the_same_after_they_went_with_a_seal(
    run: Path, bare: Path, tmp_path: Path, look: str
) -> None:
    def said(store: CaptureStore) -> object:
        if look == "standings":
            return store.standings()
        if look == "records":
            return {each: [(one.call_index, one.record) for one in store.records(each)] for each in WHOLE}
        if look == "view":
            views = map(store.view, (*WHOLE, LACKING))
            return [(each.generation, [one.digest for one in each.entries], each.reasons) for each in views]
        return [getattr(store, look)(each) for each in (*WHOLE, LACKING)]

    directory = Path(shutil.copytree(run, tmp_path / "sealed"))
    reader = CaptureStore(directory)
    assert CliRunner().invoke(app, ["seal", str(directory)]).exit_code == 0
    assert said(reader) == said(CaptureStore(bare))
