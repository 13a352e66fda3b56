"""One call's figures: what its derived record says, without its payloads, tool calls and reasoning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gym_capture.errors import DamagedLog
from gym_capture.model.exchange import decode_fields
from gym_capture.storage.store import CaptureStore


class CallFigures(msgspec.Struct, kw_only=True, gc=False):
    """Figures of one call. None is unknown, never 0; the names are the record's.

    Args:
        call_index: durable append order in the rollout.
        damaged: its record could not be read; all else but `stored_bytes` is unknown.
        stored_bytes: what the exchange takes in the log; None: it lies in none (sealed, or in a NeMo Gym file).
        started_at, completed_at: UTC Unix seconds.
        latency_total_ms, latency_ttft_ms: milliseconds.
    """

    call_index: int = 0
    damaged: bool = False
    stored_bytes: int | None = None
    model_call_id: str | None = None
    model: str | None = None
    dialect: str | None = None
    status_code: int | None = None
    finish_reason: str | None = None
    error_category: str | None = None
    started_at: float | None = None
    completed_at: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_reasoning: int | None = None
    tokens_total: int | None = None
    cached_tokens: int | None = None
    latency_total_ms: float | None = None
    latency_ttft_ms: float | None = None
    verifier_invocation_id: str | None = None

    @property
    def error(self) -> str | None:
        """The category of a failed call, or its status where it has none; None: it did not fail."""
        if self.error_category is not None:
            return self.error_category
        return f"status {self.status_code}" if self.status_code is not None and self.status_code >= 400 else None

    @property
    def begin(self) -> float | None:
        """When it began, UTC Unix seconds; reckoned back from its end where only that is known."""
        if self.started_at is not None or self.completed_at is None or self.latency_total_ms is None:
            return self.started_at
        return self.completed_at - self.latency_total_ms / 1000

    @property
    def duration_ms(self) -> float | None:
        """How long it took: its latency, else from its start to its end."""
        if self.latency_total_ms is not None:
            return self.latency_total_ms
        if self.started_at is None or self.completed_at is None:
            return None
        return (self.completed_at - self.started_at) * 1000


# Of a run's 200,000 records these fields alone are built; the others are passed over.
_decode = msgspec.msgpack.Decoder(CallFigures).decode
_FIELDS = tuple(name for name in CallFigures.__struct_fields__ if name not in ("call_index", "damaged", "stored_bytes"))


def call_figures(store: CaptureStore, rollout_id: str, first: int = 0) -> Iterator[CallFigures]:
    """The figures of a rollout's calls from index `first` on, in call order. Holes of the log are left out."""
    for stored in store.records(rollout_id, first):
        yield figures_of(stored.call_index, stored.record, stored.stored_bytes)


def figures_of(call_index: int, record: bytes | None, stored_bytes: int | None = None) -> CallFigures:
    """The figures that a RECORD part holds; of a damaged one, that it is.

    Args:
        record: as `StoredRecord` has it.
    """
    try:
        figures = CallFigures(damaged=True) if record is None else _decoded(record)
    except DamagedLog:
        figures = CallFigures(damaged=True)
    figures.call_index = call_index
    figures.stored_bytes = stored_bytes
    return figures


def _decoded(record: bytes) -> CallFigures:
    try:
        return _decode(record)
    except msgspec.MsgspecError:
        # JSON text (integers over 64 bits), or fields of another derivation.
        return figures_of_fields(decode_fields(record))


def figures_of_fields(fields: Mapping[str, Any]) -> CallFigures:
    """The figures that derived fields hold; a field of an unexpected type is unknown."""
    figures = CallFigures()
    for name in _FIELDS:
        value = fields.get(name)
        wanted = str if name in _TEXTS else float if name in _FLOATS else int
        if isinstance(value, int) and wanted is float:
            value = float(value)
        if isinstance(value, wanted) and not isinstance(value, bool):
            setattr(figures, name, value)
    return figures


_TEXTS = frozenset({"model_call_id", "model", "dialect", "finish_reason", "error_category", "verifier_invocation_id"})
_FLOATS = frozenset({"started_at", "completed_at", "latency_total_ms", "latency_ttft_ms"})

__all__ = ["CallFigures", "call_figures", "figures_of", "figures_of_fields"]
