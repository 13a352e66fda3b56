"""One capture directory as a collector uses it: through its live owner when there is one, at rest otherwise."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from gym_capture.api import connect
from gym_capture.client.blocking_mode import run_blocking
from gym_capture.client.client import CaptureClient
from gym_capture.directory.locate import Liveness, liveness
from gym_capture.directory.resting import clear_at_rest, is_run_directory, remove_nemo_gym_files
from gym_capture.directory.stores import open_store, reading
from gym_capture.errors import CaptureDirectoryError, GymCaptureError, OwnerNotFound
from gym_capture.model.merge import RolloutEvidence
from gym_capture.reach.blocking_calls import in_thread
from gym_capture.storage.nemo_gym_files import NemoGymFiles
from gym_capture.storage.posix_files import PosixFiles

logger = logging.getLogger(__name__)


class CaptureAccess:
    """What the contract's functions need of one directory. Holds no state of its own.

    Args:
        directory: its path.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = str(directory)

    def clear(self, rollout_ids: Sequence[str]) -> None:
        """Forget what was captured under these ids, in the log and in NeMo Gym's files.

        Raises:
            OwnerUnavailable: there is a live owner and it cannot be reached; nothing was removed.
            DirectoryHeld, OSError: the directory could not be taken or written.
        """
        client = self._live_client()
        if client is not None:
            client.sync.clear(rollout_ids)
        elif is_run_directory(self._directory):
            clear_at_rest(self._directory, rollout_ids)
        # After the log: it hides them from now on, so a crash in between leaves nothing that could come back.
        remove_nemo_gym_files(self._directory, rollout_ids)

    async def quiesce(self, rollout_id: str, timeout_s: float, poll_s: float) -> bool:
        """Wait until nothing of the rollout is outstanding; False when the time is over, or nobody can tell."""
        deadline = time.monotonic() + timeout_s
        try:
            client = await in_thread(self._live_client)
        except CaptureDirectoryError:
            return True  # where there is no directory, nobody has claimed anything
        if client is not None:
            try:
                return await client.quiesce(rollout_id, timeout_s=max(0.0, deadline - time.monotonic()))
            except GymCaptureError as error:
                logger.warning("quiescence of rollout %s is not known: %s", rollout_id, error)
                return False
        while await in_thread(lambda: self._outstanding(rollout_id)):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            await asyncio.sleep(min(max(poll_s, 0.001), left))
        return True

    def evidence(self, rollout_id: str, include_payloads: bool) -> RolloutEvidence:
        """What is known of the rollout, without waiting for claims.

        A live owner that cannot be reached makes it `unreadable`, with what the log holds.

        Raises:
            GymCaptureError, OSError: the capture cannot be read.
        """
        client = self._live_client()
        if client is not None:
            evidence = run_blocking(client.evidence(rollout_id, include_payloads))
            if says_something(evidence) or not self._lies_beside(rollout_id):
                return evidence
        with reading(open_store(self._directory)) as store:
            return store.evidence(rollout_id, include_payloads)

    def _lies_beside(self, rollout_id: str) -> bool:
        """Whether NeMo Gym's files know the rollout, and the log does not, its clearing included."""
        if not NemoGymFiles(PosixFiles(self._directory)).has(rollout_id):
            return False
        with reading(open_store(self._directory)) as store:
            return not store.generation(rollout_id)

    def _outstanding(self, rollout_id: str) -> int:
        with reading(open_store(self._directory)) as store:
            return store.outstanding(rollout_id)

    def _live_client(self) -> CaptureClient | None:
        """A client of the live owner; None at rest.

        Raises:
            OwnerUnavailable: the owner lives, and the directory does not say how to reach it.
        """
        if liveness(self._directory) is Liveness.AT_REST:
            return None
        try:
            # All of a process share one core, and its link outlives this client.
            return connect(self._directory)
        except OwnerNotFound:
            return None  # it was stopped a moment ago


def says_something(evidence: RolloutEvidence) -> bool:
    """Whether anything is known of the rollout, be it that something is missing."""
    return bool(
        evidence.records
        or evidence.damaged
        or evidence.outstanding
        or evidence.incomplete is not None
        or evidence.unreadable
    )
