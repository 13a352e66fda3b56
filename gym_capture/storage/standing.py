"""What a capture directory knows of a rollout before any of its records is read."""

from __future__ import annotations

from typing import NamedTuple

from gym_capture.model.pages import ArchivedPage
from gym_capture.model.rollout_state import Claim, RolloutState


class RolloutStanding(NamedTuple):
    """One rollout's current generation, from the log's rows alone.

    Args:
        rollout_id: its id.
        generation: 0 until it was first cleared.
        calls: call indexes that were given, damaged ones included. None: it lies in a NeMo Gym file, which says so only
            when it is read.
        damaged: those of them that are in no readable row.
        reasons: incompleteness reasons with their counts; None: nothing is known to be missing.
        outstanding: claims that are open.
        late: rows that landed after a merge and that no merge has returned.
    """

    rollout_id: str
    generation: int
    calls: int | None
    damaged: int = 0
    reasons: dict[str, int] | None = None
    outstanding: int = 0
    late: int = 0


class StoredRecord(NamedTuple):
    """One exchange's RECORD part.

    Args:
        call_index: its place in the rollout.
        record: what `exchange.decode_fields` reads; None: it is damaged.
        stored_bytes: what the exchange takes in the log, all its parts; None: it is in no log.
    """

    call_index: int
    record: bytes | None
    stored_bytes: int | None


class OpenClaim(NamedTuple):
    """A claim that was neither closed nor lost.

    Args:
        rollout_id: its rollout.
        model_call_id: empty when the claim named none.
        opened_at: when the owner logged it, UTC Unix seconds.
    """

    rollout_id: str
    model_call_id: str
    opened_at: float


def standing_of(state: RolloutState) -> RolloutStanding:
    """How a rollout of the ledger stands."""
    # A run may have 100,000 of them, so the view is made only of those that may lack something.
    reasons = state.view().reasons if state.reasons or state.issued else None
    return RolloutStanding(
        state.id, state.generation, state.next_index, state.holes, reasons, len(state.open), state.late
    )


def standing_of_page(rollout_id: str, archived: ArchivedPage) -> RolloutStanding:
    """How a rollout stands that is on disk only and of which there is nothing more to say (`ArchivedPage.plain`)."""
    return RolloutStanding(rollout_id, archived.generation, archived.calls)


def claim_of(claim: Claim) -> OpenClaim:
    """An open claim of the ledger."""
    return OpenClaim(claim.rollout.id, claim.model_call_id, claim.at)
