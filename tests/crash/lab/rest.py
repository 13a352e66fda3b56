"""How a run comes to rest, and what a fresh reader then finds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from gym_capture.storage.store import CaptureStore
from tests.crash.lab.checker import Stored
from tests.crash.lab.collector import Collector
from tests.crash.lab.journal import History
from tests.crash.lab.workload import digest_of

REST_S = 180.0


async def come_to_rest(capture: Any, collector: Collector, directory: Path) -> dict[str, Any]:
    """No claim is open any more, and every rollout is merged once more; returns what the owner says of itself then."""
    end = time.monotonic() + REST_S
    while not await collector.quiesce(None, 10.0):
        assert time.monotonic() < end, f"never quiescent: {await capture.stats()}"
    store = CaptureStore(directory)
    for rollout in store.rollout_ids():
        await collector.merge(rollout, store.generation(rollout), 0)
    stats: dict[str, Any] = await capture.stats()
    return stats


def read_stored(directory: Path, history: History) -> dict[str, Stored]:
    """What a fresh reader finds of every rollout that anybody cleared or made a call for."""
    store = CaptureStore(directory)
    stored = {}
    named = {call.rollout for call in history.calls.values()} | {clear.rollout for clear in history.clears}
    for rollout in {*store.rollout_ids(), *named}:
        exchanges, damaged = store.read_available(rollout)
        calls = [(each["model_call_id"], digest_of(each["request"], each["response"])) for each in exchanges]
        reasons = store.evidence(rollout).incomplete
        stored[rollout] = Stored(
            store.generation(rollout), calls, dict(reasons) if reasons else None, damaged, store.outstanding(rollout)
        )
    return stored
