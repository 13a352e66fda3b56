"""Rollouts that are not in memory: what is on disk of each, in a few dozen bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gym_capture.model.pages import is_incomplete


class Archive:
    """Evicted rollouts by id, each as `pages.pack_archived` packs it.

    Args:
        packed: those that a checkpoint knows; taken over.

    Attributes:
        incomplete: how many of them are incomplete.
    """

    def __init__(self, packed: dict[str, bytes] | None = None) -> None:
        self._packed = {} if packed is None else packed
        self.incomplete = sum(map(is_incomplete, self._packed.values()))

    def __contains__(self, rollout_id: str) -> bool:
        return rollout_id in self._packed

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    @property
    def packed(self) -> Mapping[str, bytes]:
        """All of them."""
        return self._packed

    def get(self, rollout_id: str) -> bytes | None:
        """One of them; None: it is in memory, or unknown."""
        return self._packed.get(rollout_id)

    def add(self, rollout_id: str, packed: bytes) -> None:
        """A rollout leaves the memory."""
        self._packed[rollout_id] = packed
        self.incomplete += is_incomplete(packed)

    def take(self, rollout_id: str) -> None:
        """A rollout is in memory again."""
        self.incomplete -= is_incomplete(self._packed.pop(rollout_id))
