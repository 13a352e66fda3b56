"""Which rollout the request that is being handled belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_rollout: ContextVar[str | None] = ContextVar("gym_capture.current_rollout", default=None)


@contextmanager
def in_hand(rollout_id: str) -> Iterator[None]:
    """The block handles a request of that rollout."""
    before = _rollout.set(rollout_id)
    try:
        yield
    finally:
        try:
            _rollout.reset(before)
        except ValueError:
            pass  # the request's coroutine is destroyed from another context, which never saw the rollout


def current_rollout_id() -> str | None:
    """The rollout of the request that is handled here; None outside of one, and for requests of no rollout.

    Known in handlers, in their tasks and in the threads that they run in.
    """
    return _rollout.get()
