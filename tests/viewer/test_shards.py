"""A run of several shards is one run on the page, and is followed while its owners write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gym_capture.client.client import CaptureClient
from gym_capture.client.sharded_host import host_over
from gym_capture.testing.threaded_shards import ThreadedShards
from tests.reading.calls import chat, user
from tests.viewer.pages import viewer

ROLLOUTS = [f"r{number}" for number in range(8)]


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Callable[[str, str], object]]:
    """Commits a call of a rollout to a live run of three shards."""
    owners = ThreadedShards(tmp_path / "run", 3)
    owners.start()
    with CaptureClient(host_over(owners.in_process_transports())).sync as capture:
        yield lambda rollout_id, call: capture.record(rollout_id, chat(call, [user("one")]))
        capture.stop()
    owners.close()


async def test_shards_are_one_run_and_what_any_of_them_gains_is_shown(
    tmp_path: Path, record: Callable[[str, str], object]
) -> None:
    for rollout_id in ROLLOUTS:
        await asyncio.to_thread(record, rollout_id, "1")
    async with viewer(tmp_path / "run") as client:
        first = await client.get("api/run")
        assert first.json()["run"]["calls"] == len(ROLLOUTS)
        for count, rollout_id in enumerate(ROLLOUTS, 1):
            await asyncio.to_thread(record, rollout_id, "2")
            again = await client.get("api/run", headers={"if-none-match": first.headers["etag"]})
            assert (again.status_code, again.json()["run"]["calls"]) == (200, len(ROLLOUTS) + count)
            assert (await client.get(f"api/rollouts/{rollout_id}")).json()["count"] == 2
        shards = {path.parent.name for path in (tmp_path / "run").glob("shard-*/segment-*.log")}
        assert shards == {"shard-000", "shard-001", "shard-002"}
