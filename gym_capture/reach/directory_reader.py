"""Payloads and evidence from the capture directory, where it is mounted: then only the caller pays for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gym_capture.directory.stores import open_store, reading
from gym_capture.errors import GymCaptureError
from gym_capture.model.merge import RolloutEvidence
from gym_capture.reach.blocking_calls import in_thread
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_marker import read_run


class DirectoryReader:
    """A `PayloadReader` and an `EvidenceReader`. Reads in a thread of its own, for the log may be large;
    for a caller that blocks, in the caller's.

    Args:
        directory: the capture directory.
        run: the run's uuid, hex: a directory of another run is not read.
    """

    def __init__(self, directory: str, run: str) -> None:
        self._directory = directory
        self._run = run

    async def read(self, rollout_id: str, generation: int, call_indexes: Sequence[int]) -> dict[int, dict[str, Any]]:
        """The four payload values by call index. What cannot be read here is left out."""
        return await in_thread(lambda: self._read(rollout_id, generation, call_indexes))

    async def read_evidence(
        self, rollout_id: str, generation: int | None, include_payloads: bool
    ) -> RolloutEvidence | None:
        """What the directory holds of the rollout; None where it cannot be read, or holds another generation."""
        return await in_thread(lambda: self._read_evidence(rollout_id, generation, include_payloads))

    def _read(self, rollout_id: str, generation: int, call_indexes: Sequence[int]) -> dict[int, dict[str, Any]]:
        if not self._is_here():
            return {}
        try:
            with reading(open_store(self._directory)) as store:
                if store.generation(rollout_id) != generation:
                    return {}
                return store.read_payloads(rollout_id, call_indexes)
        except (GymCaptureError, OSError):
            # The owner is asked for what is missing.
            return {}

    def _read_evidence(self, rollout_id: str, generation: int | None, include_payloads: bool) -> RolloutEvidence | None:
        if not self._is_here():
            return None
        try:
            with reading(open_store(self._directory)) as store:
                if generation is not None and store.generation(rollout_id) != generation:
                    return None
                return store.evidence(rollout_id, include_payloads)
        except (GymCaptureError, OSError):
            return None

    def _is_here(self) -> bool:
        try:
            return read_run(PosixFiles(self._directory)).hex == self._run
        except (GymCaptureError, OSError):
            return False
