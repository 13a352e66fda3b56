"""How several processes share the tests (`pytest -n`): a file is one's, and so are all that use the session's Ray.

Files that start clusters and kill processes come first, for they take long: the many short ones fill up the end.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

CLUSTER = "tests on the session's Ray"
"""One share, so that one process starts that cluster. A file left out by mistake costs another cluster and no more."""

_ON_THE_CLUSTER = re.compile(r"\b(ray_cluster: |capture_config: |namespace: str\b)")
"""A test, or a fixture of its file, that takes one of the fixtures of `tests.ray_cluster`."""

_LONG = re.compile(r"pytest\.mark\.(ray|crash)\b")


@cache
def share_of(file: str) -> str:
    """The share that a file of tests belongs to: its own, or the cluster's.

    Args:
        file: relative to the checkout.
    """
    return CLUSTER if _ON_THE_CLUSTER.search((ROOT / file).read_text(encoding="utf-8")) else file


@cache
def place_of(file: str) -> int:
    """Where its share stands: the cluster's first, then what takes long, then the rest."""
    if share_of(file) == CLUSTER:
        return 0
    return 1 if _LONG.search((ROOT / file).read_text(encoding="utf-8")) else 2


def file_of(node_id: str) -> str:
    """The file of a test."""
    return node_id.partition("::")[0]
