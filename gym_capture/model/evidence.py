"""From stored records to what a merge attaches: the one way, for the owner's replies and for a directory alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gym_capture.model.exchange import open_record
from gym_capture.model.merge import RolloutEvidence
from gym_capture.model.record import record_view


def gather_evidence(
    rollout_id: str,
    records: Iterable[tuple[int, bytes]],
    *,
    payloads: Mapping[int, Mapping[str, Any]] | None = None,
    damaged: int = 0,
    incomplete: dict[str, int] | None = None,
    outstanding: int = 0,
    unreadable: bool = False,
) -> RolloutEvidence:
    """What is known of one rollout, ready for `merge.attach_capture`.

    Args:
        records: (call index, RECORD part as `exchange.open_part` gives it) in call order.
        payloads: payload values by call index when they are to be shown; an entry that is missing there could not be
            read, counts as damaged and is left out.
        damaged: entries that are known to be unreadable already.
        incomplete, outstanding, unreadable: as in `RolloutEvidence`.
    """
    evidence = RolloutEvidence(
        rollout_id, [], damaged=damaged, incomplete=incomplete, outstanding=outstanding, unreadable=unreadable
    )
    for index, data in records:
        fields, declaration = open_record(data)
        if declaration is not None:
            evidence.verifier_declarations.append(declaration)
        if payloads is not None and index not in payloads:
            evidence.damaged += 1
            continue
        evidence.records.append(record_view(fields, index, payloads[index] if payloads is not None else None))
    return evidence
