"""One capture directory as a collector uses it: through its live owner when there is one, at rest otherwise."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gym_capture.api import connect
from gym_capture.client.client import CaptureClient
from gym_capture.directory.locate import Liveness, liveness
from gym_capture.directory.resting import clear_at_rest, is_run_directory, remove_nemo_gym_files
from gym_capture.directory.stores import open_store, reading
from gym_capture.errors import CaptureDirectoryError, GymCaptureError, OwnerNotFound
from gym_capture.model.merge import RolloutEvidence, attach_capture
from gym_capture.reach.blocking_calls import in_thread

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

    def merge(self, record: dict[str, Any], rollout_id: str, include_payloads: bool, always: bool) -> bool:
        """Attach what is known of the rollout, without waiting.

        Args:
            always: attach that nothing is known, too.

        Returns:
            Whether anything was attached.

        Raises:
            GymCaptureError, OSError: the capture cannot be read.
        """
        client = self._live_client()
        if client is None:
            return self._merge_at_rest(record, rollout_id, include_payloads, always)
        try:
            known = client.sync.stats(rollout_id)["rollout"]
        except GymCaptureError as error:
            logger.warning("the live owner of %s cannot be reached: %s", self._directory, error)
            attach_capture(record, self._evidence_left(rollout_id, include_payloads), include_payloads)
            return True
        if known["generation"] or known["calls"] or known["open_claims"] or known["reasons"]:
            always = True
        elif self._merge_at_rest(record, rollout_id, include_payloads, False):
            return True
        if always:
            client.sync.merge(record, include_payloads, timeout_s=0.0)
        return always

    def _merge_at_rest(self, record: dict[str, Any], rollout_id: str, include_payloads: bool, always: bool) -> bool:
        with reading(open_store(self._directory)) as store:
            if not always and not store.knows(rollout_id):
                return False
            evidence = store.evidence(rollout_id, include_payloads)
        attach_capture(record, evidence, include_payloads)
        return True

    def _evidence_left(self, rollout_id: str, include_payloads: bool) -> RolloutEvidence:
        """What the log holds while its owner lives and cannot be reached."""
        with reading(open_store(self._directory)) as store:
            evidence = store.evidence(rollout_id, include_payloads)
        evidence.unreadable = True
        return evidence

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
