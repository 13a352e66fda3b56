"""A capture directory, and real processes around it: its owner, and a model server that streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_capture.storage.posix_files import PosixFiles, make_capture_directory
from gym_capture.storage.run_marker import create_or_adopt_run
from tests.crash.processes import Child


@pytest.fixture
def lease_s() -> float:
    """How long the owner lets a client be silent: not long, for whoever waits until it is given up."""
    return 1.5


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A capture directory with its run's marker."""
    path = tmp_path / "captures"
    make_capture_directory(path)
    create_or_adopt_run(PosixFiles(str(path)))
    return path


@pytest.fixture
def owner(directory: Path, lease_s: float) -> Iterator[Child]:
    """A real owner of it."""
    with Child("tests.crash.owner_process", str(directory), "owner", f"lease_s={lease_s}") as child:
        assert child.hear()["serving"]
        yield child


@pytest.fixture
def upstream() -> Iterator[Child]:
    """A real model server, `tests.crash.stream_server`; its first line is still to be heard."""
    with Child("tests.crash.stream_server") as child:
        yield child


@pytest.fixture
def upstream_url(upstream: Child) -> str:
    """Where it is."""
    return f"http://127.0.0.1:{upstream.hear()['port']}"
