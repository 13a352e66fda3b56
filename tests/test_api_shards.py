"""A run of several shards as everybody meets it: found by its directory, over real streams, without Ray."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_capture.api import connect
from gym_capture.cli.owner import status_of_owner, stop_owner
from gym_capture.directory.locate import Liveness, liveness, owner_of
from gym_capture.errors import OwnerNotFound, ShardGiven
from gym_capture.model.shards import shard_of
from gym_capture.model_calls import (
    await_model_call_capture_quiescence,
    clear_model_call_captures_for_rollouts,
    merge_model_call_capture_into_record,
)
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.conformance import some_exchange
from gym_capture.testing.threaded_shards import ThreadedShards
from tests.ray_cluster import ROOT

SHARDS = 3
ROLLOUTS = [next(f"r{number}" for number in range(99) if shard_of(f"r{number}", SHARDS) == shard) for shard in range(3)]
"""One rollout of each shard."""


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[ThreadedShards]:
    made = ThreadedShards(tmp_path / "run", SHARDS)
    made.start()
    yield made
    made.close()


def test_a_run_is_found_by_its_directory_and_its_client_pickles(owners: ThreadedShards) -> None:
    owner = owner_of(owners.directory)
    assert owner is not None
    with connect(owners.directory).sync as capture, pickle.loads(pickle.dumps(connect(owners.directory))).sync as other:
        generations = capture.clear(ROLLOUTS)
        for rollout_id in ROLLOUTS:
            assert capture.rollout(rollout_id, generations[rollout_id]).record(some_exchange("a")) == 0
            assert other.record(rollout_id, some_exchange("b")) == 1
        assert other.quiesce()
        # Both share one link to each owner.
        assert [len(each.service.connections.sessions) for each in owners.owners] == [1, 1, 1]
        merged = other.merge({"_ng_rollout_id": ROLLOUTS[1]}, include_payloads=True)["ng_model_call_capture"]
        assert [call["model_call_id"] for call in merged["calls"]] == ["a", "b"]
        assert merged["calls"][0]["response"]["id"] == "a"
    with pytest.raises(ShardGiven):
        connect(owners.directory / "shard-001")


def test_the_commands_speak_of_the_run_and_list_its_shards(owners: ThreadedShards) -> None:
    with connect(owners.directory).sync as capture:
        for rollout_id in ROLLOUTS:
            capture.record(rollout_id, some_exchange("a"))
    live = status_of_owner(owners.directory, None, "gym_capture", "auto")
    assert (live["owner"], live["rollouts"], live["transport"]) == ("live", 3, "stream")
    assert [(shard["shard"], shard["rollouts"]) for shard in live["shards"]] == [(0, 1), (1, 1), (2, 1)]
    assert stop_owner(owners.directory, None, "gym_capture", "auto") == {"stopped": True}
    assert {owner.service.state.value for owner in owners.owners} == {"stopped"}
    assert liveness(owners.directory) is Liveness.AT_REST
    assert stop_owner(owners.directory, None, "gym_capture", "auto") == {"stopped": False}
    rest = status_of_owner(owners.directory, None, "gym_capture", "auto")
    assert (rest["owner"], rest["rollouts"]) == ("none", 3)
    assert rest["shards"] == [{"shard": n, "last_owner": {"epoch": 1, "ended": "stopped"}} for n in range(SHARDS)]
    with pytest.raises(OwnerNotFound):
        connect(owners.directory)


async def test_nemo_gyms_functions_work_live_and_at_rest(owners: ThreadedShards) -> None:
    directories = [owners.directory]
    records = [{"_ng_rollout_id": rollout_id} for rollout_id in ROLLOUTS]
    capture = connect(owners.directory)
    for rollout_id in ROLLOUTS:
        await capture.record(rollout_id, some_exchange("a"))
        assert await await_model_call_capture_quiescence(rollout_id, directories)
    for record in records:
        found = merge_model_call_capture_into_record(dict(record), directories)["ng_model_call_capture"]
        assert len(found["calls"]) == 1
    clear_model_call_captures_for_rollouts(records[:1], directories)
    await capture.stop()
    await capture.close()
    clear_model_call_captures_for_rollouts(records[1:2], directories)
    assert CaptureStore(owners.directory).rollout_ids() == [ROLLOUTS[2]]
    assert await await_model_call_capture_quiescence(ROLLOUTS[2], directories)


_FORKING = """
import os, sys
from gym_capture.api import connect
from gym_capture.testing.conformance import some_exchange
directory, *rollouts = sys.argv[1:]
capture = connect(directory)
for rollout in rollouts:
    capture.sync.record(rollout, some_exchange("parent"))
held = capture.sync.rollout(rollouts[0]).claim(dialect="chat", model_call_id="parent's claim")
held.__enter__()
child = os.fork()
if not child:
    held.complete(request={}, response={})
    held.__exit__(None, None, None)
    assert held.outcome == "released", held.outcome
    for rollout in rollouts:
        capture.sync.record(rollout, some_exchange("child"))
    assert capture.sync.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
held.complete(request={}, response={})
held.__exit__(None, None, None)
assert held.outcome == "durable", held.outcome
for rollout in rollouts:
    capture.sync.record(rollout, some_exchange("parent again"))
assert capture.sync.quiesce()
# It ends without close: what is on its way arrives all the same.
"""


def test_a_forked_child_is_a_new_client_of_every_shard(owners: ThreadedShards) -> None:
    command = [sys.executable, "-c", _FORKING, str(owners.directory), *ROLLOUTS]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    store = CaptureStore(owners.directory)
    for rollout_id in ROLLOUTS:
        found = [exchange["model_call_id"] for exchange in store.read(rollout_id)]
        claimed = ["parent's claim"] if rollout_id == ROLLOUTS[0] else []
        assert found == ["parent", "child", *claimed, "parent again"]
        assert not store.is_incomplete(rollout_id)
