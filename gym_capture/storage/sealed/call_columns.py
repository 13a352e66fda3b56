"""The columns of a call that are derived from its exchange: of the sealed files, and of the table of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from gym_capture.errors import DamagedLog
from gym_capture.model.captured import CapturedCall
from gym_capture.model.exchange import decode_fields
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

_OWN = (
    "rollout_id",
    "generation",
    "call_index",
    "model_call_id",
    "raw_bytes",
    "model_type",
    "model_name",
    "tool_names",
)
"""The columns that are no field of the record, or not as it is."""
_DERIVED = [field.name for field in CALL_COLUMNS if field.name not in _OWN]
_ORDER = [*_OWN, *_DERIVED]
_Record: Any = msgspec.defstruct("_Record", [(name, Any, None) for name in ("model_ref", "tool_calls", *_DERIVED)])
"""The fields of a record that columns are made of: decoding these alone takes half as long as all of them."""
_decode_record = msgspec.msgpack.Decoder(_Record).decode
_NO_NAMES: list[str | None] = []
_NOTHING: Mapping[str, Any] = {}
_LEAST, _MOST = -(2**63), 2**63 - 1


class CallColumns:
    """Collects calls, and turns them into columns."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, rollout_id: str, generation: int, call: CapturedCall) -> None:
        """One more call of a rollout. Where its record cannot be read, what it would say is null."""
        reference, tool_calls, *derived = astuple(_record(call.record))
        reference = reference or _NOTHING
        names = [_name(each) for each in tool_calls] if tool_calls else _NO_NAMES
        own = (rollout_id, generation, call.call_index, call.model_call_id, call.raw_bytes)
        self._rows.append((*own, reference.get("type"), reference.get("name"), names, *derived))

    def take(self) -> dict[str, Any]:
        """The columns as arrays, by name; none is kept."""
        rows, self._rows = self._rows, []
        columns = zip(*rows, strict=True) if rows else [()] * len(_ORDER)
        values = dict(zip(_ORDER, columns, strict=True))
        return {field.name: _array(values[field.name], field.type) for field in CALL_COLUMNS}


def _record(data: bytes) -> Any:
    try:
        return _decode_record(data)
    except (ValueError, RecursionError):  # msgspec's own are ValueErrors
        pass
    try:
        fields = decode_fields(data)  # as JSON, where it holds what msgpack cannot
    except DamagedLog:
        return _Record()  # the exchange is whole, and its record is kept as it is
    return _Record(*map(fields.get, _Record.__struct_fields__))


def _array(values: Sequence[Any], kind: Any) -> Any:
    try:
        return pa.array(values, kind)
    except OverflowError:
        return pa.array([None if value is None or not _LEAST <= value <= _MOST else value for value in values], kind)


def _name(tool_call: Mapping[str, Any]) -> str | None:
    name = tool_call.get("name")
    return name if isinstance(name, str) else None
