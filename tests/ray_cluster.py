"""One embedded Ray for all tests of a session, and owners that leave nothing behind.

The cluster starts with the first test that asks for it and ends with the session. Every test gets directories and
actor names of its own; owners that it started and did not stop are killed after it.
"""

from __future__ import annotations

import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
"""The checkout: where child processes run, so that they import what is tested."""

DEADLINE_S = 60.0


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """The `ray` module, connected to an embedded cluster with 4 CPUs."""
    import ray

    # Serve kills its own proxy after 5 s, and a worker's process takes longer to start where tests share the cores.
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
    # Ray starts workers at niceness 15: beside tests at 0, importing Serve alone took one of them 61 s.
    os.environ.setdefault("RAY_worker_niceness", "0")
    with warnings.catch_warnings():
        # Ray's own start-up may warn of its future defaults; that says nothing about this project.
        warnings.simplefilter("ignore")
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, address="local")
    yield ray
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.shutdown()


@contextmanager
def own_namespace(ray: Any) -> Iterator[str]:
    """A Ray namespace that nobody else has; whatever actor is left in it afterwards is killed."""
    own = f"test-{uuid.uuid4().hex[:12]}"
    try:
        yield own
    finally:
        for entry in ray.util.list_named_actors(all_namespaces=True):
            if entry["namespace"] == own:
                kill_by_name(ray, entry["name"], own)


@pytest.fixture
def namespace(ray_cluster: Any) -> Iterator[str]:
    """A Ray namespace of this test's own, as `own_namespace`."""
    with own_namespace(ray_cluster) as own:
        yield own


@pytest.fixture
def capture_config(tmp_path: Path, namespace: str) -> dict[str, Any]:
    """A configuration with a fresh directory (not made yet), a fresh namespace and quick leases."""
    return {
        "model_call_capture_dir": str(tmp_path / "captures"),
        "capture": {"namespace": namespace, "endpoint": {"host": "127.0.0.1"}},
    }


def kill_by_name(ray: Any, name: str, namespace: str) -> None:
    """Kill an actor for good, if it is there."""
    try:
        handle = ray.get_actor(name, namespace)
    except ValueError:
        return
    ray.kill(handle, no_restart=True)


def wait_until(condition: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S) -> T:
    """What `condition` returns once it is true, asked again and again until the deadline.

    For conditions in other processes, which no event of this one can tell.
    """
    end = time.monotonic() + deadline_s
    pause = _Pause()
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        pause()


class _Pause:
    """Yields the processor between two looks, ever longer, at most 50 ms."""

    def __init__(self) -> None:
        import threading

        self._never = threading.Event()
        self._length_s = 0.001

    def __call__(self) -> None:
        self._never.wait(self._length_s)
        self._length_s = min(self._length_s * 2, 0.05)
