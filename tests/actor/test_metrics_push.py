"""Handing metrics over: whatever Ray makes of it, the owner goes on."""

from __future__ import annotations

import logging

import pytest

from gym_capture.actor.metrics_push import LOOK_EVERY, LatestSize, Push
from gym_capture.service.executor import Done, Executor
from gym_capture.service.metrics import METRICS, Sample, series_of
from gym_capture.service.segment_sizes import SegmentSizes
from gym_capture.testing.faulty_files import FaultyDisk

SAMPLES = [
    Sample("gym_capture_serving", {}, 1),
    Sample("gym_capture_gaps_total", {"code": "model_call_capture_pending"}, 2),
    Sample("gym_capture_commit_seconds_bucket", {"le": "+Inf"}, 7),
]


class Gauges:
    """Stands for Ray: keeps what is set, or fails."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, ...]] = {}
        self.values: list[tuple[str, float, dict[str, str]]] = []
        self.making_fails = False
        self.failing: str | None = None

    def make(self, name: str, description: str, tag_keys: tuple[str, ...]) -> Gauge:
        if self.making_fails:
            raise RuntimeError("planted: no agent")
        assert description
        self.keys[name] = tag_keys
        return Gauge(self, name)


class Gauge:
    def __init__(self, gauges: Gauges, name: str) -> None:
        self._gauges = gauges
        self._name = name

    def set(self, value: float, tags: dict[str, str]) -> None:
        if self._gauges.failing == self._name:
            raise ValueError("planted: no such tag")
        assert set(tags) == set(self._gauges.keys[self._name])
        self._gauges.values.append((self._name, value, tags))


def test_each_series_has_a_gauge_with_run_and_shard_before_its_own_labels() -> None:
    gauges = Gauges()
    push = Push({"run": "abc", "shard": "2"}, gauges.make)
    push.push(SAMPLES)
    assert gauges.keys == {
        name: ("run", "shard", *labels) for metric in METRICS for name, labels in series_of(metric).items()
    }
    assert gauges.values == [
        ("gym_capture_serving", 1, {"run": "abc", "shard": "2"}),
        ("gym_capture_gaps_total", 2, {"run": "abc", "shard": "2", "code": "model_call_capture_pending"}),
        ("gym_capture_commit_seconds_bucket", 7, {"run": "abc", "shard": "2", "le": "+Inf"}),
    ]


def test_what_fails_is_said_once_and_the_next_push_is_tried_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    gauges = Gauges()
    push = Push({"run": "abc", "shard": "0"}, gauges.make)
    with caplog.at_level(logging.WARNING, "gym_capture.actor.metrics_push"):
        gauges.making_fails = True
        push.push(SAMPLES)
        gauges.making_fails = False
        gauges.failing = "gym_capture_gaps_total"
        push.push(SAMPLES)
        gauges.failing = None
        push.push(SAMPLES)
    assert [record.getMessage() for record in caplog.records] == [
        "metrics of this owner are not (all) reported: RuntimeError('planted: no agent'); this is said once"
    ]
    assert [name for name, _, _ in gauges.values] == [SAMPLES[0].name, *(sample.name for sample in SAMPLES)]


class Held(Executor):
    """Keeps what it is given until it is let go."""

    def __init__(self) -> None:
        self.asked: list[Done] = []

    def start(self, fn: object, done: Done) -> None:
        self.asked.append(done)

    def close(self) -> None:
        pass


def test_a_disk_that_hangs_holds_up_the_look_at_the_logs_size_and_nothing_else() -> None:
    held = Held()
    size = LatestSize(SegmentSizes(FaultyDisk().view()), held)
    assert [size.take() for _ in range(3 * LOOK_EVERY)] == [None] * 3 * LOOK_EVERY
    [done] = held.asked
    done(4096, None)
    assert size.take() == 4096
    assert len(held.asked) == 2
    held.asked[1](None, OSError("planted"))
    assert size.take() is None
