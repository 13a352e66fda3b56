"""The owner dies while streams pass a proxy: every client's stream ends as the model sent it, and the books balance."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gym_capture
from gym_capture.storage.store import CaptureStore
from tests.asgi.proxy_process import proxy_process
from tests.crash.model_streams import response_of, stream_of
from tests.crash.processes import Child
from tests.crash.stream_client import StreamClient, Streams, number_in
from tests.ray_cluster import wait_until

STREAMS = 200
ROLLOUTS = 20
SHORT = ("lease_s=1.5", "patience_s=1.0", "client_buffer_bytes=20000")
"""Clients of this owner do not wait long for it, and can keep little."""


@pytest.fixture
def owner(directory: Path) -> Iterator[Child]:
    """An owner that does not come back in time."""
    with Child("tests.crash.owner_process", str(directory), "owner", *SHORT) as child:
        assert child.hear()["serving"]
        yield child


def calls(numbers: Iterable[int]) -> list[tuple[str, int]]:
    """Rollout and number of each."""
    return [(f"{number % ROLLOUTS}-0", number) for number in numbers]


def wrong(ended: list[StreamClient]) -> list[int]:
    """Those that did not get exactly the model's bytes."""
    return [each.number for each in ended if not each.whole or bytes(each.body) != stream_of(each.number)]


def captured(directory: Path) -> Counter[int]:
    """How often each stream is on disk; each as it was."""
    store = CaptureStore(directory)
    found: Counter[int] = Counter()
    for rollout in store.rollout_ids():
        for exchange in store.read(rollout):
            number = number_in(exchange["request"])
            found[number] += 1
            assert (rollout, exchange["error_category"]) == (f"{number % ROLLOUTS}-0", None)
            assert exchange["response"] == response_of(number)
    return found


@pytest.mark.ray
@pytest.mark.crash
async def test_the_actor_is_killed_with_200_streams_in_flight_and_no_client_and_no_exchange_notices(
    capture_config: dict[str, Any], ray_cluster: Any, upstream: Child, upstream_url: str, tmp_path: Path
) -> None:
    capture = await asyncio.to_thread(gym_capture.start, capture_config)
    directory = Path(capture_config["model_call_capture_dir"])
    namespace = capture_config["capture"]["namespace"]
    (entry,) = [
        each for each in ray_cluster.util.list_named_actors(all_namespaces=True) if each["namespace"] == namespace
    ]
    actor = ray_cluster.get_actor(entry["name"], namespace)
    first = (await actor.ready.remote()).pid
    try:
        async with proxy_process(tmp_path, directory, upstream_url) as proxy:
            upstream.ask(f"hold {STREAMS}")
            streams = Streams(proxy.port, calls(range(STREAMS)))
            assert await asyncio.to_thread(upstream.hear) == {"begun": STREAMS}
            os.kill(first, signal.SIGKILL)
            # Their commits, and the claims of as many new calls, meet an owner that is being restarted.
            upstream.ask("go")
            more = Streams(proxy.port, calls(range(STREAMS, 2 * STREAMS)))
            ended = [*await streams.ended(), *await more.ended()]
        assert wrong(ended) == []
        assert await capture.quiesce(None, timeout_s=30.0)
        second = (await actor.ready.remote()).pid
        stats = await capture.stats()
    finally:
        await asyncio.to_thread(capture.sync.stop)
    assert second != first
    assert stats["outstanding"] == 0
    assert captured(directory) == Counter(range(2 * STREAMS))
    store = CaptureStore(directory)
    assert [rollout for rollout in store.rollout_ids() if store.is_incomplete(rollout)] == []


@pytest.mark.crash
async def test_an_owner_that_stays_away_costs_no_client_a_byte_and_what_is_lost_is_counted_when_one_is_back(
    directory: Path, owner: Child, upstream: Child, upstream_url: str, tmp_path: Path
) -> None:
    async with proxy_process(tmp_path, directory, upstream_url) as proxy:
        upstream.ask("hold 40")
        streams = Streams(proxy.port, calls(range(40)))
        assert await asyncio.to_thread(upstream.hear) == {"begun": 40}
        owner.signal(signal.SIGKILL)
        owner.process.wait(30)
        upstream.ask("go")
        assert wrong(await streams.ended()) == []
        # These are never claimed.
        assert wrong(await Streams(proxy.port, calls(range(40, 80))).ended()) == []
        with Child("tests.crash.owner_process", str(directory), "owner", *SHORT) as back:
            assert back.hear()["serving"]
            capture = gym_capture.connect(capture_dir=directory)
            try:
                missing = await asyncio.to_thread(wait_until, lambda: accounted(capture, directory), "all is told")
            finally:
                await capture.close()
            assert back.ask("stats")["stats"]["outstanding"] == 0
            proxy.signal(signal.SIGTERM)
            assert await proxy.ended() == 0
    assert 0 < missing < 80


def accounted(capture: gym_capture.CaptureClient, directory: Path) -> int | None:
    """How many calls the gaps name, once those and the captured ones are all that were made."""
    on_disk = captured(directory)
    assert set(on_disk.values()) <= {1}
    named = 0
    for rollout in {rollout for rollout, _ in calls(range(80))}:
        record: dict[str, Any] = {"_ng_rollout_id": rollout}
        capture.sync.merge(record, timeout_s=5.0)
        for gap in record["ng_model_call_capture"].get("gaps", []):
            for reason in gap["detail"].split(","):
                named += int(reason.partition("=")[2])
    return named if len(on_disk) + named == 80 else None


@pytest.mark.crash
async def test_a_proxy_that_ends_without_an_owner_says_that_calls_are_not_on_disk(
    directory: Path, owner: Child, upstream: Child, upstream_url: str, tmp_path: Path
) -> None:
    async with proxy_process(tmp_path, directory, upstream_url) as proxy:
        upstream.ask("hold 10")
        streams = Streams(proxy.port, calls(range(10)))
        assert await asyncio.to_thread(upstream.hear) == {"begun": 10}
        owner.signal(signal.SIGKILL)
        owner.process.wait(30)
        proxy.signal(signal.SIGTERM)
        await asyncio.to_thread(wait_until, lambda: "requests that run" in proxy.log.read_text(), "it drains")
        proxy.signal(signal.SIGTERM)  # at once
        assert [each.number for each in await streams.ended() if each.whole] == []
        assert await proxy.ended() == 1
        assert "not on disk" in proxy.log.read_text()
    # Its claims are on disk, and a new owner finds nobody who holds them.
    with Child("tests.crash.owner_process", str(directory), "owner", *SHORT) as back:
        assert back.hear()["serving"]
        capture = gym_capture.connect(capture_dir=directory)
        try:
            assert await capture.quiesce(None, timeout_s=30.0)
        finally:
            await capture.close()
    store = CaptureStore(directory)
    assert all(store.is_incomplete(rollout) for rollout, _ in calls(range(10)))
