"""A directory that NeMo Gym's file store wrote, read where it lies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gym_capture.model.captured import CapturedCall
from gym_capture.model.rollout_state import RolloutState
from gym_capture.model.shards import shard_of
from gym_capture.storage import names
from gym_capture.storage.files import Files
from gym_capture.storage.nemo_gym import call_of_line, read_nemo_gym_lines, split_lines


def log_knows(state: RolloutState | None) -> bool:
    """Whether the log knows a rollout, so that it alone counts and not what lies beside it."""
    return state is not None and state.known


class NemoGymFiles:
    """The capture files and incompleteness markers among a directory's files. Reads only.

    Args:
        files: the run's directory.
        shard, shards: only those of this shard's rollouts are listed.
    """

    def __init__(self, files: Files, shard: int = 0, shards: int = 1) -> None:
        self._files = files
        self._shard = shard
        self._shards = shards

    def rollout_ids(self) -> set[str]:
        """The ids that have a file or a marker."""
        listed = names.nemo_gym_rollouts_in(self._files.names())
        return {each for each in listed if shard_of(each, self._shards) == self._shard}

    def exchanges(self, rollout_id: str) -> tuple[list[tuple[int, dict[str, Any]]], int]:
        """The exchanges with their call index, and how many lines are damaged. No file: none."""
        try:
            data = self._files.read(names.nemo_gym_file(rollout_id))
        except FileNotFoundError:
            return [], 0
        return read_nemo_gym_lines(data)

    def calls(self, rollout_id: str, *, strict: bool = True) -> tuple[Iterator[CapturedCall], int]:
        """The exchanges with the exact bytes of their bodies, and how many lines there are, damaged ones among them.

        Args:
            strict: see `call_of_line`.
        """
        try:
            lines = split_lines(self._files.read(names.nemo_gym_file(rollout_id)))
        except FileNotFoundError:
            lines = []
        calls = (call_of_line(index, line, strict=strict) for index, line in enumerate(lines))
        return (call for call in calls if call is not None), len(lines)

    def is_incomplete(self, rollout_id: str) -> bool:
        """Whether the marker is there."""
        return self._exists(names.nemo_gym_incomplete_file(rollout_id))

    def has(self, rollout_id: str) -> bool:
        """Whether anything of the rollout is there."""
        return self._exists(names.nemo_gym_file(rollout_id)) or self.is_incomplete(rollout_id)

    def _exists(self, name: str) -> bool:
        try:
            self._files.size(name)
        except FileNotFoundError:
            return False
        return True
