"""A real Prometheus takes a page like those of Ray's agents, and answers the dashboard and the alerts. Without Ray."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gym_capture.service.latency import BOUNDS_S
from gym_capture.service.metrics import GAP_CODES, METRICS, series_of
from tests import promql
from tests.prometheus import Prometheus
from tests.ray_cluster import wait_until

VALUES = {"le": [*map(str, BOUNDS_S), "+Inf"], "code": list(GAP_CODES), "directory": ["/captures"], "actor": ["a"]}


def page(scrapes: int) -> str:
    """Every series; its value rises with each scrape, and those of a histogram's buckets with their bound."""
    lines = []
    for metric in METRICS:
        for name, labels in series_of(metric).items():
            for number, value in enumerate(VALUES[labels[0]] if labels else [""], 1):
                own = {label: value if label == labels[0] else VALUES[label][0] for label in labels}
                told = "".join(f',{label}="{each}"' for label, each in own.items())
                lines.append(f'ray_{name}{{run="r1",shard="0"{told}}} {scrapes * number}')
    return "\n".join(lines) + "\n"


@pytest.fixture
def agent() -> Iterator[str]:
    """Host and port of a page."""
    scrapes = iter(range(1, 10_000))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page(next(scrapes)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_every_expression_of_the_dashboard_finds_something_and_every_alert_is_evaluated(
    agent: str, tmp_path: Path
) -> None:
    with Prometheus(tmp_path, agent, promql.ALERTS) as prometheus:
        wait_until(lambda: prometheus.query("ray_gym_capture_serving > 2"), "Prometheus has scraped three times")
        for expression in promql.dashboard_expressions():
            if not expression.startswith("label_values"):
                assert prometheus.query(promql.with_values(expression)), expression
        slowest = 'histogram_quantile(1, sum by (le) (rate(ray_gym_capture_commit_seconds_bucket{run="r1"}[1m])))'
        assert float(prometheus.query(slowest)[0]["value"][1]) == BOUNDS_S[-1]
        wait_until(lambda: prometheus.evaluated() == len(promql.alert_rules()), "every alert was evaluated")
