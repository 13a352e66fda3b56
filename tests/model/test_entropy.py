"""Randomness comes from the system and disturbs nobody's seeded generator."""

from __future__ import annotations

import random

from gym_capture.model.entropy import SystemEntropy


def test_it_neither_reads_nor_moves_the_shared_generator() -> None:
    entropy = SystemEntropy()
    random.seed(7)
    state = random.getstate()
    drawn = {entropy.uniform(0.0, 1.0) for _ in range(4)}
    assert random.getstate() == state
    random.seed(7)
    assert drawn.isdisjoint({entropy.uniform(0.0, 1.0) for _ in range(4)})
    assert all(0.0 <= value < 1.0 for value in drawn)
