"""From captured rollouts to record batches of the three tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gym_capture.errors import DamagedLog
from gym_capture.model.captured import CapturedCall, CapturedRollout
from gym_capture.model.gaps import INCOMPLETE, NO_RECORDS, PENDING, RECORDS_UNREADABLE, incomplete_detail
from gym_capture.storage.sealed.arrow import pa
from gym_capture.storage.sealed.call_columns import CALL_COLUMNS, CallColumns
from gym_capture.tables.message_rows import MessageRows

BATCH_ROWS = 4096
BATCH_BYTES = 8 << 20
"""Where a batch ends: its rows, or (of messages) the bytes of its texts."""

ROLLOUTS = pa.schema(
    [
        ("rollout_id", pa.string()),
        ("generation", pa.int64()),
        ("calls", pa.int64()),
        ("failed_calls", pa.int64()),
        ("damaged_calls", pa.int64()),
        ("outstanding", pa.int64()),
        ("incomplete", pa.string()),
        ("gaps", pa.list_(pa.string())),
        ("started_at", pa.float64()),
        ("completed_at", pa.float64()),
        ("tokens_in", pa.int64()),
        ("tokens_out", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("models", pa.list_(pa.string())),
        ("raw_bytes", pa.int64()),
    ]
)
"""One rollout's current generation a row (`docs/tables.md`)."""

MESSAGES = pa.schema(
    [
        ("rollout_id", pa.string()),
        ("generation", pa.int64()),
        ("call_index", pa.int64()),
        ("position", pa.int64()),
        ("source", pa.string()),
        ("role", pa.string()),
        ("content", pa.large_string()),
        ("reasoning", pa.large_string()),
        ("tool_calls", pa.list_(pa.struct([(name, pa.string()) for name in ("call_id", "name", "arguments")]))),
        ("tool_call_id", pa.string()),
    ]
)
"""One message of a conversation a row, with the call that brought it (`docs/tables.md`)."""

_MOST = 2**63 - 1


def rollout_batches(rollouts: Iterable[CapturedRollout]) -> Iterator[Any]:
    """The table of rollouts."""
    rows: list[dict[str, Any]] = []
    for rollout in rollouts:
        rows.append(_rollout_row(rollout))
        if len(rows) >= BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(rows, schema=ROLLOUTS)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=ROLLOUTS)


def call_batches(rollouts: Iterable[CapturedRollout]) -> Iterator[Any]:
    """The table of calls."""
    columns = CallColumns()
    for rollout in rollouts:
        for call in rollout.calls:
            columns.add(rollout.rollout_id, rollout.generation, call)
            if len(columns) >= BATCH_ROWS:
                yield pa.record_batch(columns.take(), schema=CALL_COLUMNS)
    if len(columns):
        yield pa.record_batch(columns.take(), schema=CALL_COLUMNS)


def message_batches(rollouts: Iterable[CapturedRollout]) -> Iterator[Any]:
    """The table of messages."""
    rows: list[dict[str, Any]] = []
    held = 0
    for rollout in rollouts:
        whose = {"rollout_id": rollout.rollout_id, "generation": rollout.generation}
        messages = MessageRows()
        for call in rollout.calls:
            for row in messages.of(call.call_index, _exchange(call)):
                rows.append({**whose, "call_index": call.call_index, **row})
                held += len(row["content"] or "") + len(row["reasoning"] or "")
                if len(rows) >= BATCH_ROWS or held >= BATCH_BYTES:
                    yield pa.RecordBatch.from_pylist(rows, schema=MESSAGES)
                    rows, held = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=MESSAGES)


BUILDERS: dict[str, tuple[Any, Callable[[Iterable[CapturedRollout]], Iterator[Any]]]] = {
    "rollouts": (ROLLOUTS, rollout_batches),
    "calls": (CALL_COLUMNS, call_batches),
    "messages": (MESSAGES, message_batches),
}
"""Each table's schema and how it is built."""


def _rollout_row(rollout: CapturedRollout) -> dict[str, Any]:
    calls = failed = raw_bytes = 0
    sums: dict[str, int | None] = dict.fromkeys(("tokens_in", "tokens_out", "cached_tokens"))
    started: list[float] = []
    completed: list[float] = []
    models: dict[str, None] = {}
    for call in rollout.calls:
        fields = _fields(call)
        calls += 1
        raw_bytes += call.raw_bytes
        failed += fields.get("error_category") is not None
        for name, total in sums.items():
            if (value := fields.get(name)) is not None:
                sums[name] = (total or 0) + value
        started += [value for value in (fields.get("started_at"),) if value is not None]
        completed += [value for value in (fields.get("completed_at"),) if value is not None]
        if fields.get("model") is not None:
            models[fields["model"]] = None
    damaged = max(0, rollout.indexes - calls)
    incomplete = None if rollout.reasons is None else incomplete_detail(rollout.reasons) or "marked"
    gaps = {
        NO_RECORDS: not rollout.indexes and incomplete is None,
        RECORDS_UNREADABLE: damaged > 0,
        INCOMPLETE: incomplete is not None,
        PENDING: rollout.outstanding > 0,
    }
    return {
        "rollout_id": rollout.rollout_id,
        "generation": rollout.generation,
        "calls": calls,
        "failed_calls": failed,
        "damaged_calls": damaged,
        "outstanding": rollout.outstanding,
        "incomplete": incomplete,
        "gaps": [code for code, there in gaps.items() if there],
        "started_at": min(started, default=None),
        "completed_at": max(completed, default=None),
        **{name: value if value is None or value <= _MOST else None for name, value in sums.items()},
        "models": list(models),
        "raw_bytes": raw_bytes,
    }


def _fields(call: CapturedCall) -> dict[str, Any]:
    try:
        return call.fields()
    except DamagedLog:
        return {}


def _exchange(call: CapturedCall) -> dict[str, Any]:
    try:
        return call.exchange()
    except DamagedLog:
        return {}
