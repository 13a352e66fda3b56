"""A proxy that ends under its streams: killed, no client takes a part for all; told to stop, it leaves nothing open."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import gym_capture
from gym_capture.storage.store import CaptureStore
from tests.asgi.proxy_process import proxy_process
from tests.crash.model_streams import stream_of
from tests.crash.processes import NO_LEASE_ENDS_S, Child
from tests.crash.stream_client import Streams, number_in

STREAMS = 100
ROLLOUTS = 10


def calls() -> list[tuple[str, int]]:
    """Rollout and number of each."""
    return [(f"{number % ROLLOUTS}-0", number) for number in range(STREAMS)]


@pytest.mark.crash
async def test_a_killed_proxy_breaks_its_clients_and_its_rollouts_say_what_they_lost(
    directory: Path, owner: Child, upstream: Child, upstream_url: str, tmp_path: Path
) -> None:
    capture = gym_capture.connect(capture_dir=directory)
    try:
        async with proxy_process(tmp_path, directory, upstream_url) as proxy:
            upstream.ask(f"hold {STREAMS}")
            streams = Streams(proxy.port, calls())
            assert await asyncio.to_thread(upstream.hear) == {"begun": STREAMS}
            await streams.all_began()
            assert not await capture.quiesce("0-0", timeout_s=0.0)
            proxy.signal(signal.SIGKILL)
            ended = await streams.ended()
        # Never a clean end: each has a part, and knows it.
        assert [each.number for each in ended if each.whole] == []
        assert all(stream_of(each.number).startswith(each.body) and each.body for each in ended)
        assert await capture.quiesce(None, timeout_s=30.0)
        for number in range(ROLLOUTS):
            record: dict[str, Any] = {"_ng_rollout_id": f"{number}-0"}
            await capture.merge(record)
            merged = record["ng_model_call_capture"]
            assert merged["calls"] == []
            assert merged["gaps"] == [
                {"code": "model_call_capture_incomplete", "detail": f"lost={STREAMS // ROLLOUTS}"}
            ]
    finally:
        await capture.close()
    store = CaptureStore(directory)
    assert all(store.is_incomplete(f"{number}-0") for number in range(ROLLOUTS))


@pytest.mark.crash
@pytest.mark.parametrize("lease_s", [NO_LEASE_ENDS_S])
async def test_sigterm_with_100_streams_in_flight_drains_them_all_and_leaves_no_claim_open(
    directory: Path, owner: Child, upstream: Child, upstream_url: str, tmp_path: Path
) -> None:
    async with proxy_process(tmp_path, directory, upstream_url) as proxy:
        upstream.ask(f"hold {STREAMS}")
        streams = Streams(proxy.port, calls())
        assert await asyncio.to_thread(upstream.hear) == {"begun": STREAMS}
        await streams.all_began()
        proxy.signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            while True:  # until it listens no more
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
                except ConnectionRefusedError:
                    break
                except ConnectionResetError:
                    continue  # it was accepted by the kernel as the socket closed
                writer.transport.abort()
        upstream.ask("go")
        ended = await streams.ended()
        assert await proxy.ended() == 0
    assert [each.number for each in ended if not each.whole or bytes(each.body) != stream_of(each.number)] == []
    stats = owner.ask("stats")["stats"]
    assert stats["outstanding"] == 0
    store = CaptureStore(directory)
    found: Counter[int] = Counter()
    for rollout in store.rollout_ids():
        assert not store.is_incomplete(rollout)
        for exchange in store.read(rollout):
            assert exchange["error_category"] is None
            found[number_in(exchange["request"])] += 1
    assert found == Counter(range(STREAMS))
