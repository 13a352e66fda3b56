"""The calls that a live directory gained since one looked last."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from gym_capture.reading.call_figures import CallFigures, call_figures
from gym_capture.storage.names import nemo_gym_file
from gym_capture.storage.standing import RolloutStanding
from gym_capture.storage.store import CaptureStore


class NewCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was committed."""

    rollout_id: str
    generation: int
    call: CallFigures


_Stat = tuple[int, int, int]


class _Seen(NamedTuple):
    """Up to where a rollout was told, and inode, size and time of its NeMo Gym file by then."""

    generation: int
    calls: int
    file: _Stat | None = None


class NewCalls:
    """Follows a store. On a live directory it may show a call that is written and not yet acknowledged.

    Args:
        store: refreshed by `take`.
        text: only rollouts whose id has this in it, in upper or lower case.
    """

    def __init__(self, store: CaptureStore, text: str = "") -> None:
        self._store = store
        self._text = text.lower()
        self._seen: dict[str, _Seen] = {}
        for standing in self._followed():
            file = self._file_of(standing)
            self._seen[standing.rollout_id] = _Seen(standing.generation, self._count(standing), file)

    def take(self) -> list[NewCall]:
        """Refresh the store, and the calls that came since the last time: by their end, as far as it is known.

        Raises:
            OSError: a file could not be read.
        """
        self._store.refresh()
        found: list[NewCall] = []
        for standing in self._followed():
            seen = self._seen.get(standing.rollout_id, _Seen(standing.generation, 0))
            goes_on = seen.generation == standing.generation
            first = seen.calls if goes_on else 0
            file = self._file_of(standing)  # before it is read, so that what comes meanwhile is seen the next time
            told = file is not None and file == seen.file if standing.calls is None else standing.calls <= first
            if goes_on and told:
                continue
            for call in call_figures(self._store, standing.rollout_id, first):
                found.append(NewCall(rollout_id=standing.rollout_id, generation=standing.generation, call=call))
                first = call.call_index + 1
            self._seen[standing.rollout_id] = _Seen(standing.generation, max(first, standing.calls or 0), file)
        found.sort(key=lambda each: each.call.completed_at or each.call.begin or 0.0)
        return found

    def last(self, count: int) -> list[NewCall]:
        """The newest calls that are there already, the newest last; what does not say when it ended is left out."""
        if not count:
            return []  # when calls ended stands in their records alone: all of them would be read
        newest = heapq.nlargest(count, enumerate(self._ended()), lambda each: (each[1].call.completed_at, each[0]))
        return [each for _, each in reversed(newest)]

    def _ended(self) -> Iterator[NewCall]:
        for standing in self._followed():
            for call in call_figures(self._store, standing.rollout_id):
                if call.completed_at is not None:
                    yield NewCall(rollout_id=standing.rollout_id, generation=standing.generation, call=call)

    def _followed(self) -> list[RolloutStanding]:
        return [each for each in self._store.standings() if self._text in each.rollout_id.lower()]

    def _file_of(self, standing: RolloutStanding) -> _Stat | None:
        """What tells that a NeMo Gym file has grown, which its rollout's standing does not."""
        if standing.calls is not None:
            return None
        try:
            stat = os.stat(os.path.join(self._store.directory, nemo_gym_file(standing.rollout_id)))
        except OSError:
            return None  # reading it says why
        return stat.st_ino, stat.st_size, stat.st_mtime_ns

    def _count(self, standing: RolloutStanding) -> int:
        if standing.calls is not None:
            return standing.calls
        # A NeMo Gym file says how many calls it has only when it is read.
        return 1 + max((call.call_index for call in call_figures(self._store, standing.rollout_id)), default=-1)


__all__ = ["NewCall", "NewCalls"]
