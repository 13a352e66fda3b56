"""Whether a parser's time grows as its input does."""

from __future__ import annotations

import time

from tests.limits.hostile import Hostile

FACTOR = 10
ALLOWED = 40.0
"""For ten times the input: linear is 10, caches and allocators make it up to 20, quadratic is 100."""
NOISE_S = 0.02


def seconds(case: Hostile, size: int) -> float:
    """CPU seconds of one parse, the best of some."""
    best = float("inf")
    for _ in range(3):
        given = case.make(size)
        begun = time.process_time()
        case.parse(given)
        best = min(best, time.process_time() - begun)
    return best


def times(case: Hostile) -> tuple[float, float]:
    """CPU seconds for the case's size, and for ten times as much."""
    return seconds(case, case.size), seconds(case, case.size * FACTOR)


def is_linear(small: float, large: float) -> bool:
    """Whether two such times are of a linear parser."""
    return large <= ALLOWED * small + NOISE_S
