"""Reading and serving a capture loads no Ray: each of these imports happens in a fresh process, which is then asked."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

REPORT = """
import importlib, sys
importlib.import_module({name!r})
print(*sorted(loaded for loaded in sys.modules if loaded.partition(".")[0] == "ray"))
"""


def ray_modules_after_importing(name: str) -> list[str]:
    ran = subprocess.run([sys.executable, "-c", REPORT.format(name=name)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


@pytest.mark.parametrize(
    "name",
    ["gym_capture", "gym_capture.model", "gym_capture.storage", "gym_capture.service", "gym_capture.client"],
)
def test_importing_loads_no_ray(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not written yet")
    assert ray_modules_after_importing(name) == []


def test_the_report_would_name_a_loaded_ray() -> None:
    assert "ray" in ray_modules_after_importing("ray")
