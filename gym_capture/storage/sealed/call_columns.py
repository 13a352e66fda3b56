"""The columns of a call that are derived from its exchange: of the sealed files, and of the table of calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_capture.storage.sealed.arrow import pa

_STRING, _INTEGER, _NUMBER, _BOOLEAN = pa.string(), pa.int64(), pa.float64(), pa.bool_()

CALL_COLUMNS = pa.schema(
    [
        ("rollout_id", _STRING),
        ("generation", _INTEGER),
        ("call_index", _INTEGER),
        ("model_call_id", _STRING),
        ("response_id", _STRING),
        ("client_session_id", _STRING),
        ("model_type", _STRING),
        ("model_name", _STRING),
        ("model", _STRING),
        ("dialect", _STRING),
        ("status_code", _INTEGER),
        ("response_status", _STRING),
        ("finish_reason", _STRING),
        ("error_category", _STRING),
        ("upstream_attempted", _BOOLEAN),
        ("response_source", _STRING),
        ("upstream_status_code", _INTEGER),
        ("local_response_reason", _STRING),
        ("started_at", _NUMBER),
        ("completed_at", _NUMBER),
        ("latency_total_ms", _NUMBER),
        ("latency_ttft_ms", _NUMBER),
        ("tokens_in", _INTEGER),
        ("tokens_out", _INTEGER),
        ("tokens_reasoning", _INTEGER),
        ("tokens_total", _INTEGER),
        ("cache_hit", _BOOLEAN),
        ("cached_tokens", _INTEGER),
        ("cache_creation_tokens", _INTEGER),
        ("tool_names", pa.list_(_STRING)),
        ("verifier_invocation_id", _STRING),
        ("raw_bytes", _INTEGER),
    ]
)
"""Whose call it is, then the record's fields (`docs/tables.md`). Null is unknown, and what does not fit its column."""

_DERIVED = [
    field.name
    for field in CALL_COLUMNS
    if field.name
    not in (
        "rollout_id",
        "generation",
        "call_index",
        "model_call_id",
        "model_type",
        "model_name",
        "tool_names",
        "raw_bytes",
    )
]
_LEAST, _MOST = -(2**63), 2**63 - 1


class CallColumns:
    """Collects calls, and turns them into columns."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, int, int, str, int, Mapping[str, Any]]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        rollout_id: str,
        generation: int,
        call_index: int,
        model_call_id: str,
        raw_bytes: int,
        fields: Mapping[str, Any],
    ) -> None:
        """One more call.

        Args:
            fields: what is derived of it (`record.derive_fields`).
        """
        self._rows.append((rollout_id, generation, call_index, model_call_id, raw_bytes, fields))

    def take(self) -> dict[str, Any]:
        """The columns as arrays, by name; none is kept."""
        rows, self._rows = self._rows, []
        fields = [row[5] for row in rows]
        references = [each.get("model_ref") or {} for each in fields]
        values: dict[str, list[Any]] = {
            "rollout_id": [row[0] for row in rows],
            "generation": [row[1] for row in rows],
            "call_index": [row[2] for row in rows],
            "model_call_id": [row[3] for row in rows],
            "raw_bytes": [row[4] for row in rows],
            "model_type": [each.get("type") for each in references],
            "model_name": [each.get("name") for each in references],
            "tool_names": [[_name(call) for call in each.get("tool_calls") or ()] for each in fields],
        }
        for name in _DERIVED:
            values[name] = [each.get(name) for each in fields]
        return {field.name: _array(values[field.name], field.type) for field in CALL_COLUMNS}


def _array(values: list[Any], kind: Any) -> Any:
    try:
        return pa.array(values, kind)
    except OverflowError:
        return pa.array([None if value is None or not _LEAST <= value <= _MOST else value for value in values], kind)


def _name(tool_call: Mapping[str, Any]) -> str | None:
    name = tool_call.get("name")
    return name if isinstance(name, str) else None
