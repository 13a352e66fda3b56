"""How long something took, counted in fixed buckets: plain integers, no sample is kept."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets, seconds; a last bucket holds what took longer."""


class Latency:
    """A histogram of seconds.

    Attributes:
        buckets: how many fell into each bucket, the last one above every bound.
        seconds: their sum.
    """

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.seconds = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """`count` of them took so long each."""
        self.buckets[bisect_left(BOUNDS_S, seconds)] += count
        self.seconds += seconds * count


class BatchLatency:
    """From a batch's arrival until it is known to be on disk and is answered, for each claim and commit in it."""

    __slots__ = ("claims", "commits")

    def __init__(self) -> None:
        self.claims = Latency()
        self.commits = Latency()

    def add(self, seconds: float, claims: int, commits: int) -> None:
        """A batch with so many claims and commits took so long."""
        if claims:
            self.claims.add(seconds, claims)
        if commits:
            self.commits.add(seconds, commits)
