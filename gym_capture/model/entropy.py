"""Randomness as an interface, so that a simulation can give its own."""

from __future__ import annotations

import os
import random
from typing import Protocol


class Entropy(Protocol):
    """Where ids, tokens and jitter come from."""

    def bytes(self, count: int) -> bytes:
        """`count` unpredictable bytes."""

    def uniform(self, low: float, high: float) -> float:
        """A number in [low, high), for jitter."""


class SystemEntropy:
    """The operating system's. It leaves the process's shared generator alone, which programs seed for themselves."""

    _random = random.SystemRandom()

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)
