"""The configurations that come with the project."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gym_capture.collect.rollout_function import load_rollout_function
from gym_capture.collect.rows import InputSpec, scan_rows
from gym_capture.config import CaptureConfig, all_keys, load_config
from tests.cases import ROOT

CONFIGS = ROOT / "configs"


@pytest.mark.parametrize("name", ["local.yaml", "cluster.yaml"])
def test_each_loads_and_names_what_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = load_config(CONFIGS / name)
    assert config.directory.is_absolute()
    assert config.collect.input
    assert config.collect.output
    assert callable(load_rollout_function(str(config.collect.rollout)))


def test_local_runs_as_it_is_from_a_fresh_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = load_config(CONFIGS / "local.yaml")
    assert config.ray.address == "local"
    assert len(scan_rows(InputSpec(Path(str(config.collect.input))))) == 24
    # One CPU carries all workers.
    assert config.collect.workers * config.collect.worker_num_cpus <= 1


def test_cluster_shows_every_key_with_a_comment() -> None:
    text = (CONFIGS / "cluster.yaml").read_text(encoding="utf-8")
    assert set(_keys(yaml.safe_load(text))) == set(all_keys())
    lines = text.splitlines()
    # A comment stands above each key, or above the first of a few that belong together.
    for index, line in enumerate(lines):
        if line.strip() and not line.strip().startswith("#") and not line.rstrip().endswith(":"):
            above = lines[max(index - 3, 0) : index]
            assert any(each.strip().startswith("#") for each in above), f"line {index + 1} has no comment: {line}"


def test_cluster_shows_the_defaults_unless_it_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shown, default = load_config(CONFIGS / "cluster.yaml").model_dump(), CaptureConfig().model_dump()
    differing = {
        f"{name}.{key}"
        for name in ("capture", "ray", "collect", "proxy", "seal")
        for key in shown[name]
        if shown[name][key] != default[name][key]
    }
    assert differing == {
        "ray.address",
        "collect.input",
        "collect.output",
        "collect.rollout",
        "collect.workers",
        "collect.concurrency",
    }


def _keys(section: dict[str, object], prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, value in section.items():
        if isinstance(value, dict) and value:
            found += _keys(value, f"{prefix}{name}.")
        else:
            found.append(f"{prefix}{name}")
    return found
