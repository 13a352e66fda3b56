"""A capture directory belongs to one output: another one would clear what it holds."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from gym_capture.collect.binding import bind_output, check_output, holds_no_log
from gym_capture.collect.collector import collect
from gym_capture.config import load_config
from gym_capture.errors import ConfigError
from gym_capture.storage import names
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.store import CaptureStore
from tests.storage.owners import Batch, Owner, exchange


def captures_in(folder: Path) -> Path:
    """A directory at rest with one call."""
    directory = folder / "captures"
    directory.mkdir(mode=0o700)
    owner = Owner(PosixFiles(directory))
    owner.send(Batch().commit("0-0", exchange("call-1")), 1)
    owner.stop()
    return directory


def test_the_first_output_stays_and_another_one_is_refused_with_what_to_do(tmp_path: Path) -> None:
    directory = captures_in(tmp_path)
    first, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    assert check_output(directory, first) is False
    bind_output(directory, first)
    bind_output(directory, first)
    assert check_output(directory, first) is True
    mark = directory / "collect.json"
    assert json.loads(mark.read_bytes()) == {"output": os.path.realpath(first)}
    assert mark.stat().st_mode & 0o777 == 0o600
    for refuse in (check_output, bind_output):
        with pytest.raises(ConfigError) as refused:
            refuse(directory, other)
        said = str(refused.value)
        assert f"holds the captures of {first}, and collect.output is {other}" in said
        assert "Nothing was cleared or written; give another model_call_capture_dir, or the first" in said
        assert f"was moved here, remove {mark} and run again" in said
    mark.unlink()
    bind_output(directory, other)
    assert check_output(directory, other) is True


def test_one_output_has_many_paths(tmp_path: Path) -> None:
    directory = captures_in(tmp_path)
    output = tmp_path / "out.jsonl"
    bind_output(directory, output)
    (tmp_path / "linked").symlink_to(tmp_path)
    assert check_output(directory, tmp_path / "linked" / "out.jsonl") is True
    output.touch()
    os.link(output, tmp_path / "hard.jsonl")
    assert check_output(directory, tmp_path / "hard.jsonl") is True


def test_a_path_that_is_no_text_is_bound_too(tmp_path: Path) -> None:
    directory = captures_in(tmp_path)
    output = tmp_path / os.fsdecode(b"out\xff.jsonl")
    bind_output(directory, output)
    assert check_output(directory, output) is True


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"output": 5}', b"\xff"])
def test_a_mark_that_says_nothing_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    directory = captures_in(tmp_path)
    (directory / names.COLLECT).write_bytes(content)
    with pytest.raises(ConfigError, match=r"collect\.json.* cannot be read .*Nothing was cleared.*remove that file"):
        check_output(directory, tmp_path / "out.jsonl")


def test_of_two_that_race_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = captures_in(tmp_path)
    create = PosixFiles.create

    def slow(files: PosixFiles, name: str, data: bytes, point: str) -> None:
        monkeypatch.setattr(PosixFiles, "create", create)
        bind_output(directory, tmp_path / "faster.jsonl")
        create(files, name, data, point)

    monkeypatch.setattr(PosixFiles, "create", slow)
    with pytest.raises(ConfigError, match=r"holds the captures of .*faster\.jsonl"):
        bind_output(directory, tmp_path / "slower.jsonl")


def test_a_directory_that_cannot_be_written_here_is_told_of_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = captures_in(tmp_path)

    def refuse(files: PosixFiles, name: str, data: bytes, point: str) -> None:
        raise PermissionError("read-only here")

    monkeypatch.setattr(PosixFiles, "create", refuse)
    with caplog.at_level(logging.WARNING):
        bind_output(directory, tmp_path / "out.jsonl")
    assert "no run with another collect.output uses this directory" in caplog.text


def test_readers_pass_it_over(tmp_path: Path) -> None:
    directory = captures_in(tmp_path)
    bind_output(directory, tmp_path / "out.jsonl")
    store = CaptureStore(directory)
    assert store.rollout_ids() == ["0-0"]
    assert len(store.read("0-0")) == 1


def test_a_directory_holds_a_log_or_none(tmp_path: Path) -> None:
    assert holds_no_log(tmp_path / "absent")
    assert holds_no_log(tmp_path)
    assert not holds_no_log(captures_in(tmp_path))


def run_of(folder: Path, *overrides: str) -> tuple[Path, list[str]]:
    rows = folder / "rows.jsonl"
    rows.write_text("{}\n")
    return rows, [
        f"collect.input={rows}",
        "collect.rollout=gym_capture.examples.scripted_agent:rollout",
        f"model_call_capture_dir={folder / 'captures'}",
        *overrides,
    ]


async def test_a_run_with_another_output_ends_before_anything_is_touched(tmp_path: Path) -> None:
    directory = captures_in(tmp_path)
    bind_output(directory, tmp_path / "a.jsonl")
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    _, overrides = run_of(tmp_path, f"collect.output={tmp_path / 'b.jsonl'}")
    with pytest.raises(ConfigError, match=r"holds the captures of .*a\.jsonl"):
        await collect(load_config({}, overrides))
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert not (tmp_path / "b.jsonl").exists()


async def test_an_output_resumed_with_a_fresh_directory_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text('{"_ng_task_index": 0, "_ng_rollout_index": 0}\n')
    _, overrides = run_of(tmp_path, f"collect.output={output}")
    with caplog.at_level(logging.WARNING):
        summary = await collect(load_config({}, overrides))
    assert (len(summary.finished), summary.remaining) == (1, 0)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'captures'} is new: the captures of rollouts finished earlier are not in it"
    ]
    caplog.clear()
    captures_in(tmp_path)
    await collect(load_config({}, overrides))
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
