"""Rollouts that left the memory come back before anything is done about them, read away from the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from gym_capture.model.ledger import Ledger
from gym_capture.model.rollout_state import RolloutState
from gym_capture.service.executor import Executor
from gym_capture.service.tenure import Tenure
from gym_capture.storage.checkpoints import read_rollout
from gym_capture.storage.files import Files


class Paging:
    """Brings rollouts back into the ledger that the tenure holds. Used from the loop.

    Args:
        files: the capture directory.
        readers: reads pages.
    """

    def __init__(self, files: Files, tenure: Tenure, readers: Executor) -> None:
        self._files = files
        self._tenure = tenure
        self._readers = readers

    def missing(self, rollout_ids: Iterable[str]) -> list[str]:
        """Those that have to be brought back first."""
        return self._tenure.ledger.archived_among(rollout_ids)

    def start(self, rollout_ids: Sequence[str], done: Callable[[], None]) -> None:
        """Bring rollouts back, then call `done`; in the same step, so that none of them can have left again.

        If a page cannot be read, the directory is taken anew from its log before `done` is called.
        """
        ledger = self._tenure.ledger
        wanted = [(rollout_id, ledger.archived.packed[rollout_id]) for rollout_id in rollout_ids]

        def read() -> list[tuple[RolloutState, bytes]]:
            return [(read_rollout(self._files, rollout_id, packed), packed) for rollout_id, packed in wanted]

        def adopt(found: list[tuple[RolloutState, bytes]] | None, error: BaseException | None) -> None:
            self._adopt(ledger, found, error)
            done()

        self._readers.start(read, adopt)

    async def available(self, rollout_ids: Sequence[str]) -> None:
        """Return while serving and with these rollouts in memory, until the loop is next waited for.

        Raises:
            OwnerUnavailable, Superseded: nothing is served.
        """
        while True:
            await self._tenure.available()
            missing = self.missing(rollout_ids)
            if not missing:
                return
            back: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.start(missing, partial(_settle, back))
            await back

    def _adopt(
        self, ledger: Ledger, found: list[tuple[RolloutState, bytes]] | None, error: BaseException | None
    ) -> None:
        if ledger is not self._tenure.ledger:
            return  # taken anew meanwhile
        if found is None or error is not None:
            self._tenure.distrust_checkpoints(error)
            return
        for state, packed in found:
            ledger.adopt(state, packed)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
