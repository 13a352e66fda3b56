"""A thousand streams at once through one proxy process: nothing is lost, nothing is changed, and memory stays flat."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_capture.storage.store import CaptureStore
from tests.asgi.proxy_process import proxy_process
from tests.crash.model_streams import response_of, stream_of
from tests.crash.process_limits import MB, limit_open_files, memory_of, open_files_of
from tests.crash.processes import NO_LEASE_ENDS_S, Child
from tests.crash.stream_client import WITHIN_S, Streams, number_in

STREAMS = 1_000
ROLLOUTS = 100
WARM_UP_ROUNDS = 2
"""After the first, the client still fills what it keeps of each rollout's last requests, up to a bound."""
ROUNDS = WARM_UP_ROUNDS + 2

GROWTH_BYTES = 4 * MB
"""The most that the proxy may grow in the rounds after those. All that passes it in them is 14 MB."""

FEW_FILES = 400

PER_STREAM_BYTES = 100_000
"""The most that it may hold for each open stream."""


@pytest.fixture
def lease_s() -> float:
    """Nobody is given up."""
    return NO_LEASE_ENDS_S


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    """Leaves this process's limit of open files as it was."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.crash
@pytest.mark.timeout(300)
async def test_a_thousand_concurrent_streams_lose_nothing_and_hold_memory_flat(
    directory: Path, owner: Child, upstream: Child, upstream_url: str, tmp_path: Path
) -> None:
    limit_open_files(FEW_FILES)  # the proxy does not go by it
    resting: list[int] = []
    during: list[int] = []
    async with proxy_process(tmp_path, directory, upstream_url) as proxy:
        limit_open_files(4 * STREAMS)
        pid = proxy.told["pid"]
        start = memory_of(pid)
        for turn in range(ROUNDS):
            upstream.ask(f"hold {STREAMS}")
            numbers = range(turn * STREAMS, (turn + 1) * STREAMS)
            streams = Streams(proxy.port, [(f"{number % ROLLOUTS}-0", number) for number in numbers])
            assert await asyncio.to_thread(upstream.hear, WITHIN_S) == {"begun": STREAMS}
            # Nothing is buffered on the way: all clients have something of a stream of which none has ended.
            await streams.all_began()
            assert not any(client.whole for client in streams.clients)
            assert open_files_of(pid) > 2 * STREAMS
            during.append(memory_of(pid))
            upstream.ask("go")
            ended = await streams.ended()
            wrong = [each.number for each in ended if not each.whole or bytes(each.body) != stream_of(each.number)]
            assert wrong == []
            resting.append(memory_of(pid))
    assert Counter(upstream.ask("asked")["asked"]) == Counter(range(ROUNDS * STREAMS))
    stats = owner.ask("stats")["stats"]
    assert stats["outstanding"] == 0

    store = CaptureStore(directory)
    captured: Counter[int] = Counter()
    for rollout in store.rollout_ids():
        assert not store.is_incomplete(rollout)
        for exchange in store.read(rollout):
            number = number_in(exchange["request"])
            captured[number] += 1
            assert (rollout, exchange["error_category"]) == (f"{number % ROLLOUTS}-0", None)
            assert exchange["response"] == response_of(number)
    assert captured == Counter(range(ROUNDS * STREAMS))

    assert resting[-1] - resting[WARM_UP_ROUNDS - 1] < GROWTH_BYTES
    assert during[-1] - during[WARM_UP_ROUNDS - 1] < GROWTH_BYTES
    assert max(during) - start < STREAMS * PER_STREAM_BYTES
