"""An owner's hold on its directory: taken, lost to a failed write and taken again, ended, or lost to another owner."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from gym_capture.errors import DirectoryHeld, GymCaptureError, OwnerUnavailable, RunSealed, Superseded
from gym_capture.model.clock import Clock
from gym_capture.model.codec import FrameKind, FrameRef, PendingFrame, encode_rows
from gym_capture.model.entropy import Entropy
from gym_capture.model.ledger import Ledger, Settled
from gym_capture.model.rows import Row, rollouts_of
from gym_capture.service.checkpointing import Checkpointing
from gym_capture.service.executor import Executor
from gym_capture.service.group_commit import CommitCounters, GroupCommit
from gym_capture.service.owned_log import OwnedLog, Taking
from gym_capture.service.settings import OwnerSettings
from gym_capture.service.state import State
from gym_capture.storage.files import Files
from gym_capture.storage.recovery_report import RecoveryReport

logger = logging.getLogger(__name__)


class Events(Protocol):
    """Who is told what becomes of the hold. Called on the loop."""

    def settled(self, settled: Settled, group: int) -> None:
        """A group is durable, and with it rollouts became quiescent."""

    def releasing(self) -> None:
        """A group is durable: its callers are about to be told."""

    def released(self) -> None:
        """All callers of a group were told."""

    def rebuilding(self) -> None:
        """What was not durable is dropped; nothing that is remembered of connections holds any more."""

    def rebuilt(self, ledger: Ledger) -> None:
        """The directory is held (again), with this state."""

    def ended(self, error: GymCaptureError) -> None:
        """Nothing will be served any more."""

    def superseded(self) -> None:
        """Another owner has the directory: the process has to go. Follows `ended`."""

    def fault(self, error: BaseException) -> None:
        """Something happened that is a fault of this package."""


class Tenure:
    """One owner's hold, over as many epochs as it takes.

    Attributes:
        state: what the owner is doing.
        ledger: the state that the log holds, and what was applied since.
        commit: the present epoch's queue (from the first `open` on).
        log: the present epoch's log.
        counters: over all epochs.
        reopened: how often the directory was taken anew after a failed write.
        last_failure: of what kind the last one was.
        checkpoint_counts: what became of checkpoints, over all epochs.
    """

    commit: GroupCommit

    def __init__(
        self,
        files: Files,
        taking: Taking,
        settings: OwnerSettings,
        *,
        clock: Clock,
        executor: Executor,
        readers: Executor,
        entropy: Entropy,
        events: Events,
    ) -> None:
        self.state = State.NEW
        self.ledger = Ledger(settings.lease_s)
        self.log: OwnedLog | None = None
        self.counters = CommitCounters()
        self.reopened = 0
        self.last_failure: str | None = None
        self._directory = files.directory
        self._taking = taking
        self._settings = settings
        self._clock = clock
        self._executor = executor
        self._readers = readers
        self._entropy = entropy
        self._events = events
        self._groups_before = 0
        self._decided = asyncio.Event()
        self._reopen_pause = 0.0
        self._reopening: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._checkpointing: Checkpointing | None = None
        self.checkpoint_counts: Counter[str] = Counter()

    @property
    def epoch(self) -> int:
        """The epoch that is held, 0 before the first."""
        return self.log.epoch if self.log else 0

    @property
    def groups_started(self) -> int:
        """Groups handed to the disk so far."""
        return self._groups_before + self.commit.started if self.log else 0

    @property
    def unavailable(self) -> GymCaptureError | None:
        """Why nothing is served now; None while serving."""
        if self.state is State.SERVING:
            return None
        if self.state is State.SUPERSEDED:
            return Superseded(
                f"epoch {self.epoch} of {self._directory} was superseded by a newer owner. What was acknowledged "
                "is safe with it; look the owner up again."
            )
        why = {
            State.NEW: "is not open yet",
            State.REOPENING: f"cannot write now ({self.last_failure}) and takes the directory anew",
        }.get(self.state, "was stopped")
        return OwnerUnavailable(
            f"the owner of {self._directory} {why}. Nothing of this request was acknowledged, what was "
            "acknowledged before is safe; try again later."
        )

    @property
    def sure(self) -> bool:
        """Whether the directory was still ours a moment ago (a third of a lease at most)."""
        log = self.log
        return log is not None and self._clock.monotonic() - log.ours_at <= self._settings.lease_s / 3

    async def available(self) -> None:
        """Return while serving; while the directory is being taken anew, wait for it up to `reopen_wait_s`.

        Raises:
            OwnerUnavailable, Superseded: nothing is served.
        """
        if self.state is State.REOPENING:
            try:
                async with asyncio.timeout(self._settings.reopen_wait_s):
                    await self._decided.wait()
            except TimeoutError:
                pass  # the state says why
        error = self.unavailable
        if error is not None:
            raise error

    def journal(self, rows: Sequence[Row]) -> asyncio.Future[bool]:
        """Apply the owner's own rows and queue their frame. The future says whether it became durable."""
        ref = FrameRef(self.ledger.last_sequence + 1, self.epoch)
        self.ledger.apply_owner_rows(rows, ref)
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        frame = PendingFrame(FrameKind.OWNER, encode_rows(rows), len(rows), (), ref, rollouts=rollouts_of(rows))
        self.commit.submit(frame, lambda durable: None if future.done() else future.set_result(durable))
        return future

    async def check(self) -> bool:
        """Whether the directory is still ours, looked up now. What is found wrong is acted upon."""
        log = self.log
        if log is None or self.state is not State.SERVING:
            return False
        try:
            await self._executor.run(log.check)
        except Superseded as error:
            self.supersede(error)
        except OSError as error:
            if log is self.log:
                self.fail(error)
        return self.state is State.SERVING and log is self.log

    async def beat(self) -> bool:
        """Show that the owner lives; False when it could not be written (the next group will tell what that means)."""
        log = self.log
        if log is None or self.state is not State.SERVING:
            return True
        try:
            await self._executor.run(log.beat)
        except Superseded as error:
            self.supersede(error)
        except OSError:
            return False
        return True

    # -- beginning and end --------------------------------------------------------------------------------------

    async def take(self, takeover: bool = False) -> RecoveryReport:
        """Take the next epoch and serve from what its log holds. Raises what `Taking.take` raises."""
        ledger = Ledger(self._settings.lease_s)
        log = await self._taking.take(ledger, takeover)
        if self.state not in (State.NEW, State.REOPENING):
            await self._executor.run(log.abandon)  # stopped meanwhile
            return log.report
        ledger.last_sequence = max(ledger.last_sequence, log.writer.last_sequence)
        self._groups_before = self.groups_started
        self.log = log
        self.ledger = ledger
        self.commit = GroupCommit(
            log.commit,
            self._executor,
            self._clock,
            durable=self._durable,
            releasing=self._events.releasing,
            released=self._events.released,
            failed=self.fail,
            superseded=self.supersede,
            group_bytes=self._settings.group_bytes,
            counters=self.counters,
        )
        self._set(State.SERVING)
        self._checkpointing = Checkpointing(
            ledger, self.commit, log.checkpoints, self._readers, self._settings.checkpoint_rows, self.checkpoint_counts
        )
        self._events.rebuilt(ledger)
        return log.report

    async def stop(self) -> None:
        """Write and answer what was received, seal the log, and refuse everything. Again: waits for the same."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        serving = self.state is State.SERVING
        checkpointing = self._checkpointing
        self._set(State.STOPPING)
        written = serving and await self.commit.flush()
        if serving:
            self.commit.abort()
        if checkpointing is not None:
            await checkpointing.idle()
        if self._reopening is not None:
            await asyncio.wait([self._reopening])
        if self.log is not None:
            try:
                await self._executor.run(self.log.close if written else self.log.abandon)
            except (OSError, GymCaptureError) as error:
                logger.warning("the log was not sealed at the stop (%s); all that was acknowledged is safe", error)
        self._set(State.STOPPED)
        self._events.ended(self.unavailable or OwnerUnavailable())

    def _durable(self, sequence: int, group: int) -> None:
        self._reopen_pause = 0.0
        settled = self.ledger.durable(sequence)
        if settled.rollouts:
            self._events.settled(settled, self._groups_before + group)
        if self._checkpointing is not None:
            self._checkpointing.look()

    def distrust_checkpoints(self, error: BaseException | None) -> None:
        """A page of a checkpoint cannot be read: take the directory anew, from its log alone."""
        self._taking.whole_log = True
        self.checkpoint_counts["damaged_pages"] += 1
        self.fail(OwnerUnavailable(f"a checkpoint cannot be read ({error}); the log holds all that it said"))

    def _set(self, state: State) -> None:
        self.state = state
        if state is not State.SERVING and self._checkpointing is not None:
            self._checkpointing.end()
            self._checkpointing = None
        if state in (State.NEW, State.REOPENING):
            self._decided.clear()
        else:
            self._decided.set()

    # -- what goes wrong ----------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """A write failed, so what is on disk is not known: drop what is in memory and take the log anew.

        Nothing that is dropped was acknowledged; the clients come again and send it once more.
        """
        if self.state is State.STOPPING:
            self.commit.abort()
        if self.state is not State.SERVING:
            return
        self.last_failure = f"{type(error).__name__}: {error}"
        logger.error("writing in %s failed (%s); taking the directory anew", self._directory, self.last_failure)
        if not isinstance(error, OSError | GymCaptureError):
            self._events.fault(error)
        self._set(State.REOPENING)
        self.commit.abort()
        self._events.rebuilding()
        self._reopening = asyncio.get_running_loop().create_task(self._reopen(), name="reopen")

    async def _reopen(self) -> None:
        log = self.log
        if log is None:
            return
        try:
            await self._executor.run(log.abandon)
        except OSError as error:
            # Some file systems tell at close of a write that failed. Nothing in that file counts any more.
            logger.warning("the spent segment in %s was not closed (%s)", self._directory, error)
        while self.state is State.REOPENING:
            # At once at first; the pause grows until a group has been written again.
            pause = self._reopen_pause
            self._reopen_pause = min(max(2 * pause, self._settings.reopen_first_s), self._settings.reopen_max_s)
            if pause:
                await asyncio.sleep(pause * self._entropy.uniform(0.8, 1.2))
                if self.state is not State.REOPENING:
                    return
            try:
                await self._executor.run(self._taking.refuse_if_taken)
                await self.take()
            except (Superseded, DirectoryHeld, RunSealed) as error:
                self.supersede(error)
            except (OSError, GymCaptureError) as error:
                self.last_failure = f"{type(error).__name__}: {error}"
                logger.warning("%s cannot be taken anew yet (%s)", self._directory, self.last_failure)
            except Exception as error:  # noqa: BLE001  # a fault must not end the attempts: the owner would hang
                self.last_failure = f"{type(error).__name__}: {error}"
                self._events.fault(error)
            else:
                if self.log is not log:  # else it was stopped meanwhile, and that epoch is abandoned
                    self.reopened += 1
                    logger.warning("epoch %s of %s serves again", self.epoch, self._directory)
                return

    def supersede(self, error: GymCaptureError) -> None:
        """Another owner has the directory: refuse everything and go."""
        if self.state in (State.SUPERSEDED, State.STOPPED):
            return
        logger.error("%s", error)
        self._set(State.SUPERSEDED)
        self.commit.abort()
        self._events.ended(error)
        self._events.superseded()
