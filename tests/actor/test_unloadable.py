"""An owner's actor whose class cannot be loaded where Ray puts it."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gym_capture.actor import launch as launch_module
from gym_capture.actor.launch import launch
from gym_capture.config import load_config
from gym_capture.errors import ConfigError

pytestmark = pytest.mark.ray


def test_a_start_where_the_package_cannot_be_imported_ends_at_once_and_names_the_cause(
    ray_cluster: Any,
    capture_config: dict[str, Any],
    tmp_path: Path,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A module that this process alone can import, as gym_capture is where the workers do not have it.
    (tmp_path / "only_in_the_driver.py").write_text(
        "class Owner:\n    def __init__(self, spec):\n        pass\n\n    async def ready(self):\n        pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    owner = importlib.import_module("only_in_the_driver").Owner
    monkeypatch.setattr(launch_module, "actor_class", lambda max_concurrency: ray_cluster.remote(owner))
    begun = time.monotonic()
    try:
        with pytest.raises(ConfigError, match="No module named 'only_in_the_driver'") as refused:
            launch(load_config(capture_config), timeout_s=110.0)
    finally:
        sys.modules.pop("only_in_the_driver")
    assert time.monotonic() - begun < 55.0
    said = str(refused.value)
    assert refused.value.cause.startswith("ModuleNotFoundError: ")
    assert "must be able to import gym_capture" in said
    assert "install it in their environment, or bring it by ray.runtime_env" in said
    named = ray_cluster.util.list_named_actors(all_namespaces=True)
    assert [entry for entry in named if entry["namespace"] == namespace] == []
