"""What a worker process does: load the rollout function once, then run attempts on its event loop. Free of Ray."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gym_capture.collect.attempt import INVALID_RECORD, TIMED_OUT, Ending, Failed, Finished
from gym_capture.collect.pool import Assignment
from gym_capture.collect.proxies import choose_proxy
from gym_capture.collect.rollout_function import RolloutFunction, load_rollout_function
from gym_capture.collect.session import Session
from gym_capture.errors import GymCaptureError

if TYPE_CHECKING:
    from gym_capture.client.client import CaptureClient


@dataclass(frozen=True)
class WorkerSpec:
    """What every worker of a run is made with.

    Args:
        rollout: the rollout function's import path.
        search: folders to import it from, beside the interpreter's.
        capture: a client of the run's owner; each process that it travels to becomes a client of its own.
        timeout_s: how long one attempt may take, seconds; None: as long as it likes.
    """

    rollout: str
    search: tuple[str, ...]
    capture: CaptureClient
    timeout_s: float | None


class RolloutWorker:
    """Runs attempts, many at once.

    Args:
        spec: what every worker of the run is made with.
        node: the node that this one runs on; None: unknown.
    """

    def __init__(self, spec: WorkerSpec, node: str | None = None) -> None:
        self._spec = spec
        self._node = node
        self._function: RolloutFunction | None = None

    async def prepare(self) -> tuple[str, str] | None:
        """Load the rollout function. Returns the class name and message of what is wrong with it, or None."""
        try:
            self._function = load_rollout_function(self._spec.rollout, self._spec.search)
        except GymCaptureError as error:
            return type(error).__name__, f"in a worker: {error}"
        return None

    async def run(self, assignment: Assignment) -> Ending:
        """Run one attempt to its end. Never raises: however the rollout function ends, its count travels back."""
        session = Session(
            row=assignment.row,
            rollout_id=assignment.rollout_id,
            attempt=assignment.attempt,
            generation=assignment.generation,
            capture=self._spec.capture,
            proxy=choose_proxy(assignment.proxies, self._node, assignment.rollout_id),
        )
        try:
            return await self._run(assignment, session)
        finally:
            await session.close_clients()

    async def _run(self, assignment: Assignment, session: Session) -> Ending:
        if self._function is None:
            raise RuntimeError("prepare() comes first")
        limit = asyncio.timeout(self._spec.timeout_s)
        try:
            async with limit:
                record = await self._function(assignment.row, session)
        except TimeoutError as error:
            if limit.expired():
                return Failed(TIMED_OUT, f"took longer than {self._spec.timeout_s:g} s", "", session.issued)
            return Failed.by(error, session.issued)
        except BaseException as error:  # noqa: BLE001 - a user's function; SystemExit too, which would hang the actor
            return Failed.by(error, session.issued)
        if record is not None and not isinstance(record, dict):
            return Failed(
                INVALID_RECORD,
                f"the rollout function returned a {type(record).__name__}; it returns the record, a dict, or None",
                "",
                session.issued,
            )
        return Finished(record, session.issued)
