"""Gaps: named absences of evidence, as they stand in a merged record's `gaps`."""

from __future__ import annotations

from collections.abc import Mapping

Gap = dict[str, str]

NO_RECORDS = "model_call_capture_no_records"
RECORDS_UNREADABLE = "model_call_capture_records_unreadable"
INCOMPLETE = "model_call_capture_incomplete"
PENDING = "model_call_capture_pending"
UNREADABLE = "model_call_capture_unreadable"
JOIN_FAILED = "agent_observation_join_failed"
VERIFIER_CONFLICT = "verifier_invocation_conflict"

REFERENCE_UNMATCHED = "model_call_reference_unmatched"
REFERENCE_AMBIGUOUS = "model_call_reference_ambiguous"
REFERENCE_CONFLICT = "model_call_reference_conflict"
OWNERSHIP_UNAVAILABLE = "model_call_ownership_unavailable"


def gap(code: str, detail: str | None = None) -> Gap:
    """One gap; `detail` is left out when there is none."""
    return {"code": code} if detail is None else {"code": code, "detail": detail}


def evidence_gaps(
    *,
    records: bool,
    damaged: int = 0,
    incomplete: Mapping[str, int] | None = None,
    outstanding: int = 0,
    unreadable: bool = False,
) -> list[Gap]:
    """What a rollout's evidence lacks, in the order in which a merge attaches it.

    Args:
        records: whether any call could be read.
        damaged, incomplete, outstanding, unreadable: as in `merge.RolloutEvidence`.
    """
    found: list[Gap] = []
    if unreadable:
        found.append(gap(UNREADABLE))
    if damaged:
        found.append(gap(RECORDS_UNREADABLE, count_detail(damaged)))
    if incomplete is not None:
        found.append(gap(INCOMPLETE, incomplete_detail(incomplete)))
    elif not (records or damaged or unreadable):
        # Unreadable, nothing is known; then the absence of records says nothing either.
        found.append(gap(NO_RECORDS))
    if outstanding:
        found.append(gap(PENDING, count_detail(outstanding)))
    return found


def count_detail(count: int) -> str:
    """The detail of a gap that counts something: `count=N`."""
    return f"count={count}"


def incomplete_detail(reasons: Mapping[str, int]) -> str | None:
    """Why a rollout is incomplete, as `lost=2, released=1` in the order of the names.

    Args:
        reasons: how many calls each reason concerns; those that concern none, and marks without a reason, are left out.

    Returns:
        None when no reason is left: the rollout was marked, without saying why.
    """
    return ", ".join(f"{name}={count}" for name, count in sorted(reasons.items()) if name and count > 0) or None
