"""Every state that a directory passes through while owners write in it, and a reader for whom it goes on changing."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from random import Random

from gym_capture.storage.names import segments_in
from gym_capture.testing.faulty_files import FaultyDisk, FaultyFiles

State = dict[str, bytes]


@dataclass
class History:
    """What was there, one step of one owner after another.

    Attributes:
        states: the directory's files after each step; an append is several steps, as a reader may see part of it.
        acknowledged: beside each state, the calls that were acknowledged by then.
    """

    random: Random
    disk: FaultyDisk = field(default_factory=FaultyDisk)
    states: list[State] = field(default_factory=lambda: [{}])
    acknowledged: list[frozenset[str]] = field(default_factory=lambda: [frozenset()])

    def view(self) -> RecordedFiles:
        """An owner's view, each of whose steps is a state."""
        return RecordedFiles(self)

    def acknowledge(self, call: str) -> None:
        """From now on this call has to be there."""
        self._note(self.states[-1], self.acknowledged[-1] | {call})

    def step(self) -> None:
        """Something may have been written."""
        before = self.states[-1]
        now = {name: bytes(inode.cache) for name, inode in self.disk._entries.items()}
        if now == before:
            return
        for name, data in now.items():
            earlier = before.get(name, b"")
            grown = len(data) - len(earlier)
            if segments_in([name]) and grown > 1:
                for length in sorted(self.random.sample(range(1, grown), min(2, grown - 1))):
                    self._note({**before, name: data[: len(earlier) + length]}, self.acknowledged[-1])
        self._note(now, self.acknowledged[-1])

    def _note(self, state: State, acknowledged: frozenset[str]) -> None:
        self.states.append(state)
        self.acknowledged.append(acknowledged)


class RecordedFiles(FaultyFiles):
    """An owner's view."""

    def __init__(self, history: History) -> None:
        super().__init__(history.disk)
        self._history = history

    def reach(self, point: str) -> None:
        self._history.step()
        super().reach(point)
        self._history.step()


class PassingFiles(FaultyFiles):
    """A reader's view of a history: time passes between its own calls, and while it lists the directory.

    Args:
        hurry: how many states go by at most with each call; 0: the directory stands still.
    """

    def __init__(self, history: History, random: Random, *, hurry: int) -> None:
        super().__init__(history.disk)
        self._history = history
        self._random = random
        self.hurry = hurry
        self.now = 0

    @property
    def last(self) -> int:
        """The last state's number."""
        return len(self._history.states) - 1

    def names(self) -> list[str]:
        """File names; of those that come up meanwhile any may be listed or not."""
        there = set(self._state())
        return sorted(there | {name for name in self._state() if name not in there and self._random.random() < 0.5})

    def pass_time(self) -> None:
        """Some states go by, or none."""
        self._state()

    def _state(self) -> State:
        state = self._history.states[self.now]
        if self._random.random() < 0.3:  # in bursts, as when the reader was stopped for a while
            self.now = min(self.last, self.now + self._random.randint(0, self.hurry))
        return state

    def _data(self, name: str) -> bytearray:
        data = self._state().get(name)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return bytearray(data)
