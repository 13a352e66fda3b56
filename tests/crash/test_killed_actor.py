"""The owner's actor is killed again and again under load: nothing acknowledged is lost or doubled, nobody notices."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import gym_capture
from tests.crash.load import Load, Prober, check_promises
from tests.ray_cluster import wait_until

KILLS = 20
WORKERS = 3
TASKS = 50
SEED = 20_261


@pytest.mark.ray
@pytest.mark.crash
@pytest.mark.timeout(300)
def test_twenty_kills_of_the_actor_lose_nothing_double_nothing_and_are_seen_by_no_caller(
    capture_config: dict[str, Any], ray_cluster: Any, tmp_path: Path
) -> None:
    capture = gym_capture.start(capture_config)
    directory = Path(capture_config["model_call_capture_dir"])
    load = Load(directory, tmp_path / "registers", workers=WORKERS, tasks=TASKS, seed=SEED)
    prober = Prober(capture, load.paths, SEED)
    rng = random.Random(SEED)
    kills: list[float] = []
    try:
        prober.start()
        actor = _actor(ray_cluster, capture_config)
        pid = 0
        for _ in range(KILLS):
            asked = prober.asked
            ready = wait_until(lambda pid=pid: _ready_elsewhere(ray_cluster, actor, pid), "a new owner")  # type: ignore[misc]
            pid = ready.pid
            some = load.acknowledged() + rng.randrange(1, 400)
            wait_until(lambda some=some: load.acknowledged() >= some, "writes go on")  # type: ignore[misc]
            wait_until(lambda asked=asked: prober.asked > asked, "quiescence is asked for")  # type: ignore[misc]
            threading.Event().wait(rng.random() * 0.05)
            kills.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)
        made = load.finish()
        assert capture.sync.quiesce(None, timeout_s=30.0)
    finally:
        prober.finish()
        load.end()
        capture.sync.stop()
    told = load.told()
    for kill in kills:
        assert told.in_flight(kill) >= 100
    assert len(told.durable()) == made
    assert check_promises(directory, told, prober.yes) == made
    assert prober.asked >= KILLS


def _actor(ray: Any, config: dict[str, Any]) -> Any:
    namespace = config["capture"]["namespace"]
    (entry,) = [found for found in ray.util.list_named_actors(all_namespaces=True) if found["namespace"] == namespace]
    return ray.get_actor(entry["name"], namespace)


def _ready_elsewhere(ray: Any, actor: Any, pid: int) -> Any:
    """The actor's word that it serves, from another process than `pid`."""
    try:
        ready = ray.get(actor.ready.remote(), timeout=30)
    except ray.exceptions.RayError:
        return None
    return ready if ready.pid != pid and ready.error is None else None
