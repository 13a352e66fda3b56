"""docs/metrics.md, the dashboard and the alerts name the metrics that there are, and no others."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gym_capture.service.latency import BOUNDS_S
from gym_capture.service.metrics import GAP_CODES, METRICS, series_of
from tests import promql
from tests.cases import ROOT
from tests.prometheus import promtool

DOCUMENT = ROOT / "docs" / "metrics.md"
SERIES = {
    promql.RAY_PREFIX + name: {"run", "shard", *labels}
    for metric in METRICS
    for name, labels in series_of(metric).items()
}


def rows(section: str) -> list[list[str]]:
    """The cells of the rows of the tables in a section of the document, the head rows aside."""
    text = DOCUMENT.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [line.strip("|") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def test_the_table_says_of_every_metric_what_the_code_says() -> None:
    assert rows("The metrics") == [
        [f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels) or "–", metric.says]
        for metric in METRICS
    ]


def test_the_codes_and_bounds_that_the_document_names_are_the_codes() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [code for code in GAP_CODES if f"`{code}`" not in text] == []
    assert ", ".join(f"{bound:g}" for bound in BOUNDS_S) in text.replace("\n", " ")


def test_every_alert_is_in_the_document_and_says_what_to_do() -> None:
    alerts = rows("Alerts")
    assert [name.strip("`") for name, _, _ in alerts] == [rule["alert"] for rule in promql.alert_rules()]
    assert all(when and do for _, when, do in alerts)
    assert all(set(rule["annotations"]) == {"summary", "description"} for rule in promql.alert_rules())
    assert {rule["labels"]["severity"] for rule in promql.alert_rules()} == {"critical", "warning", "info"}


@pytest.mark.parametrize("expression", promql.expressions())
def test_an_expression_names_only_metrics_and_labels_that_exist(expression: str) -> None:
    named = promql.metrics_in(expression)
    assert named
    assert named <= SERIES.keys()
    assert {(metric, label) for metric, label in promql.labels_in(expression) if label not in SERIES[metric]} == set()


def test_every_example_of_the_document_names_only_metrics_that_exist() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    named = {name for block in re.findall(r"```promql\n(.*?)```", text, re.DOTALL) for name in promql.metrics_in(block)}
    assert named
    assert named <= SERIES.keys()


def test_the_dashboard_shows_every_metric() -> None:
    shown = set().union(*map(promql.metrics_in, promql.dashboard_expressions()))
    missing = [
        metric.name for metric in METRICS if shown.isdisjoint(promql.RAY_PREFIX + name for name in series_of(metric))
    ]
    assert missing == []


def test_a_metric_that_there_is_not_would_be_found() -> None:
    assert promql.metrics_in("rate(ray_gym_capture_gone{run=~'$run'}[1m])") == {"ray_gym_capture_gone"}
    assert promql.labels_in('x{a="1",b=~"2"} / y{c!="3"}') == {("x", "a"), ("x", "b"), ("y", "c")}


def test_the_dashboards_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = json.loads(promql.DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells
    assert all(panel["description"] for panel in promql.dashboard_panels())


def test_prometheus_accepts_the_configuration_and_the_rules() -> None:
    tool = promtool()
    for check, file in (("rules", "prometheus-alerts.yaml"), ("config", "prometheus.yaml")):
        ran = subprocess.run(
            [tool, "check", check, file], cwd=promql.CONFIGS, capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, ran.stderr


def test_the_alerts_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    tool = promtool()
    shutil.copy(promql.ALERTS, tmp_path)
    shutil.copy(Path(__file__).with_name("alert_cases.yaml"), tmp_path)
    ran = subprocess.run(
        [tool, "test", "rules", "alert_cases.yaml"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    tested = set(re.findall(r"alertname: (\w+)", (tmp_path / "alert_cases.yaml").read_text(encoding="utf-8")))
    assert tested == {rule["alert"] for rule in promql.alert_rules()}
