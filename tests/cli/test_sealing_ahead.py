"""`gym-capture seal --ahead` and the process that does it beside a run: when it seals, when it ends, what it leaves."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_capture.directory import pruning
from gym_capture.directory.sealing import seal_at_rest
from gym_capture.directory.sealing_ahead import SealingProcess, seal_ahead
from gym_capture.errors import MissingRunMarker
from gym_capture.model.client_settings import ClientSettings
from gym_capture.model.shards import shard_of
from gym_capture.storage import names
from gym_capture.storage.owner_file import BEAT_S, WATCHED_BEATS
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_layout import create_or_adopt_shards
from gym_capture.storage.sealed.reader import SealedReader
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.manual_clock import ManualClock
from tests.cli.commands import environment, gym_capture, started
from tests.storage.owners import Batch, Owner, exchange, identity

PATIENCE_S = 60.0


def owned(directory: Path, *rollouts: str) -> Owner:
    directory.mkdir(mode=0o700, exist_ok=True)
    owner = Owner(PosixFiles(directory))
    batch = Batch()
    for rollout in rollouts:
        batch.commit(rollout, exchange(f"{rollout}-0"))
    owner.send(batch, 1)
    for rollout in rollouts:
        owner.merge(rollout)
    return owner


def ahead(directory: Path) -> list[str]:
    return SealedReader(PosixFiles(directory).folder(names.SEALED_AHEAD)).rollout_ids()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Script(threading.Event):
    """A stop that acts instead of waiting: one act between two looks, then it is set."""

    def __init__(self, *acts: Callable[[], Any]) -> None:
        super().__init__()
        self._acts = list(acts)

    def wait(self, timeout: float | None = None) -> bool:
        if self._acts:
            self._acts.pop(0)()
        else:
            self.set()
        return self.is_set()


def test_it_looks_again_and_again_and_ends_with_its_owner(tmp_path: Path) -> None:
    owner = owned(tmp_path / "run", "a")
    seen: list[list[str]] = []

    def another() -> None:
        seen.append(ahead(tmp_path / "run"))
        owner.send(Batch().commit("b", exchange("b-0")), 2)
        owner.merge("b")

    report = seal_ahead(tmp_path / "run", Script(another, owner.stop, lambda: pytest.fail("it is over")), least_bytes=1)
    assert (seen, ahead(tmp_path / "run")) == ([["a"]], ["a", "b"])
    assert (report.parts, report.calls) == (2, 2)


class Watched(threading.Event):
    """A stop whose waiting lets time pass on a clock; what is to happen meanwhile does at its time."""

    def __init__(self, clock: ManualClock, acts: dict[float, Callable[[], Any]]) -> None:
        super().__init__()
        self._clock = clock
        self._acts = acts
        self.waited = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._clock.advance(timeout)
        self.waited += timeout
        self._acts.get(self.waited, lambda: None)()
        assert self.waited < 1000, "it does not end"
        return self.is_set()


def test_it_waits_for_an_owner_that_crashed_as_long_as_calls_do_and_then_ends(tmp_path: Path) -> None:
    owned(tmp_path / "run", "a")
    clock = ManualClock()
    stop = Watched(clock, {})
    report = seal_ahead(tmp_path / "run", stop, poll_s=10.0, least_bytes=1, clock=clock)
    assert (report.calls, stop.waited) == (1, ClientSettings().patience_s)


def test_an_owner_is_watched_for_some_beats_where_calls_wait_for_none(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    files = PosixFiles(tmp_path / "run")
    create_or_adopt_shards(files.directory, 1)
    Ownership.take(files, identity(), client=ClientSettings(patience_s=0.0))
    clock = ManualClock()
    stop = Watched(clock, {})
    seal_ahead(tmp_path / "run", stop, poll_s=1.0, clock=clock)
    assert stop.waited == WATCHED_BEATS * BEAT_S


def test_it_goes_on_while_a_beat_moves_and_with_an_owner_that_comes_back(tmp_path: Path) -> None:
    owner = owned(tmp_path / "run", "a")
    clock = ManualClock()

    def another() -> None:
        following = Owner(PosixFiles(tmp_path / "run"), "actor-2", takeover=True)
        following.send(Batch().commit("b", exchange("b-0")), 2)
        following.merge("b")

    acts = {100.0: owner.ownership.beat, 200.0: owner.ownership.beat, 310.0: another}
    stop = Watched(clock, acts)
    report = seal_ahead(tmp_path / "run", stop, poll_s=10.0, least_bytes=1, clock=clock)
    assert (report.calls, ahead(tmp_path / "run")) == (2, ["a", "b"])
    assert stop.waited == 310.0 + ClientSettings().patience_s


def test_it_ends_when_the_run_is_sealed_and_when_it_is_told_to(tmp_path: Path) -> None:
    owner = owned(tmp_path / "run", "a")
    assert seal_ahead(tmp_path / "run", Script(), least_bytes=1).calls == 1

    def sealed() -> None:
        owner.stop()
        assert seal_at_rest(tmp_path / "run")[""].calls_ahead == 1

    assert seal_ahead(tmp_path / "run", Script(sealed), least_bytes=1).calls == 0


def test_each_shard_has_its_own(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    create_or_adopt_shards(str(directory), 2)
    ids = [f"r-{number}" for number in range(6)]
    shards = [directory / names.shard_folder(shard) for shard in range(2)]
    of_shard = [[each for each in ids if shard_of(each, 2) == shard] for shard in range(2)]
    owners = [owned(path, *rollouts) for path, rollouts in zip(shards, of_shard, strict=True)]
    assert seal_ahead(directory, Script(), least_bytes=1).calls == 6
    assert [ahead(path) for path in shards] == of_shard
    for owner in owners:
        owner.stop()
    assert [report.calls_ahead for report in seal_at_rest(directory).values()] == [len(each) for each in of_shard]
    assert CaptureStore(directory).rollout_ids() == ids


def test_a_run_that_was_sealed_ahead_is_pruned_whole(tmp_path: Path) -> None:
    owner = owned(tmp_path / "run", "a")
    seal_ahead(tmp_path / "run", Script(), least_bytes=1)
    owner.stop()
    found = pruning.choose(tmp_path / "run", keep_bytes=0)
    assert [each.directory for each in found.chosen] == [str(tmp_path / "run")]
    pruning.prune(found)
    assert not (tmp_path / "run").exists()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingRunMarker):
        seal_ahead(tmp_path, Script())
    for words in (["--to", "file:///x"], ["--as-it-is"]):
        refused = gym_capture("seal", str(tmp_path), "--ahead", *words, cwd=tmp_path)
        assert (refused.returncode, "are for when it is over" in refused.stderr) == (2, True)


def test_the_command_goes_on_until_it_is_stopped(tmp_path: Path) -> None:
    owned(tmp_path / "run", "a")
    running = started("seal", str(tmp_path / "run"), "--ahead", "--json", cwd=tmp_path)
    until(lambda: "Ctrl-C ends it" in (tmp_path / "stderr.log").read_text())
    assert os.getpriority(os.PRIO_PROCESS, running.pid) == 19
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=PATIENCE_S)
    told = json.loads(out)
    assert (running.returncode, told["dataset"], told["parts"], told["calls"]) == (0, "sealed-ahead", 0, 0)


def test_the_process_beside_a_run_seals_and_ends_with_it(tmp_path: Path) -> None:
    owner = owned(tmp_path / "run", "a")
    with SealingProcess(tmp_path / "run", least_bytes=1):
        until(lambda: (tmp_path / "run" / names.SEALED_AHEAD / "manifest.json").exists())
        (process,) = multiprocessing.active_children()
        pid = process.pid or 0
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    assert not Path(f"/proc/{pid}").exists()
    owner.stop()
    assert seal_at_rest(tmp_path / "run")[""].calls_ahead == 1


def test_the_process_beside_a_run_does_not_outlive_the_one_that_began_it(tmp_path: Path) -> None:
    owned(tmp_path / "run", "a")
    code = (
        "import multiprocessing, sys, time\n"
        "from gym_capture.directory.sealing_ahead import SealingProcess\n"
        "if __name__ == '__main__':\n"
        "    with SealingProcess(sys.argv[1], least_bytes=1):\n"
        "        print(multiprocessing.active_children()[0].pid, flush=True)\n"
        "        time.sleep(100)\n"
    )
    (tmp_path / "parent.py").write_text(code)
    command = [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "run")]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until(lambda: (tmp_path / "run" / names.SEALED_AHEAD / "manifest.json").exists())
        parent.kill()
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_what_goes_wrong_beside_a_run_is_said_and_the_run_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    owner = owned(tmp_path / "run", "a")
    seal_ahead(tmp_path / "run", Script(), least_bytes=1)
    (tmp_path / "run" / names.SEALED_AHEAD / "manifest.json").write_text("{")
    with SealingProcess(tmp_path / "run", least_bytes=1):
        until(lambda: not multiprocessing.active_children())
    assert "remove sealed-ahead there" in capfd.readouterr().err
    owner.stop()
    assert seal_at_rest(tmp_path / "run")[""].calls == 1


def test_what_was_sealed_ahead_is_asked_and_imported_by_itself(tmp_path: Path) -> None:
    owned(tmp_path / "run", "a", "b")
    seal_ahead(tmp_path / "run", Script(), least_bytes=1)
    dataset = str(tmp_path / "run" / names.SEALED_AHEAD)
    asked = gym_capture("sql", "select count(*) as n from calls", dataset, "--json", cwd=tmp_path)
    assert json.loads(asked.stdout)["rows"] == [[2]], asked.stderr
    assert gym_capture("import", dataset, str(tmp_path / "new"), cwd=tmp_path).returncode == 0
    assert CaptureStore(tmp_path / "new").read("b") == CaptureStore(tmp_path / "run").read("b")
