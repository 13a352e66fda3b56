"""Reading and serving a capture loads no Ray: a fresh process imports, and says what it loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORT = """
import importlib, pkgutil, sys
package = importlib.import_module({name!r})
if {whole}:
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print(*sorted(loaded for loaded in sys.modules if loaded.partition(".")[0] == "ray"))
"""


def ray_modules_after_importing(name: str, *, whole: bool = False) -> list[str]:
    """What of Ray is loaded once the package is imported, with every module in it where `whole`."""
    code = REPORT.format(name=name, whole=whole)
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_importing_the_package_loads_no_ray() -> None:
    assert ray_modules_after_importing("gym_capture") == []


@pytest.mark.parametrize("name", ["model", "storage", "service", "client", "reading", "viewer"])
def test_no_module_of_it_loads_ray(name: str) -> None:
    package = f"gym_capture.{name}"
    assert ray_modules_after_importing(package, whole=True) == []


def test_the_report_would_name_a_loaded_ray() -> None:
    assert "ray" in ray_modules_after_importing("ray")
