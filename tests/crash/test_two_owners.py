"""Two real owner processes on one directory: the first one frozen at each step of a write, then let go again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gym_capture
from gym_capture.storage.names import segments_in
from gym_capture.storage.posix_files import PosixFiles, make_capture_directory
from gym_capture.storage.run_marker import create_or_adopt_run
from gym_capture.storage.store import CaptureStore
from tests.crash.processes import Child

OWNER = "tests.crash.owner_process"
ROLLOUT = "7-0"

FROZEN_AT = (
    "before append",
    "before sync",
    "after sync",
    "before owner-check",
    "after owner-check",
    "before beat",
    "after beat",
)


def exchange(call_id: str) -> dict[str, Any]:
    """A small exchange under this id."""
    return {
        "model_call_id": call_id,
        "dialect": "chat",
        "status_code": 200,
        "request": {"messages": [{"role": "user", "content": call_id}]},
        "response": {"id": f"r-{call_id}", "choices": []},
    }


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A capture directory with its run's marker."""
    path = tmp_path / "model-calls"
    make_capture_directory(path)
    create_or_adopt_run(PosixFiles(str(path)))
    return path


@pytest.fixture
def first(directory: Path) -> Iterator[Child]:
    """The owner that will be frozen."""
    with Child(OWNER, str(directory), "first") as owner:
        assert owner.hear()["epoch"] == 1
        yield owner


class Recording(threading.Thread):
    """`record` in a thread, since the owner it speaks to is frozen in the middle of it."""

    def __init__(self, capture: gym_capture.CaptureClient, call_id: str) -> None:
        super().__init__(daemon=True)
        self._capture = capture
        self._call_id = call_id
        self.call_index: int | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.call_index = self._capture.sync.record(ROLLOUT, exchange(self._call_id))
        except BaseException as error:  # noqa: BLE001 - told to the test, which asserts that there is none
            self.error = error

    def finish(self) -> int:
        """The call index that was acknowledged."""
        self.join(60)
        assert not self.is_alive(), "the write was never answered"
        assert self.error is None
        assert self.call_index is not None
        return self.call_index


def committed(directory: Path) -> list[str]:
    """The model_call_ids that a fresh reader finds, in order."""
    return [found["model_call_id"] for found in CaptureStore(directory).read(ROLLOUT)]


@pytest.mark.crash
@pytest.mark.parametrize("point", FROZEN_AT)
def test_what_a_frozen_owner_acknowledges_or_appends_after_a_takeover_is_never_wrong(
    directory: Path, first: Child, point: str
) -> None:
    capture = gym_capture.connect(capture_dir=directory)
    try:
        assert capture.sync.record(ROLLOUT, exchange("before")) == 0
        first.ask(f"stop-at {point} 1")
        pending = Recording(capture, "during")
        pending.start()
        assert first.hear() == {"stopped-at": point}
        first.wait_stopped()

        with Child(OWNER, str(directory), "second", "takeover") as second:
            assert second.hear()["epoch"] == 2
            other = gym_capture.connect(capture_dir=directory)
            try:
                other.sync.record(ROLLOUT, exchange("after"))
                first.signal(signal.SIGCONT)
                assert first.hear() == {"left": "superseded"}

                pending.finish()
                capture.sync.record(ROLLOUT, exchange("last"))
                assert capture.sync.quiesce(ROLLOUT, timeout_s=10.0)
                expected = sorted(["before", "during", "after", "last"])
                merged: dict[str, Any] = {"_ng_rollout_id": ROLLOUT}
                other.sync.merge(merged)
                calls = [call["model_call_id"] for call in merged["ng_model_call_capture"]["calls"]]
                assert sorted(calls) == expected
            finally:
                other.sync.close()
            assert second.ask("leave") == {"left": "asked"}
    finally:
        capture.sync.close()

    order = committed(directory)
    assert sorted(order) == expected
    assert order[0] == "before"
    for restart in range(2):
        with Child(OWNER, str(directory), f"restart-{restart}") as owner:
            assert owner.hear()["epoch"] == 3 + restart
            owner.ask("leave")
        assert committed(directory) == order


@pytest.mark.crash
def test_bytes_that_a_frozen_owner_appends_after_the_takeover_stay_in_its_file_and_are_never_read(
    directory: Path, first: Child
) -> None:
    capture = gym_capture.connect(capture_dir=directory)
    try:
        capture.sync.record(ROLLOUT, exchange("before"))
        first.ask("stop-at before append 1")
        pending = Recording(capture, "during")
        pending.start()
        first.hear()
        first.wait_stopped()
        segment = directory / segments_in([path.name for path in directory.iterdir()])[0].file
        length = segment.stat().st_size
        with Child(OWNER, str(directory), "second", "takeover") as second:
            second.hear()
            first.signal(signal.SIGCONT)
            assert first.hear() == {"left": "superseded"}
            assert segment.stat().st_size > length, "the frozen owner did append: that is what the cut is for"
            assert b"during" in segment.read_bytes()
            pending.finish()
            assert committed(directory) == ["before", "during"]
            second.ask("leave")
    finally:
        capture.sync.close()
    assert committed(directory) == ["before", "during"]


@pytest.mark.crash
def test_a_second_live_owner_is_refused_and_the_first_goes_on(directory: Path, first: Child) -> None:
    capture = gym_capture.connect(capture_dir=directory)
    try:
        with Child(OWNER, str(directory), "second") as second:
            answer = second.hear()
        assert answer["refused"] == "DirectoryHeld"
        assert "first" in answer["message"]
        assert "takeover=True" in answer["message"]
        assert capture.sync.record(ROLLOUT, exchange("still")) == 0
    finally:
        capture.sync.close()
    assert first.ask("leave") == {"left": "asked"}
