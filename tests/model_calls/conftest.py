"""Owners without Ray: a service and its stream in a thread of the test's process, found by directory alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.model_calls.threaded_owner import ThreadedOwner


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Callable[[], ThreadedOwner]]:
    """Start an owner of `tmp_path`; those that are still there are stopped after the test."""
    owners: list[ThreadedOwner] = []

    def begin() -> ThreadedOwner:
        owners.append(ThreadedOwner(tmp_path))
        return owners[-1]

    yield begin
    for owner in owners:
        owner.stop()
