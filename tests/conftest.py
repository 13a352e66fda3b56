"""Fixtures that every folder of tests may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import cases
from tests.ray_cluster import capture_config, namespace, ray_cluster

__all__ = ["capture_config", "cases_dir", "namespace", "ray_cluster"]


@pytest.fixture(scope="session")
def cases_dir() -> Path:
    """The folder of cases with right answers; see `tests.cases` for when its absence skips and when it fails."""
    return cases.cases_dir()
