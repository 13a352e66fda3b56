"""Which frames were seen, in little memory: sequences of one epoch mostly follow one another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence


class SequenceSet:
    """A set of (epoch, sequence), kept as runs."""

    def __init__(self) -> None:
        self._starts: dict[int, list[int]] = {}
        self._ends: dict[int, list[int]] = {}

    @classmethod
    def of(cls, runs: Mapping[int, Sequence[tuple[int, int]]]) -> SequenceSet:
        """A set made of its `runs`."""
        made = cls()
        for epoch, each in runs.items():
            made._starts[epoch] = [start for start, _ in each]
            made._ends[epoch] = [end for _, end in each]
        return made

    def runs(self) -> dict[int, list[tuple[int, int]]]:
        """The first and last sequence of each run, by epoch."""
        return {epoch: list(zip(starts, self._ends[epoch], strict=True)) for epoch, starts in self._starts.items()}

    def has(self, epoch: int, sequence: int) -> bool:
        """Whether it was added."""
        starts = self._starts.get(epoch)
        if not starts:
            return False
        index = bisect_right(starts, sequence) - 1
        return index >= 0 and sequence <= self._ends[epoch][index]

    def add(self, epoch: int, sequence: int) -> None:
        """Add one; again is fine."""
        starts = self._starts.setdefault(epoch, [])
        ends = self._ends.setdefault(epoch, [])
        if ends and sequence == ends[-1] + 1:
            ends[-1] = sequence
            return
        index = bisect_right(starts, sequence) - 1
        if index >= 0 and sequence <= ends[index]:
            return
        if index >= 0 and sequence == ends[index] + 1:
            ends[index] = sequence
            return
        starts.insert(index + 1, sequence)
        ends.insert(index + 1, sequence)
