"""What was handed in and is not answered yet, by rollout: quiescence begins at home. Pure."""

from __future__ import annotations


class Unsettled:
    """Counts of rows and exchanges on their way.

    Attributes:
        total: of all rollouts.
        emptied: rollouts whose last one was answered since this was cleared.
    """

    def __init__(self) -> None:
        self.total = 0
        self.emptied: set[str] = set()
        self._of: dict[str, int] = {}

    def hold(self, rollout: str) -> None:
        """One more is on its way."""
        self.total += 1
        self._of[rollout] = self._of.get(rollout, 0) + 1

    def settle(self, rollout: str) -> None:
        """One of them is answered."""
        self.total -= 1
        left = self._of[rollout] - 1
        if left:
            self._of[rollout] = left
        else:
            del self._of[rollout]
            self.emptied.add(rollout)

    def of(self, rollout: str | None) -> int:
        """How many are on their way; None: of all rollouts."""
        return self.total if rollout is None else self._of.get(rollout, 0)
