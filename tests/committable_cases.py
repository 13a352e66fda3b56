"""The merges among the cases whose captured lines are exchanges that a client can commit."""

from __future__ import annotations

import base64
from typing import Any

from gym_capture.errors import InvalidExchange
from gym_capture.model.exchange import snapshot
from gym_capture.model.json_text import decode_json
from tests.cases import read_cases


def committable_cases() -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each such case with its exchanges. No two are of one rollout."""
    return [(case, found) for case in read_cases("merge.jsonl") if (found := _exchanges(case)) is not None]


def _exchanges(case: dict[str, Any]) -> list[dict[str, Any]] | None:
    """A case's exchanges, if each of its lines is one that a client can commit."""
    exchanges = []
    for line in case["lines"] or []:
        try:
            value, _ = decode_json(base64.b64decode(line))
            snapshot(value)
        except (ValueError, InvalidExchange):
            return None
        exchanges.append(value)
    ids = [value.get("model_call_id") for value in exchanges]
    return exchanges if None not in ids and len(set(ids)) == len(ids) and not case["incomplete"] else None
