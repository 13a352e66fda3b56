"""Starting the owner of a run whose directory somebody else may hold; Ray itself is not needed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gym_capture import api
from gym_capture.collect import ray_run
from gym_capture.config import CaptureConfig, RayConfig
from gym_capture.errors import DirectoryHeld, GymCaptureError, OwnerUnavailable
from gym_capture.storage.posix_files import PosixFiles
from tests.storage.owners import Owner


class Time:
    """Moves by five seconds at each start that fails."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


Starts = Callable[[list[GymCaptureError | str]], None]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    """What each `start` comes to; the last one again and again."""
    time = Time()
    monkeypatch.setattr(ray_run, "time", time)

    def install(outcomes: list[GymCaptureError | str]) -> None:
        def start(config: CaptureConfig) -> Any:
            time.now += 5.0
            outcome = outcomes.pop(0) if len(outcomes) > 1 else outcomes[0]
            if isinstance(outcome, GymCaptureError):
                raise outcome
            return outcome

        monkeypatch.setattr(api, "start", start)

    return install


@pytest.fixture
def held(tmp_path: Path) -> CaptureConfig:
    """A directory with an owner's file."""
    Owner(PosixFiles(tmp_path))
    return CaptureConfig(model_call_capture_dir=tmp_path)


HELD = DirectoryHeld("owned by actor x … or start with takeover=True to fence it.")


def test_a_held_directory_is_waited_for_with_one_short_line(
    starts: Starts, held: CaptureConfig, caplog: pytest.LogCaptureFixture
) -> None:
    starts([HELD, HELD, HELD, "client"])
    with caplog.at_level(logging.INFO):
        assert ray_run._start(held) == "client"  # type: ignore[comparison-overlap]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        f"{held.directory} is held by a live owner ({ray_run._who(held.directory)}); waiting up to 30 s in case its "
        "run was killed"
    )
    assert "pid " in line


@pytest.mark.parametrize(("address", "lines"), [("local", 1), ("auto", 0)])
def test_an_owner_that_lives_on_is_an_error_that_offers_what_there_is(
    starts: Starts, held: CaptureConfig, caplog: pytest.LogCaptureFixture, address: str, lines: int
) -> None:
    starts([HELD])
    with caplog.at_level(logging.INFO), pytest.raises(DirectoryHeld) as refused:
        ray_run._start(held.model_copy(update={"ray": RayConfig(address=address)}))
    assert f"`gym-capture stop {held.directory}`" in str(refused.value)
    assert "is held by a live owner (pid " in str(refused.value)
    assert "takeover" not in str(refused.value)
    assert len(caplog.records) == lines


def test_an_actor_that_is_frozen_is_told_of_without_a_python_argument(starts: Starts, held: CaptureConfig) -> None:
    starts([OwnerUnavailable("start with takeover=True", frozen=True)])
    with pytest.raises(OwnerUnavailable, match="does not answer") as refused:
        ray_run._start(held)
    assert "takeover" not in str(refused.value)
    starts([OwnerUnavailable("as it is")])
    with pytest.raises(OwnerUnavailable, match="as it is"):
        ray_run._start(held)
