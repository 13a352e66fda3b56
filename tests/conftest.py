"""Fixtures that every folder of tests may use."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests import cases, sharing
from tests.ray_cluster import capture_config, namespace, ray_cluster

__all__ = ["capture_config", "cases_dir", "namespace", "ray_cluster"]


def pytest_configure() -> None:
    """Let tables be as wide as their own rules say: processes that share tests are told a terminal's width."""
    os.environ.pop("COLUMNS", None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays until the end: the garbage collector looks for nothing in it, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        # hypothesis, when it is imported, asks the collector who refers to what; of what is frozen it would not hear.
        import hypothesis  # noqa: F401

        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where processes share the tests, put them in the order in which they are handed out."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: sharing.place_of(sharing.file_of(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Share by file, unless the command line says how."""
    from tests.share_scheduler import ByFile

    return ByFile(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture(scope="session")
def cases_dir() -> Path:
    """The folder of cases with right answers; see `tests.cases` for when its absence skips and when it fails."""
    return cases.cases_dir()
