"""What became of one call's exchange."""

from __future__ import annotations

from enum import StrEnum

from gym_capture.model.rows import Outcome


class CallOutcome(StrEnum):
    """What became of a call, once its block is left.

    `durable`: on disk. `duplicate`: the same exchange was on disk before. `fenced`: the generation was cleared, nothing
    was written. `refused`: too large, or another exchange stands under its model_call_id; the rollout is marked.
    `buffered`: the owner is away, the exchange waits in this process. `dropped`: lost, because the owner stayed away
    and the buffer is full (or the client was closed); counted and journaled when the owner is back. `released`: the
    claim was closed without an exchange.
    """

    DURABLE = "durable"
    DUPLICATE = "duplicate"
    FENCED = "fenced"
    REFUSED = "refused"
    BUFFERED = "buffered"
    DROPPED = "dropped"
    RELEASED = "released"


_OF_ROW = {
    Outcome.APPLIED: CallOutcome.DURABLE,
    Outcome.DUPLICATE: CallOutcome.DUPLICATE,
    Outcome.FENCED: CallOutcome.FENCED,
}


def outcome_of(outcome: int) -> CallOutcome:
    """The call's outcome for the owner's answer to its row (`rows.Outcome`)."""
    return _OF_ROW.get(outcome, CallOutcome.REFUSED)  # type: ignore[call-overload,no-any-return]  # an int of the wire
