"""When an epoch's checkpoints are written, and that what they hold leaves the memory.

The order is the promise: a snapshot is taken in one step of the loop, becomes durable with its last frame (which is
appended, synced, and found to be ours), and only then is written. What fails here costs nobody anything: the next
checkpoint holds what this one would have held.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial

from gym_capture.model.ledger import Ledger
from gym_capture.model.ledger_pages import Snapshot
from gym_capture.model.rollout_state import Saved
from gym_capture.service.executor import Executor
from gym_capture.service.group_commit import GroupCommit, LastFrame
from gym_capture.storage.checkpoint_writer import CheckpointWriter

logger = logging.getLogger(__name__)


class Checkpointing:
    """One epoch's. Used from the loop.

    Args:
        ledger, commit, writer: the epoch's.
        executor: writes; not the one in which groups are committed.
        rows: a checkpoint is begun once so many rows were applied since the last.
        counts: `checkpoints` and `failed_checkpoints` are counted there.
    """

    def __init__(
        self,
        ledger: Ledger,
        commit: GroupCommit,
        writer: CheckpointWriter,
        executor: Executor,
        rows: int,
        counts: Counter[str],
    ) -> None:
        self._ledger = ledger
        self._commit = commit
        self._writer = writer
        self._executor = executor
        self._rows = rows
        self._counts = counts
        self._busy = False
        self._ended = False
        self._idle = asyncio.Event()
        self._idle.set()

    def look(self) -> None:
        """A group is durable: begin a checkpoint, if it is time and none is on its way."""
        last = self._commit.last
        if self._busy or self._ended or last is None or self._ledger.unsaved_rows < self._rows:
            return
        self._busy = True
        self._idle.clear()
        snapshot = self._ledger.snapshot()
        self._commit.when_durable(snapshot.state.sequence, partial(self._durable, snapshot, last))

    def end(self) -> None:
        """The epoch is over: nothing more is begun, and what is on its way changes nothing."""
        self._ended = True

    async def idle(self) -> None:
        """Return once nothing is being written."""
        await self._idle.wait()

    def _durable(self, snapshot: Snapshot, last: LastFrame, durable: bool) -> None:
        if not durable or self._ended:
            self._idle.set()  # the ledger is thrown away with this epoch
            return
        self._executor.start(partial(self._writer.write, snapshot, last.place), partial(self._written, snapshot))

    def _written(self, snapshot: Snapshot, pages: list[Saved] | None, error: BaseException | None) -> None:
        self._busy = False
        self._idle.set()
        if self._ended:
            return
        if error is not None or pages is None:
            self._ledger.not_saved(snapshot)
            self._counts["failed_checkpoints"] += 1
            logger.warning("a checkpoint was not written (%s); the log holds all that it would have said", error)
            return
        self._ledger.saved(snapshot, pages)
        self._counts["checkpoints"] += 1
