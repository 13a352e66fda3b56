"""Which shard a rollout belongs to is fixed for good, and shards get about as much each."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256

from gym_capture.model.shards import run_actor_name, shard_actor_name, shard_of


def test_a_rollouts_shard_is_the_one_that_the_format_says() -> None:
    """What is on disk lies where these say."""
    assert [shard_of(name, 4) for name in ("0-0", "0-1", "7-0", "7-0-a1", "r1")] == [2, 1, 2, 2, 1]
    assert [shard_of(name, 256) for name in ("0-0", "7-0")] == [0x36, 0x7E]
    assert int.from_bytes(sha256(b"7-0").digest()[:8], "big") % 3 == shard_of("7-0", 3)
    assert {shard_of(f"{number}-0", 1) for number in range(100)} == {0}


def test_shards_share_the_rollouts_evenly() -> None:
    found = Counter(shard_of(f"{task}-{rollout}", 4) for task in range(1000) for rollout in range(8))
    assert sorted(found) == [0, 1, 2, 3]
    assert max(found.values()) - min(found.values()) < 300


def test_shard_zero_has_the_runs_name_and_any_shard_tells_it() -> None:
    names = [shard_actor_name("capture-x", shard) for shard in range(3)]
    assert names == ["capture-x", "capture-x-shard-1", "capture-x-shard-2"]
    assert {run_actor_name(name) for name in names} == {"capture-x"}
    assert run_actor_name("shard-1") == "shard-1"
