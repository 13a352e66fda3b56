"""Merge: attaching what was captured of a rollout to its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gym_capture.model import gaps
from gym_capture.model.observation_join import join_observations
from gym_capture.model.record import PAYLOAD_FIELDS
from gym_capture.model.verifiers import resolve_verifiers, split_metrics

CAPTURE_KEY = "ng_model_call_capture"
OBSERVATIONS_KEY = "ng_agent_observations"


@dataclass(slots=True)
class RolloutEvidence:
    """What is known of one generation of one rollout.

    Args:
        rollout_id: its id.
        records: `record_view`s in call order, with payloads when they are to be shown.
        verifier_declarations: `(invocation_id, name)` as the exchanges declare them, in call order.
        damaged: entries that could not be read; each keeps its call index.
        incomplete: None when nothing is known to be missing; else how many calls each reason concerns, empty for a
            plain marker without reasons.
        outstanding: claims that were open when this was read.
        unreadable: the capture could not be read at all, or its live owner not be reached.
    """

    rollout_id: str
    records: list[dict[str, Any]]
    verifier_declarations: list[tuple[str, str]] = field(default_factory=list)
    damaged: int = 0
    incomplete: dict[str, int] | None = None
    outstanding: int = 0
    unreadable: bool = False


def attach_capture(record: dict[str, Any], evidence: RolloutEvidence, include_payloads: bool = False) -> dict[str, Any]:
    """Set `ng_model_call_capture` on a rollout record, and resolve the references of its observations.

    Args:
        record: the rollout record, changed in place; its response and reward are not touched.
        evidence: what was captured under the record's id.
        include_payloads: whether calls show the payloads that `evidence.records` hold.

    Returns:
        The same record. Observations that don't validate or join stay as they were, and a gap says so.
    """
    capture = capture_value(evidence, include_payloads)
    observations = record.get(OBSERVATIONS_KEY)
    if observations is not None:
        try:
            record[OBSERVATIONS_KEY] = join_observations(observations, evidence.records)
        except Exception:  # noqa: BLE001 - a harness's data of any shape: it never costs the capture, the gap says so
            capture.setdefault("gaps", []).append(gaps.gap(gaps.JOIN_FAILED))
    record[CAPTURE_KEY] = capture
    return record


def capture_value(evidence: RolloutEvidence, include_payloads: bool = False) -> dict[str, Any]:
    """`{rollout_id, metrics, calls, verifiers?, gaps?}`: what is attached, before any join of observations."""
    verifiers, conflicts = resolve_verifiers(evidence.verifier_declarations)
    metrics, verifier_metrics = split_metrics(evidence.records, verifiers)
    value: dict[str, Any] = {
        "rollout_id": evidence.rollout_id,
        "metrics": metrics,
        "calls": [_shown(record, include_payloads) for record in evidence.records],
    }
    if verifier_metrics:
        value["verifiers"] = verifier_metrics
    found = gaps.evidence_gaps(
        records=bool(evidence.records),
        damaged=evidence.damaged,
        incomplete=evidence.incomplete,
        outstanding=evidence.outstanding,
        unreadable=evidence.unreadable,
    ) + [gaps.gap(gaps.VERIFIER_CONFLICT, each) for each in conflicts]
    if found:
        value["gaps"] = found
    return value


def _shown(record: dict[str, Any], include_payloads: bool) -> dict[str, Any]:
    shown = dict(record)
    if not include_payloads:
        for name in PAYLOAD_FIELDS:
            shown.pop(name, None)
    return shown
