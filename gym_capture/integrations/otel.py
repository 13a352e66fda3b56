"""Captured rollouts as OpenTelemetry spans: one for each rollout, and in it one for each model call. Extra `otel`.

They are made from what was captured, after the fact, with the times that it has. Trace and span ids are digests of
what they stand for, so a rollout that is exported again is the same trace. Nothing is dropped in silence: an exporter
that refuses ends the export with an error.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gym_capture import __version__
from gym_capture.errors import GymCaptureError, MissingExtra
from gym_capture.extras import how_to_install
from gym_capture.integrations.genai_attributes import Attribute, call_attributes, call_name, cleaned
from gym_capture.model.gaps import evidence_gaps
from gym_capture.model.record import derive_fields
from gym_capture.reading.rollout_status import status_of
from gym_capture.storage.store import CaptureStore

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
except ImportError as error:
    raise MissingExtra(
        "spans need OpenTelemetry's SDK and its OTLP exporter over HTTP, which are not installed. Nothing was sent or "
        f"changed; {how_to_install('otel')}"
    ) from error

BATCH_SPANS = 256
"""Spans handed to the exporter at once."""

BATCH_CHARACTERS = 2_000_000
"""Text of such a batch, or one span more: receivers refuse requests that are too large."""

_SCOPE = InstrumentationScope("gym_capture", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)

_NS = 1_000_000_000
_LATEST_S = 2**62 // _NS


class Exported(NamedTuple):
    """What an export sent: how many `rollouts` and `calls`, and how many calls are `damaged` and could not be."""

    rollouts: int
    calls: int
    damaged: int


class _Call(NamedTuple):
    """One call: its attributes, and when it began and ended (Unix nanoseconds; None: it does not say)."""

    call_index: int
    attributes: dict[str, Attribute]
    began: int | None
    ended: int | None


def export_spans(
    store: CaptureStore,
    exporter: SpanExporter | None = None,
    *,
    rollout_ids: Iterable[str] | None = None,
    content: bool = False,
) -> Exported:
    """Send a directory's calls as spans. Blocks; reads one rollout at a time.

    Args:
        exporter: any of the SDK's; None: OTLP over HTTP, to where `OTEL_EXPORTER_OTLP_ENDPOINT` and its kin say (a
            collector on this host unless they are set). One that is given is not shut down. `OTEL_SERVICE_NAME`
            names the service, `gym_capture` unless it is set.
        rollout_ids: those to send; None: all.
        content: send what was said, too: prompts, answers, tool calls. Off: models, tokens, times and errors alone.

    Raises:
        GymCaptureError: the exporter did not take a batch; what was sent before it stays sent.
    """
    to = exporter or OTLPSpanExporter()
    run = store.run or store.directory  # NeMo Gym's files have no run
    service = os.environ.get("OTEL_SERVICE_NAME") or "gym_capture"
    resource = Resource.create({"service.name": service, "gym_capture.run": run})
    batch = _Batch(to)
    counted = Exported(0, 0, 0)
    try:
        for rollout_id in [each.rollout_id for each in store.standings()] if rollout_ids is None else rollout_ids:
            spans, damaged = _spans_of(resource, store, run, rollout_id, content)
            for span in spans:
                batch.add(span)
            counted = Exported(counted.rollouts + 1, counted.calls + len(spans) - 1, counted.damaged + damaged)
        batch.send()
    finally:
        if exporter is None:
            to.shutdown()
    return counted


class _Batch:
    """Spans on their way to an exporter."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._spans: list[ReadableSpan] = []
        self._characters = 0
        self._sent = 0

    def add(self, span: ReadableSpan) -> None:
        """Take one more, and send when there are enough."""
        self._spans.append(span)
        self._characters += sum(len(value) for value in (span.attributes or {}).values() if isinstance(value, str))
        if len(self._spans) >= BATCH_SPANS or self._characters >= BATCH_CHARACTERS:
            self.send()

    def send(self) -> None:
        """Send what there is.

        Raises:
            GymCaptureError: it was refused.
        """
        if self._spans and self._exporter.export(tuple(self._spans)) is not SpanExportResult.SUCCESS:
            raise GymCaptureError(
                f"the receiver of the spans did not take them, after {self._sent} spans. Nothing was changed here; see "
                "that it is up (OTEL_EXPORTER_OTLP_ENDPOINT says where it is looked for) and send them again: those "
                "that it has keep their trace and span ids."
            )
        self._sent += len(self._spans)
        self._spans.clear()
        self._characters = 0


def _spans_of(
    resource: Resource, store: CaptureStore, run: str, rollout_id: str, content: bool
) -> tuple[Sequence[ReadableSpan], int]:
    """A rollout's own span, then those of its calls; and how many of these are damaged."""
    generation = store.generation(rollout_id)
    exchanges, damaged = store.read_indexed(rollout_id)
    calls = [_call(index, exchange, content) for index, exchange in exchanges]
    times = [moment for call in calls for moment in (call.began, call.ended) if moment is not None]
    now = time.time_ns()
    first, last = min(times, default=now), max(times, default=now)
    identity = f"{run}/{rollout_id}/{generation}"
    trace = int.from_bytes(_digest(identity)[:16]) or 1

    def context(what: str) -> SpanContext:
        number = int.from_bytes(_digest(f"{identity}/{what}")[:8]) or 1
        return SpanContext(trace, number, is_remote=False, trace_flags=_SAMPLED)

    root = context("rollout")
    common = {"gym_capture.rollout_id": rollout_id, "gym_capture.generation": generation}
    spans = [
        ReadableSpan(
            name="rollout",
            context=root,
            resource=resource,
            attributes=cleaned({**common, **_evidence(store, rollout_id, len(exchanges), damaged)}),
            kind=SpanKind.INTERNAL,
            start_time=first,
            end_time=last,
            instrumentation_scope=_SCOPE,
        )
    ]
    for call in calls:
        error = call.attributes.get("error.type")
        began = first if call.began is None else call.began
        own = {**common, "gen_ai.conversation.id": rollout_id, "gym_capture.call_index": call.call_index}
        spans.append(
            ReadableSpan(
                name=call_name(call.attributes),
                context=context(f"call/{call.call_index}"),
                parent=root,
                resource=resource,
                attributes={**call.attributes, **cleaned(own)},
                kind=SpanKind.CLIENT,
                status=Status(StatusCode.ERROR, str(error)) if error else Status(),
                start_time=began,
                end_time=max(began, began if call.ended is None else call.ended),
                instrumentation_scope=_SCOPE,
            )
        )
    return spans, damaged


def _call(index: int, exchange: Mapping[str, Any], content: bool) -> _Call:
    fields = derive_fields(exchange)
    began, ended, took = (_nanoseconds(fields[name]) for name in ("started_at", "completed_at", "latency_total_ms"))
    took = None if took is None else took // 1000
    if began is None and ended is not None and took is not None:
        began = ended - took
    if began is not None and took is not None:
        ended = began + took
    return _Call(index, call_attributes(exchange, fields, content=content), began, ended)


def _nanoseconds(seconds: float | None) -> int | None:
    """Whole nanoseconds; None for what no clock says."""
    return int(seconds * _NS) if seconds is not None and 0 <= seconds < _LATEST_S else None


def _evidence(store: CaptureStore, rollout_id: str, calls: int, damaged: int) -> dict[str, Any]:
    """How whole the rollout is."""
    standing = store.standing(rollout_id)
    gaps = evidence_gaps(
        records=calls > 0, damaged=damaged, incomplete=standing.reasons, outstanding=standing.outstanding
    )
    status = status_of(
        calls=calls + damaged, damaged=damaged, reasons=standing.reasons, outstanding=standing.outstanding
    )
    return {"gym_capture.status": status, "gym_capture.gaps": [gap["code"] for gap in gaps]}


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


__all__ = ["Exported", "export_spans"]
