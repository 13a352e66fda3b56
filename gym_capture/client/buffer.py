"""The bytes of exchanges that a client may hold, and the commits that wait for room. Pure."""

from __future__ import annotations

from collections import deque

from gym_capture.client.operations import Commit


class Buffer:
    """Room for exchanges.

    Args:
        capacity: bytes in all. One exchange always fits into an empty buffer.

    Attributes:
        held: bytes taken.
        waiting: commits that wait for room, in order.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held = 0
        self.waiting: deque[Commit] = deque()

    def take(self, commit: Commit, size: int) -> bool:
        """Take room for a commit; False when there is none."""
        if self.held and self.held + size > self.capacity:
            return False
        self.held += size
        commit.held_bytes = size
        return True

    def resize(self, commit: Commit, size: int) -> None:
        """The commit's exchange takes other room now (it was compressed)."""
        self.held += size - commit.held_bytes
        commit.held_bytes = size

    def free(self, commit: Commit) -> None:
        """The commit's exchange is gone."""
        self.held -= commit.held_bytes
        commit.held_bytes = 0
