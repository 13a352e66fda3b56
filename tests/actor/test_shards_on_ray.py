"""A run of several shards on a real Ray."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest

import gym_capture
from gym_capture.actor.launch import launch
from gym_capture.api import connect
from gym_capture.client.client import CaptureClient
from gym_capture.config import load_config
from gym_capture.errors import DirectoryHeld, OwnerNotFound, SettingsDiffer, ShardGiven
from gym_capture.model.shards import shard_of
from gym_capture.storage.owner_file import is_stopped
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_layout import create_or_adopt_shards
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.conformance import some_exchange
from gym_capture.testing.threaded_owner import ThreadedOwner
from tests.ray_cluster import DEADLINE_S, wait_until

pytestmark = pytest.mark.ray

SHARDS = 3
ROLLOUTS = [next(f"r{number}" for number in range(99) if shard_of(f"r{number}", SHARDS) == shard) for shard in range(3)]
"""One rollout of each shard."""


def test_a_run_of_three_shards_from_its_start_to_its_stop(
    ray_cluster: Any, capture_config: dict[str, Any], namespace: str
) -> None:
    capture_config["capture"]["shards"] = SHARDS
    directory = Path(capture_config["model_call_capture_dir"])
    capture = gym_capture.start(capture_config)
    names = sorted(
        entry["name"]
        for entry in ray_cluster.util.list_named_actors(all_namespaces=True)
        if entry["namespace"] == namespace
    )
    assert names == [names[0], f"{names[0]}-shard-1", f"{names[0]}-shard-2"]

    ways = {
        "started": capture,
        "by directory": connect(directory),
        "by the run's name": connect(name=names[0], namespace=namespace),
        "by a shard's name": connect(name=names[2], namespace=namespace),
        "as the only one, over Ray calls": connect(namespace=namespace, transport="ray"),
        "pickled": pickle.loads(pickle.dumps(capture)),
    }
    generations = capture.sync.clear(ROLLOUTS)
    for way, client in ways.items():
        for rollout_id in ROLLOUTS:
            client.sync.rollout(rollout_id, generations[rollout_id]).record(some_exchange(way))
        assert client.sync.quiesce(), way
    assert ways["as the only one, over Ray calls"].transport_name == "ray"
    stats = capture.sync.stats()
    assert stats["counts"]["commits"] == SHARDS * len(ways)
    assert [shard["directory"] for shard in stats["shards"]] == [str(directory / f"shard-00{n}") for n in range(SHARDS)]

    _an_actor_speaks_for_its_own_rollouts(ray_cluster, names, namespace)
    _a_claim_outlives_a_shards_process(ray_cluster, capture, names[1], namespace)
    with pytest.raises(SettingsDiffer, match=r"has 3 shards, and capture\.shards is 2"):
        gym_capture.start(capture_config, overrides=["capture.shards=2"])

    capture.sync.stop()
    with pytest.raises(OwnerNotFound):
        connect(directory)
    for client in ways.values():
        client.sync.close()
    store = CaptureStore(directory)
    assert [len(store.read(rollout_id)) for rollout_id in ROLLOUTS] == [len(ways) + (shard == 1) for shard in range(3)]
    assert store.verify().sound


def _an_actor_speaks_for_its_own_rollouts(ray: Any, names: list[str], namespace: str) -> None:
    first = ray.get_actor(names[0], namespace)
    assert ray.get(first.quiesce.remote(ROLLOUTS[0], 5.0))
    for asked in (first.quiesce.remote(None, 5.0), first.merge.remote(ROLLOUTS[1]), first.clear.remote([ROLLOUTS[2]])):
        with pytest.raises(ShardGiven, match="Nothing was done"):
            ray.get(asked)


def _a_claim_outlives_a_shards_process(ray: Any, capture: CaptureClient, name: str, namespace: str) -> None:
    async def scenario() -> None:
        actor = ray.get_actor(name, namespace)
        pid = ray.get(actor.ready.remote()).pid
        async with capture.rollout(ROLLOUTS[1]).claim(dialect="chat", model_call_id="over the crash") as call:
            os.kill(pid, signal.SIGKILL)
            assert not await capture.quiesce(timeout_s=0.2)
            assert await capture.quiesce(ROLLOUTS[0])
            await asyncio.to_thread(ray.get, actor.ready.remote(), timeout=DEADLINE_S)
            call.complete(request={}, response={})
        assert call.outcome == "durable"
        assert await capture.quiesce(timeout_s=DEADLINE_S)
        stats = await capture.stats()
        assert [shard["epoch"] for shard in stats["shards"]] == [1, 2, 1]

    asyncio.run(scenario())


def test_a_start_that_one_shard_keeps_from_serving_leaves_no_owner(
    ray_cluster: Any, capture_config: dict[str, Any], namespace: str, tmp_path: Path
) -> None:
    directory = tmp_path / "captures"
    directory.mkdir()
    create_or_adopt_shards(str(directory), 2)
    other = ThreadedOwner(directory / "shard-001")
    other.start()
    try:
        with pytest.raises(DirectoryHeld):
            launch(load_config(capture_config, ["capture.shards=2"]), timeout_s=DEADLINE_S)
    finally:
        other.close()
    files = PosixFiles(directory / "shard-000")
    wait_until(lambda: is_stopped(files.read("beat-00000001")), "shard 0's owner is stopped")
    wait_until(
        lambda: (
            not [
                entry
                for entry in ray_cluster.util.list_named_actors(all_namespaces=True)
                if entry["namespace"] == namespace
            ]
        ),
        "no actor is left",
    )
