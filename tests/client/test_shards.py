"""A client of several shards: what only several owners can get wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_capture.client.client import CaptureClient
from gym_capture.client.options import ClientOptions
from gym_capture.client.sharded_host import host_over
from gym_capture.errors import ClientClosed, OwnerUnavailable
from gym_capture.model.shards import shard_of
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.conformance import some_exchange
from gym_capture.testing.threaded_shards import ThreadedShards

SHARDS = 4
ROLLOUTS = [next(f"r{number}" for number in range(99) if shard_of(f"r{number}", SHARDS) == shard) for shard in range(4)]
"""One rollout of each shard."""


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[ThreadedShards]:
    made = ThreadedShards(tmp_path / "captures", SHARDS)
    made.start()
    yield made
    made.close()


@pytest.fixture
def client(owners: ThreadedShards) -> Iterator[CaptureClient]:
    made = CaptureClient(host_over(owners.in_process_transports(), ClientOptions(drain_timeout_s=30.0)))
    yield made
    made.sync.close(5.0)


def test_a_rollout_is_captured_in_its_own_shard_and_no_other_is_connected_to(
    client: CaptureClient, owners: ThreadedShards
) -> None:
    assert client.sync.record(ROLLOUTS[2], some_exchange("a")) == 0
    assert [len(owner.service.connections.sessions) for owner in owners.owners] == [0, 0, 1, 0]
    assert [list(owner.service.ledger.rollouts) for owner in owners.owners] == [[], [], [ROLLOUTS[2]], []]


async def test_the_run_is_not_quiescent_while_any_shard_has_a_claim(client: CaptureClient) -> None:
    for rollout_id in ROLLOUTS:
        async with client.rollout(rollout_id).claim(dialect="chat") as call:
            assert not await client.quiesce(timeout_s=0.05)
            call.complete(request={}, response={})
        assert await client.quiesce()


async def test_a_claim_that_moves_from_shard_to_shard_is_never_missed(client: CaptureClient) -> None:
    """At every moment one claim is open, the next one before the last is closed. One round of questions can be told
    zero by every shard in its turn."""
    open_now: list[int] = []
    stop = asyncio.Event()

    async def walk() -> None:
        turn = 0
        call = client.rollout(ROLLOUTS[0]).claim(dialect="chat")
        await call.__aenter__()
        while not stop.is_set():
            turn += 1
            following = client.rollout(ROLLOUTS[turn % SHARDS]).claim(dialect="chat")
            await following.__aenter__()
            open_now.append(turn)
            call.complete(request={}, response={})
            await call.__aexit__(None, None, None)
            call = following
        open_now.clear()
        call.complete(request={}, response={})
        await call.__aexit__(None, None, None)

    walking = asyncio.create_task(walk())
    while len(open_now) < 20:
        assert not await client.quiesce(timeout_s=0.05)
    for _ in range(3):
        assert not await client.quiesce(timeout_s=0.1)
    stop.set()
    assert await client.quiesce()
    await walking


async def test_a_shard_that_is_away_is_not_quiescent(client: CaptureClient, owners: ThreadedShards) -> None:
    assert await client.quiesce()
    owners.owners[3].kill()
    assert not await client.quiesce(timeout_s=0.3)
    assert await client.quiesce(ROLLOUTS[0])
    with pytest.raises(OwnerUnavailable, match=r"shard 3 of 4: stats") as away:
        await client.stats(timeout_s=0.1)
    assert away.value.shard == 3
    waiting = asyncio.create_task(client.quiesce())
    await asyncio.sleep(0)
    await asyncio.to_thread(owners.owners[3].start)
    assert await waiting


async def test_clears_go_to_every_shard_and_come_back_in_order(client: CaptureClient) -> None:
    names = [f"r{number}" for number in range(2500)]
    assert await client.clear(names) == dict.fromkeys(names, 1)
    assert list(await client.clear(reversed(names))) == names[::-1]


async def test_the_counters_are_summed_and_each_shards_are_there(client: CaptureClient) -> None:
    for turn, rollout_id in enumerate(ROLLOUTS):
        for number in range(turn + 1):
            await client.rollout(rollout_id).record(some_exchange(f"c{number}"))
    async with client.rollout(ROLLOUTS[1]).claim(dialect="chat", model_call_id="open") as call:
        stats = await client.stats(ROLLOUTS[3])
        assert stats["counts"]["commits"] == 10
        assert [shard["counts"].get("commits", 0) for shard in stats["shards"]] == [1, 2, 3, 4]
        assert (stats["outstanding"], stats["rollouts"]) == (1, 4)
        assert [(claim["model_call_id"], claim["shard"]) for claim in stats["oldest_claims"]] == [("open", 1)]
        assert (stats["rollout"]["calls"], stats["rollout"]["shard"]) == (4, 3)
        assert [shard["shard"] for shard in stats["client"]["shards"]] == [0, 1, 2, 3]
        assert (stats["client"]["connected"], stats["client"]["open_claims"]) == (True, 1)
        call.complete(request={}, response={})


def test_the_blocking_twin_works_and_one_thread_serves_all_shards(client: CaptureClient) -> None:
    import threading

    before = {thread for thread in threading.enumerate() if thread.name == "gym_capture-client"}
    sync = client.sync
    generations = sync.clear(ROLLOUTS)
    pairs = [(sync.rollout(rollout_id, generations[rollout_id]), some_exchange("a")) for rollout_id in ROLLOUTS]
    assert sync.record_many(pairs) == [0] * SHARDS
    assert sync.quiesce()
    merged = sync.merge_many([{"_ng_rollout_id": rollout_id} for rollout_id in ROLLOUTS], generations=generations)
    assert [len(each["ng_model_call_capture"]["calls"]) for each in merged] == [1] * SHARDS
    assert sync.stats()["outstanding"] == 0
    now = {thread for thread in threading.enumerate() if thread.name == "gym_capture-client"}
    assert len(now - before) == 1
    assert sync.close()
    assert not [thread for thread in now - before if thread.is_alive()]
    with pytest.raises(ClientClosed):
        sync.clear(ROLLOUTS)


def test_a_stop_ends_every_owner_and_all_of_it_can_be_read(client: CaptureClient, owners: ThreadedShards) -> None:
    for rollout_id in ROLLOUTS:
        client.sync.record(rollout_id, some_exchange("a"))
    client.sync.stop()
    assert {owner.service.state.value for owner in owners.owners} == {"stopped"}
    store = CaptureStore(owners.directory)
    assert store.rollout_ids() == sorted(ROLLOUTS)
    assert [store.read(rollout_id)[0]["model_call_id"] for rollout_id in ROLLOUTS] == ["a"] * SHARDS
    assert store.verify().sound
