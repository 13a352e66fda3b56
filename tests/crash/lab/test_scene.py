"""A run of several shards as a fault sees it: one of them is struck, the same one for the same plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_capture.model.shards import shard_of
from gym_capture.testing.threaded_shards import ThreadedShards
from tests.crash.lab.plan import plan_of
from tests.crash.lab.scene import Scene

pytestmark = pytest.mark.crash

NO_CLUSTER: Any = None


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(plan_of(3, "kill owner", shards=4, history=False), NO_CLUSTER, tmp_path)
    yield made
    made.journal.end()


def test_the_run_is_started_in_the_plans_configuration(scene: Scene) -> None:
    capture = scene.config()["capture"]
    assert (capture["shards"], capture["history"]) == (4, False)


def test_the_plan_says_which_shard_is_struck(tmp_path: Path) -> None:
    struck = []
    for seed in range(40):
        folder = tmp_path / str(seed)
        folder.mkdir()
        made = Scene(plan_of(seed // 2, "kill owner", shards=4), NO_CLUSTER, folder)
        made.journal.end()
        struck.append(made.shard)
        assert made.owner == f"owner of shard {made.shard}"
    assert struck[::2] == struck[1::2]
    assert set(struck) == {0, 1, 2, 3}


def test_the_owner_is_that_of_the_shard(scene: Scene) -> None:
    owners = ThreadedShards(scene.directory, 4)
    owners.start()
    try:
        assert (scene.owner_pid(), scene.epoch()) == (0, 1)
        listening = owners.owners[scene.shard].service.endpoint
        assert scene.where_the_owner_listens() == (listening.host, listening.port)
        before = scene.epochs_on("")
        assert before == dict.fromkeys(range(4), 1)
        for shard in range(4):
            assert not scene.all_after(before)
            owners.owners[shard].kill()
            owners.owners[shard].start()
            assert scene.epoch() == (2 if shard >= scene.shard else 1)
        assert scene.all_after(before)
    finally:
        owners.close()


def test_a_fault_is_over_once_its_shard_is_written_to(scene: Scene) -> None:
    rollouts = [next(f"r{n}" for n in range(99) if shard_of(f"r{n}", 4) == shard) for shard in range(4)]
    for number, rollout in enumerate(rollouts):
        call = f"c{number}"
        scene.journal.note("asked", rollout, 1, call, "digest")
        scene.journal.note("claimed", call, 1)
        if number == scene.shard:
            assert scene.acknowledged_after(0.0) is None
        scene.journal.note("told", call, "durable", 1)
    told = {call.rollout: call.told_at for call in scene.history().calls.values()}
    assert scene.acknowledged_after(0.0) == told[rollouts[scene.shard]]
