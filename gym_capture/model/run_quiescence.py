"""Whether a run of several shards is quiescent, from what each shard says of itself. A pure state machine.

Every shard is asked in rounds; a round begins when all answers of the one before are there. A shard answers once it has
nothing outstanding, with a `Standing`. A run is quiescent when two rounds in a row bring the same standings.

Why: a shard with the same standing in both rounds has had nothing outstanding from its first answer to its second, for
only what begins can become outstanding, and an owner that began anew has another epoch. All first answers were given
before the second round was asked, so at that moment every shard had nothing outstanding. One round alone does not tell:
a claim may begin in a shard that has answered while another one is still being asked.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Standing(NamedTuple):
    """Where a shard stood when it had nothing outstanding.

    Fields: its owner's `epoch`, and how often something had `begun` to be outstanding in it.
    """

    epoch: int
    begun: int


class Verdict(Enum):
    """What an answer made of the question."""

    WAIT = auto()
    """Answers of this round are missing."""
    ASK_AGAIN = auto()
    """Begin another round."""
    QUIESCENT = auto()


class RunQuiescence:
    """One caller's question after the whole run.

    Args:
        shards: how many there are.
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._before: dict[int, Standing] = {}
        self._now: dict[int, Standing] = {}

    def answer(self, shard: int, standing: Standing) -> Verdict:
        """A shard's answer to the question of this round. After `ASK_AGAIN` the next round begins."""
        self._now[shard] = standing
        if len(self._now) < self._shards:
            return Verdict.WAIT
        if self._now == self._before:
            return Verdict.QUIESCENT
        self._before, self._now = self._now, {}
        return Verdict.ASK_AGAIN
