"""Which rollout the request that is being handled belongs to."""

from __future__ import annotations

from contextvars import ContextVar

rollout_in_hand: ContextVar[str | None] = ContextVar("gym_capture.current_rollout", default=None)


def current_rollout_id() -> str | None:
    """The rollout of the request that is handled here; None outside of one, and for requests of no rollout.

    Known in handlers, in their tasks and in the threads that they run in.
    """
    return rollout_in_hand.get()
