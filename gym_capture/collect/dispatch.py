"""The scheduling of a run, free of Ray: which attempt starts when, and what becomes of it.

An attempt goes through two stages. *Running*: its id is cleared, it runs on a worker; at most `concurrency` at once.
*Settling*: it is merged (which may wait for a lost claim's lease) and its line is synced; this holds up nothing that
runs, until so much has piled up that memory would grow without bound.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Protocol

from gym_capture.collect.attempt import INVALID_RECORD, Attempt, Ending, Failed, Finished
from gym_capture.collect.stop import StopRequest
from gym_capture.collect.summary import FailedRollout, FinishedRollout, Progress, finished_rollout
from gym_capture.errors import Fenced, GymCaptureError, InvalidExchange
from gym_capture.model.clock import Clock
from gym_capture.model.json_text import encode_json
from gym_capture.model.merge import RolloutEvidence, attach_capture

logger = logging.getLogger(__name__)

MIN_SETTLING = 64


class Capture(Protocol):
    """What the dispatcher asks of a `CaptureClient`."""

    async def clear(self, records: Sequence[str], timeout_s: float | None = None) -> dict[str, int]:
        """Start the next generation of each id; the generations by rollout id."""

    async def merge(
        self,
        record: dict[str, Any],
        include_payloads: bool = False,
        *,
        issued: int | None = None,
        generation: int | None = None,
    ) -> dict[str, Any]:
        """Await quiescence, then attach what was captured, in place."""


class Pool(Protocol):
    """Where attempts run."""

    async def run(self, attempt: Attempt, generation: int) -> Ending:
        """Run one attempt to its end. Cancelling gives it up. Raises GymCaptureError when no worker can be had."""


class Lines(Protocol):
    """A durable JSONL file."""

    async def append(self, line: bytes) -> None:
        """Returns once the line is on disk."""


class Dispatcher:
    """Carries every attempt of one run.

    Args:
        attempts: what to run, in order; read only as fast as it can be started.
        capture: the run's client; one of a run without observability does nothing.
        patience_s: how long an owner that is away is waited for before a rollout starts, seconds.
        concurrency: attempts that run at once.
        include_payloads: as in `merge`.
        progress: kept up to date.
        stop: asks for an early end.
    """

    def __init__(
        self,
        attempts: Iterator[Attempt],
        *,
        pool: Pool,
        capture: Capture,
        patience_s: float,
        output: Lines,
        failures: Lines,
        concurrency: int,
        include_payloads: bool,
        progress: Progress,
        stop: StopRequest,
        clock: Clock,
    ) -> None:
        self.finished: list[FinishedRollout] = []
        self.failed: list[FailedRollout] = []
        self._attempts = attempts
        self._pool = pool
        self._capture = capture
        self._patience_s = patience_s
        self._output = output
        self._failures = failures
        self._concurrency = concurrency
        self._max_settling = max(2 * concurrency, MIN_SETTLING)
        self._include_payloads = include_payloads
        self._progress = progress
        self._stop = stop
        self._clock = clock
        self._retries: deque[Attempt] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Run everything, or as much as is done when the stop was asked for. Settling always ends.

        Raises:
            InputRowError: a later line of the input is bad. OutputError, OwnerUnavailable, … : the run cannot go on.
            Attempts that ran at that moment were let finish, and are in the output.
        """
        self._stop.on_change(self._changed.set)
        try:
            while self._error is None and not self._stop.requested:
                # Cleared before looking, so that nothing that ends meanwhile is missed.
                self._changed.clear()
                if self._has_room():
                    attempt = self._next()
                    if attempt is not None:
                        self._start(attempt)
                        continue
                    if not self._running and not self._settling and not self._retries:
                        break
                if self._error is None:
                    await self._changed.wait()
            await self._let_finish()
        finally:
            await self._give_up()
        if self._error is not None:
            raise self._error

    def _has_room(self) -> bool:
        return len(self._running) < self._concurrency and len(self._settling) < self._max_settling

    def _next(self) -> Attempt | None:
        if self._retries:
            return self._retries.popleft()
        try:
            return next(self._attempts, None)
        except GymCaptureError as error:
            self._abort(error)
            return None

    def _start(self, attempt: Attempt) -> None:
        if self._progress.started_at is None:
            self._progress.started_at = self._clock.monotonic()
        self._spawn(self._running, self._run(attempt))

    def _spawn(self, stage: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        stage.add(task)
        self._count()

        def done(ended: asyncio.Task[None]) -> None:
            stage.discard(ended)
            self._count()
            if not ended.cancelled() and (error := ended.exception()) is not None:
                self._abort(error)
            self._changed.set()

        task.add_done_callback(done)

    def _count(self) -> None:
        self._progress.running, self._progress.settling = len(self._running), len(self._settling)

    def _abort(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
            logger.error("the run stops starting rollouts: %s", error)
            if not self._stop.requested:
                self._stop.request()
        self._changed.set()

    async def _run(self, attempt: Attempt) -> None:
        rollout_id = attempt.rollout_id
        generation = (await self._capture.clear([rollout_id], timeout_s=self._patience_s))[rollout_id]
        ending = await self._pool.run(attempt, generation)
        self._spawn(self._settling, self._settle(attempt, generation, ending))

    async def _settle(self, attempt: Attempt, generation: int, ending: Ending) -> None:
        if isinstance(ending, Finished):
            ending = await self._finish(attempt, generation, ending)
        if isinstance(ending, Failed):
            await self._fail(attempt, generation, ending)

    async def _finish(self, attempt: Attempt, generation: int, ending: Finished) -> Ending:
        record = copy.deepcopy(attempt.source.row) if ending.record is None else ending.record
        attempt.source.identity.imprint(record, attempt.number)
        try:
            await self._merge(record, attempt, generation, ending.issued)
        except Fenced as error:
            # Somebody else began this id anew: what is captured under it now is not of this attempt.
            return Failed.by(error, ending.issued)
        try:
            line, _, _ = await asyncio.to_thread(encode_json, record)
        except InvalidExchange as error:
            return Failed(INVALID_RECORD, str(error), "", ending.issued)
        await self._output.append(line)
        rollout = finished_rollout(attempt.source.identity.key, record)
        self.finished.append(rollout)
        self._progress.finished += 1
        self._progress.calls += rollout.calls
        self._progress.with_gaps += bool(rollout.gaps)
        return ending

    async def _fail(self, attempt: Attempt, generation: int, ending: Failed) -> None:
        entry: dict[str, Any] = {
            **attempt.fields,
            "rollout_id": attempt.rollout_id,
            "attempt": attempt.number,
            "input_line": attempt.source.line,
            "error": {"type": ending.error_type, "message": ending.message, "traceback": ending.traceback},
            "issued": ending.issued,
            "failed_at": self._clock.time(),
        }
        try:
            await self._merge(entry, attempt, generation, ending.issued)
        except Fenced:
            attach_capture(entry, RolloutEvidence(attempt.rollout_id, [], unreadable=True))
        line, _, _ = await asyncio.to_thread(encode_json, entry)
        # On disk before the next attempt starts: a resumed run must not use this attempt's id again.
        await self._failures.append(line)
        self._progress.failed_attempts += 1
        again = attempt.tries_left > 0
        logger.warning(
            "rollout %s failed (%s: %s)%s",
            attempt.rollout_id,
            ending.error_type,
            ending.message[:120],
            "; it is tried again" if again else "",
        )
        if again:
            self._retries.append(attempt.next())
        else:
            self._progress.failed += 1
            self.failed.append(
                FailedRollout(attempt.rollout_id, ending.error_type, ending.message, attempt.source.line)
            )

    async def _merge(self, record: dict[str, Any], attempt: Attempt, generation: int, issued: int | None) -> None:
        try:
            await self._capture.merge(record, self._include_payloads, issued=issued, generation=generation)
        except Fenced:
            raise
        except GymCaptureError as error:
            # A rollout is dear, and the gap says that its evidence could not be had.
            logger.error("the capture of rollout %s could not be merged: %s", attempt.rollout_id, error)
            attach_capture(record, RolloutEvidence(attempt.rollout_id, [], unreadable=True))

    async def _let_finish(self) -> None:
        """Wait for what runs and settles, as long as the stop (if one was asked for) allows."""
        while self._running:
            self._changed.clear()
            if self._stop.expired:
                break
            await self._changed.wait()
        for task in list(self._running):
            task.cancel()
        await _all(self._running)
        await _all(self._settling)

    async def _give_up(self) -> None:
        """Leave no task behind when `run` itself is cancelled or broken."""
        for task in [*self._running, *self._settling]:
            task.cancel()
        await _all(self._running)
        await _all(self._settling)


async def _all(tasks: set[asyncio.Task[None]]) -> None:
    while tasks:
        await asyncio.wait(tasks)
