"""Which frames were seen, in little memory: sequences of one epoch mostly follow one another."""

from __future__ import annotations

from bisect import bisect_right


class SequenceSet:
    """A set of (epoch, sequence), kept as runs."""

    def __init__(self) -> None:
        self._starts: dict[int, list[int]] = {}
        self._ends: dict[int, list[int]] = {}

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
