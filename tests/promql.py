"""The metrics that expressions of Prometheus name, and where the project's own expressions stand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
ALERTS = CONFIGS / "prometheus-alerts.yaml"
DASHBOARD = CONFIGS / "grafana-dashboard.json"
RAY_PREFIX = "ray_"
"""Ray puts it before the name of every metric that it is given."""

_NAME = re.compile(r"\b(?:ray_)?gym_capture_\w+")
_SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")


def alert_rules() -> list[dict[str, Any]]:
    """Every alert."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_panels() -> list[dict[str, Any]]:
    """Every panel that shows something."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [panel for panel in panels if panel["type"] != "row"]


def dashboard_expressions() -> list[str]:
    """What the panels and the variables ask."""
    variables = json.loads(DASHBOARD.read_text(encoding="utf-8"))["templating"]["list"]
    asked = [target["expr"] for panel in dashboard_panels() for target in panel["targets"]]
    return asked + [each["definition"] for each in variables if each["type"] == "query"]


def expressions() -> list[str]:
    """Those of the alerts and of the dashboard."""
    return [rule["expr"] for rule in alert_rules()] + dashboard_expressions()


def metrics_in(expression: str) -> set[str]:
    """The metrics of ours that it names, as Prometheus knows them."""
    return set(_NAME.findall(expression))


def labels_in(expression: str) -> set[tuple[str, str]]:
    """(metric, label) for each label that a selector in it compares."""
    return {
        (metric, label)
        for metric, matchers in _SELECTOR.findall(expression)
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)
    }


def with_values(expression: str) -> str:
    """A dashboard's expression as Grafana would ask it for everything."""
    for variable, value in (("$__rate_interval", "1m"), ("$__range", "1h"), ("$run", ".*"), ("$shard", ".*")):
        expression = expression.replace(variable, value)
    return expression
