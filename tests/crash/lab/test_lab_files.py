"""What the lab does to an owner's files happens as the control file says, once, and to what is not synced only."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.crash.lab.in_process import CONTROL, Control, LabHook, run_and_shard, shard_of_actor
from tests.crash.lab.lab_files import LabFiles


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A capture directory with room for a control file beside it."""
    path = tmp_path / "captures"
    path.mkdir()
    return path


def put(directory: Path, **now: Any) -> None:
    """Put a control in force, as a run does: by rename."""
    aside = directory.parent / "aside"
    aside.write_text(json.dumps(now))
    os.replace(aside, directory.parent / CONTROL)


def test_without_a_control_file_the_hook_does_nothing(directory: Path) -> None:
    LabHook(Control(str(directory)))("before append")


def test_a_point_fails_while_the_control_says_so(directory: Path) -> None:
    files = LabFiles(str(directory), LabHook(Control(str(directory))))
    file = files.create_append("a", "segment")
    put(directory, serial=1, fail={"before append": errno.ENOSPC})
    with pytest.raises(OSError, match="No space left") as raised:
        file.append([b"x"], "append")
    assert raised.value.errno == errno.ENOSPC
    put(directory, serial=2, fail={})
    file.append([b"x"], "append")
    assert (directory / "a").read_bytes() == b"x"


def test_a_host_that_forgets_keeps_what_was_synced(directory: Path) -> None:
    files = LabFiles(str(directory), LabHook(Control(str(directory))))
    kept, lost = files.create_append("a", "segment"), files.create_append("b", "segment")
    kept.append([b"one"], "append")
    kept.sync("sync")
    kept.append([b"two"], "append")
    lost.append([b"three"], "append")
    files.drop_unsynced()
    assert ((directory / "a").read_bytes(), (directory / "b").read_bytes()) == (b"one", b"")


def test_of_all_processes_that_reach_the_point_one_is_killed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    put(directory, serial=7, kill={"point": "after sync", "times": 2, "drop": False})
    first, second = LabHook(Control(str(directory))), LabHook(Control(str(directory)))
    first("after sync")
    assert killed == []
    first("before sync")
    first("after sync")
    assert killed == [(os.getpid(), signal.SIGKILL)]
    for _ in range(3):
        second("after sync")
    assert len(killed) == 1
    assert (directory.parent / "fired-7").exists()


def test_of_several_shards_one_is_struck(directory: Path) -> None:
    put(directory, serial=1, shard=2, fail={"before append": errno.EIO})
    hooks = [LabHook(Control(str(directory)), shard) for shard in range(4)]
    for shard in (0, 1, 3):
        hooks[shard]("before append")
    with pytest.raises(OSError, match="Input/output"):
        hooks[2]("before append")


def test_an_owner_is_known_by_its_folder_and_by_its_actors_name() -> None:
    assert run_and_shard("/runs/7/captures") == ("/runs/7/captures", 0)
    assert run_and_shard("/runs/7/captures/shard-012") == ("/runs/7/captures", 12)
    assert [shard_of_actor(name) for name in ("owner-1-of-7", "owner-1-of-7-shard-12")] == [0, 12]
