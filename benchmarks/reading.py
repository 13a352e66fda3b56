"""What it costs to look at a capture directory: opening it, a first page, a page in an order that needs every record,
one rollout as a person reads it, the run's figures.

Written without Ray, in this process. `make bench ARGS=reading`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.written_directory import write_directory
from gym_capture.reading.conversation import read_conversation
from gym_capture.reading.health import check_health
from gym_capture.reading.new_calls import NewCalls
from gym_capture.reading.plain_json import plain_json
from gym_capture.reading.rollout_overview import OverviewQuery, RolloutOverview
from gym_capture.reading.run_stats import run_stats
from gym_capture.reading.timeline import read_timeline
from gym_capture.storage.store import CaptureStore

Rows = dict[str, dict[str, float]]


def reading_costs(directory: Path, calls: int, turns: int, turn_bytes: int, repeats: int) -> Rows:
    """Write a directory (unless it is there) and look at it, `repeats` times at each.

    Args:
        directory: the capture directory.
        calls, turns: in all, and of each rollout.
        turn_bytes: what a request adds to its history.
    """
    rollouts = calls // turns
    if not directory.exists():
        write_directory(directory, rollouts, turns, turn_bytes)
    rows: Rows = {}
    store = _measured(rows, "open the store", 1, lambda: CaptureStore(directory))
    middle = f"{rollouts // 8}-0"
    _measured(rows, "first page, 50 rollouts by id", repeats, lambda: RolloutOverview(store).page())
    by_calls = OverviewQuery(sort="calls", descending=True)
    _measured(rows, "first page by calls", repeats, lambda: RolloutOverview(store).page(by_calls))
    overview = RolloutOverview(store)
    by_tokens = OverviewQuery(sort="tokens_in", descending=True)
    page = _measured(rows, "first page by tokens: every record is read", 1, lambda: overview.page(by_tokens))
    assert page.matching == page.known == rollouts
    _measured(rows, "the same again", repeats, lambda: overview.page(by_tokens))
    _measured(rows, f"one rollout of {turns} calls", repeats, lambda: read_conversation(store, middle))
    _measured(rows, "its JSON values", repeats, lambda: plain_json(read_conversation(store, middle)))
    _measured(rows, "its timeline", repeats, lambda: read_timeline(store, middle))
    new = NewCalls(store)
    _measured(rows, "nothing new: one look of `tail`", repeats, new.take)
    _measured(rows, "the run's figures", 1, lambda: run_stats(store))
    assert _measured(rows, "its health", 1, lambda: check_health(store)).calls == rollouts * turns
    return rows


def _measured(rows: Rows, name: str, repeats: int, work: Callable[[], Any]) -> Any:
    wall: list[float] = []
    cpu: list[float] = []
    result = None
    for _ in range(repeats):
        started, used = time.perf_counter(), time.process_time()
        result = work()
        wall.append((time.perf_counter() - started) * 1e3)
        cpu.append((time.process_time() - used) * 1e3)
    rows[name] = {"ms": statistics.median(wall), "worst ms": max(wall), "CPU ms": statistics.median(cpu)}
    return result
