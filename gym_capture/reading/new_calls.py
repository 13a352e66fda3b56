"""The calls that a live directory gained since one looked last."""

from __future__ import annotations

import msgspec

from gym_capture.reading.call_figures import CallFigures, call_figures
from gym_capture.storage.standing import RolloutStanding
from gym_capture.storage.store import CaptureStore


class NewCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was committed."""

    rollout_id: str
    generation: int
    call: CallFigures


class NewCalls:
    """Follows a store. On a live directory it may show a call that is written and not yet acknowledged.

    Args:
        store: refreshed by `take`.
        text: only rollouts whose id has this in it, in upper or lower case.
    """

    def __init__(self, store: CaptureStore, text: str = "") -> None:
        self._store = store
        self._text = text.lower()
        self._seen: dict[str, tuple[int, int]] = {}
        for standing in self._followed():
            self._seen[standing.rollout_id] = (standing.generation, self._count(standing))

    def take(self) -> list[NewCall]:
        """Refresh the store, and the calls that came since the last time: by their end, as far as it is known.

        Raises:
            OSError: a file could not be read.
        """
        self._store.refresh()
        found: list[NewCall] = []
        for standing in self._followed():
            generation, first = self._seen.get(standing.rollout_id, (standing.generation, 0))
            if generation != standing.generation:
                first = 0
            if standing.calls is not None and standing.calls <= first and generation == standing.generation:
                continue
            for call in call_figures(self._store, standing.rollout_id, first):
                found.append(NewCall(rollout_id=standing.rollout_id, generation=standing.generation, call=call))
                first = call.call_index + 1
            self._seen[standing.rollout_id] = (standing.generation, max(first, standing.calls or 0))
        found.sort(key=lambda each: each.call.completed_at or each.call.begin or 0.0)
        return found

    def last(self, count: int) -> list[NewCall]:
        """The newest calls that are there already, the newest last; what does not say when it ended is left out."""
        ended = [
            NewCall(rollout_id=standing.rollout_id, generation=standing.generation, call=call)
            for standing in self._followed()
            for call in call_figures(self._store, standing.rollout_id)
            if call.completed_at is not None
        ]
        ended.sort(key=lambda each: each.call.completed_at or 0.0)
        return ended[-count:] if count else []

    def _followed(self) -> list[RolloutStanding]:
        return [each for each in self._store.standings() if self._text in each.rollout_id.lower()]

    def _count(self, standing: RolloutStanding) -> int:
        if standing.calls is not None:
            return standing.calls
        # A NeMo Gym file says how many calls it has only when it is read.
        return 1 + max((call.call_index for call in call_figures(self._store, standing.rollout_id)), default=-1)


__all__ = ["NewCall", "NewCalls"]
