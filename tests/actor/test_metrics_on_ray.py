"""A real owner's metrics, as Ray's agent shows them and as a real Prometheus takes them."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gym_capture
from gym_capture.client.client import CaptureClient
from gym_capture.service.metrics import METRICS, series_of
from gym_capture.testing.conformance import some_exchange
from tests import promql
from tests.prometheus import Prometheus
from tests.ray_cluster import wait_until

pytestmark = pytest.mark.ray

NAMES = {promql.RAY_PREFIX + name for metric in METRICS for name in series_of(metric)}
LINE = re.compile(r"(\w+)\{(.*)\} (\S+)")


@pytest.fixture
def capture(ray_cluster: Any, capture_config: dict[str, Any]) -> Iterator[CaptureClient]:
    """A run in which five exchanges were committed, one claim is open, and an empty rollout was merged."""
    capture = gym_capture.start(capture_config)
    for number in range(5):
        capture.sync.record("7-0", some_exchange(f"c{number}"))
    capture.sync.merge({"_ng_rollout_id": "7-1"})
    claim = capture.sync.rollout("7-2").claim(dialect="chat")
    claim.__enter__()
    yield capture
    claim.__exit__(None, None, None)
    capture.sync.stop()
    capture.sync.close()


def scrape(target: str, run: str) -> dict[str, dict[str, float]]:
    """The run's series of ours that Ray's agent shows: name → their own labels → value."""
    with urllib.request.urlopen(f"http://{target}/metrics", timeout=10) as answer:
        lines = [LINE.match(line) for line in answer.read().decode().splitlines() if f'run="{run}"' in line]
    found: dict[str, dict[str, float]] = {}
    for line in filter(None, lines):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', line[2]))
        own = "".join(labels.get(label, "") for label in ("code", "le", "directory"))
        assert labels["shard"] == "0"
        found.setdefault(line[1], {})[own] = float(line[3])
    return found


def test_rays_agent_shows_an_owners_metrics_and_prometheus_takes_them(
    ray_cluster: Any, capture: CaptureClient, tmp_path: Path
) -> None:
    run = capture.sync.stats()["run"]
    [node] = ray_cluster.nodes()
    target = f"127.0.0.1:{node['MetricsExportPort']}"

    def complete() -> dict[str, dict[str, float]] | None:
        seen = scrape(target, run)
        whole = seen.keys() == NAMES and seen["ray_gym_capture_exchanges_total"] == {"": 5}
        return seen if whole and seen["ray_gym_capture_outstanding_claims"] == {"": 1} else None

    seen = wait_until(complete, "Ray's agent shows all metrics of the owner")
    assert seen["ray_gym_capture_commit_seconds_count"] == {"": 5}
    assert seen["ray_gym_capture_commit_seconds_bucket"]["+Inf"] == 5
    assert seen["ray_gym_capture_claim_seconds_count"][""] >= 1
    assert seen["ray_gym_capture_serving"] == {"": 1}
    assert seen["ray_gym_capture_oldest_claim_age_seconds"][""] > 0
    assert seen["ray_gym_capture_gaps_total"]["model_call_capture_no_records"] == 1
    assert seen["ray_gym_capture_owner_info"] == {str(capture.sync.stats()["directory"]): 1}
    assert seen["ray_gym_capture_segment_bytes"][""] > 0
    assert seen["ray_gym_capture_log_bytes_total"][""] > 0

    with Prometheus(tmp_path, target, promql.ALERTS) as prometheus:
        mine = f'ray_gym_capture_exchanges_total{{run="{run}"}}'
        [found] = wait_until(lambda: prometheus.query(mine), "Prometheus has scraped the agent")
        assert (found["metric"]["shard"], found["value"][1]) == ("0", "5")
        below = f'ray_gym_capture_commit_seconds_bucket{{run="{run}"}}'
        [quantile] = prometheus.query(f"histogram_quantile(0.5, sum by (le) ({below}))")
        assert 0 < float(quantile["value"][1]) < 60
        wait_until(lambda: prometheus.evaluated() == len(promql.alert_rules()), "every alert was evaluated")
