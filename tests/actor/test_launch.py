"""Starting owners on a real Ray: get-or-create, names, settings, ends and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym_capture.actor.launch import launch
from gym_capture.config import load_config
from gym_capture.errors import DirectoryHeld, NameTaken, SettingsDiffer
from tests.ray_cluster import wait_until

pytestmark = pytest.mark.ray


def test_a_second_start_finds_the_first_owner(ray_cluster: Any, capture_config: dict[str, Any]) -> None:
    first = launch(load_config(capture_config))
    second = launch(load_config(capture_config))
    assert (first.created, second.created) == (True, False)
    assert first.ready.pid == second.ready.pid
    assert first.ready.epoch == 1
    stats = ray_cluster.get(second.handle.stats.remote())
    assert (stats["run"], stats["directory"]) == (first.spec.run, first.spec.directory)
    directory = Path(first.spec.directory)
    assert directory.stat().st_mode & 0o777 == 0o700
