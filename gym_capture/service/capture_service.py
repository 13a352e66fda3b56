"""The owner of one capture directory: everything it does, without Ray and without sockets.

All state lives on one event loop; files are touched in executors only. The life of a batch: a session checks its rows,
the ledger decides and applies them, the frame joins the queue, a group is appended, synced and checked for ownership,
and back on the loop the ledger counts it as durable, its answer goes out, and waiters wake.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from gym_capture.errors import (
    DirectoryHeld,
    Fenced,
    GymCaptureError,
    OwnerUnavailable,
    ProtocolError,
    Superseded,
)
from gym_capture.model.clock import Clock
from gym_capture.model.codec import FrameKind, FrameRef, PendingFrame, encode_rows
from gym_capture.model.endpoint import Endpoint
from gym_capture.model.entropy import Entropy
from gym_capture.model.ids import validate_rollout_id
from gym_capture.model.ledger import Ledger
from gym_capture.model.messages import MergeReply, PartsReply
from gym_capture.model.rows import CURRENT, ClearRow, Row
from gym_capture.service.executor import Executor
from gym_capture.service.group_commit import CommitCounters, GroupCommit
from gym_capture.service.owned_log import OwnedLog, Taking
from gym_capture.service.part_reader import read_parts, read_records
from gym_capture.service.serving_clock import ServingClock
from gym_capture.service.session import Send, Session
from gym_capture.service.settings import OwnerSettings
from gym_capture.service.state import State
from gym_capture.service.stats import service_stats
from gym_capture.service.waiters import Waiters
from gym_capture.storage.files import Files
from gym_capture.storage.ownership import OwnerIdentity
from gym_capture.storage.recovery_report import RecoveryReport

logger = logging.getLogger(__name__)

_RESUME_SHARE = 0.75
"""Reading goes on when the buffers have drained to this share of the bound."""
_LAST_WORD_S = 0.2
"""How long the answer to a stop may take to leave before the process goes."""


def _never_hold(_paused: bool) -> None:
    """For connections that cannot stop reading."""


class CaptureService:
    """One owner. Used from one event loop.

    Args:
        files: the capture directory, with its run's marker.
        identity: what the owner calls itself; the same `actor_id` takes over from itself at once.
        settings: see `OwnerSettings`.
        clock, entropy: where time and tokens come from.
        executor: runs the log's I/O one call at a time, in order.
        readers: runs reads of stored parts; `executor` when None.
        on_leave: told `superseded` (another owner has the directory: the process must go at once) or `stopped` (a
            client asked for the end, and was answered).
        wait: lets seconds pass in the executor while another owner's beat is watched.

    Attributes:
        state, ledger, sessions (by client id), waiters, commit, counters, counts (of connections), buffered (bytes of
        unanswered batches), paused (sessions that are not read now).
    """

    def __init__(
        self,
        files: Files,
        identity: OwnerIdentity,
        settings: OwnerSettings,
        *,
        clock: Clock,
        executor: Executor,
        entropy: Entropy,
        on_leave: Callable[[str], None],
        readers: Executor | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.files = files
        self.identity = identity
        self.settings = settings.checked()
        self.clock = clock
        self.state = State.NEW
        self.ledger = Ledger(settings.lease_s)
        self.sessions: dict[bytes, Session] = {}
        self.counts: Counter[str] = Counter()
        self.counters = CommitCounters()
        self.buffered = 0
        self.paused: set[Session] = set()
        self.reopened = 0
        self.last_failure: str | None = None
        self.started_at = clock.monotonic()
        self.commit: GroupCommit
        self.waiters = Waiters(self._outstanding, self._check_owned, lambda: self._groups_started)
        self._executor = executor
        self._readers = readers or executor
        self._entropy = entropy
        self._on_leave = on_leave
        self._taking = Taking(files, identity, settings, clock, executor, self._readers, entropy, wait)
        self._log: OwnedLog | None = None
        self._places: dict[bytes, str] = {}
        self._serving_clock = ServingClock(clock, settings.tick_s)
        self._groups_before = 0
        self._all_sessions: set[Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._decided = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._reopen_pause = 0.0
        self._left = False

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def run(self) -> str:
        """The run's uuid, hex; empty before `open`."""
        return self._log.ownership.run.hex if self._log else ""

    @property
    def epoch(self) -> int:
        """The epoch that this owner holds, 0 before `open`."""
        return self._log.epoch if self._log else 0

    @property
    def token(self) -> str:
        """What clients have to show."""
        return self._log.ownership.token if self._log else ""

    @property
    def report(self) -> RecoveryReport | None:
        """What the last recovery found."""
        return self._log.report if self._log else None

    @property
    def segment(self) -> str:
        """The segment file that is being written."""
        return self._log.writer.segment.file if self._log else ""

    @property
    def endpoint(self) -> Endpoint:
        """Where and how this owner is reached; port 0 when it has no stream."""
        host, port = self._taking.listening
        return Endpoint(host, port, self.token, self.run, self.epoch, self._taking.tls)

    @property
    def unavailable(self) -> GymCaptureError | None:
        """Why nothing is served now; None while serving."""
        if self.state is State.SERVING:
            return None
        if self.state is State.SUPERSEDED:
            return Superseded(
                f"epoch {self.epoch} of {self.files.directory} was superseded by a newer owner. What was acknowledged "
                "is safe with it; look the owner up again."
            )
        why = {
            State.NEW: "is not open yet",
            State.REOPENING: f"cannot write now ({self.last_failure}) and takes the directory anew",
        }.get(self.state, "was stopped")
        return OwnerUnavailable(
            f"the owner of {self.files.directory} {why}. Nothing of this request was acknowledged, what was "
            "acknowledged before is safe; try again later."
        )

    def now(self) -> float:
        """The serving clock, seconds."""
        return self._serving_clock.now()

    def place_of(self, client: bytes) -> str:
        """Where a client said it is."""
        return self._places.get(client, "")

    def stats(self, rollout_id: str | None = None) -> dict[str, Any]:
        """Counters of the run and, with a rollout, of it: plain data for JSON."""
        return service_stats(self, rollout_id)

    # -- beginning and end --------------------------------------------------------------------------------------

    async def open(
        self, *, takeover: bool = False, listening: tuple[str, int] = ("", 0), tls: bool = False
    ) -> RecoveryReport:
        """Take the directory, rebuild the state from its log, and serve.

        Args:
            takeover: take it also from another actor that may live.
            listening: host and port of the stream, told to whoever looks the owner up.

        Raises:
            MissingRunMarker, DirectoryHeld, FormatError, OSError: nothing is served; leave or try again.
        """
        self._taking.listening = listening
        self._taking.tls = tls
        report = await self._take(takeover)
        self._spawn(self._beat_forever())
        self._spawn(self._tick_forever())
        return report

    async def stop(self) -> None:
        """End cleanly: what was received is written and answered, then the log is sealed and everything refused."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop())
        await asyncio.shield(self._stopping)
        # Whoever asked for the stop over a connection is answered before it is closed.
        asyncio.get_running_loop().call_soon(self._end_sessions)

    def leave_after_stop(self) -> None:
        """A client asked for the stop and was answered: the process can go."""
        asyncio.get_running_loop().call_later(_LAST_WORD_S, self._leave, "stopped")

    async def _stop(self) -> None:
        serving = self.state is State.SERVING
        self._set_state(State.STOPPING)
        written = serving and await self.commit.flush()
        for task in self._tasks:
            task.cancel()
        if serving:
            self.commit.abort()
        if self._log is not None:
            try:
                await self._executor.run(self._log.close if written else self._log.abandon)
            except (OSError, GymCaptureError) as error:
                logger.warning("the log was not sealed at the stop (%s); all that was acknowledged is safe", error)
        self._set_state(State.STOPPED)
        self.waiters.abandon(self.unavailable or OwnerUnavailable())
        self.waiters.close()

    async def _take(self, takeover: bool = False) -> RecoveryReport:
        ledger = Ledger(self.settings.lease_s)
        log = await self._taking.take(ledger, takeover)
        if self.state not in (State.NEW, State.REOPENING):
            await self._executor.run(log.abandon)
            return log.report
        ledger.last_sequence = max(ledger.last_sequence, log.writer.last_sequence)
        ledger.renew_all(self.now())
        if self.epoch:
            self._groups_before += self.commit.started
        self._log = log
        self.ledger = ledger
        self.commit = GroupCommit(
            log.commit,
            self._executor,
            self.clock,
            durable=self._durable,
            released=self._resume,
            failed=self._fail,
            superseded=self._superseded,
            group_bytes=self.settings.group_bytes,
            counters=self.counters,
        )
        self._set_state(State.SERVING)
        return log.report

    def _set_state(self, state: State) -> None:
        self.state = state
        if state in (State.NEW, State.REOPENING):
            self._decided.clear()
        else:
            self._decided.set()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.note_fault(error)

    # -- what goes wrong ----------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        """A write failed, so what is on disk is not known: drop everything that is in memory and take the log anew.

        Nothing that was dropped was acknowledged; the clients come again and send it once more.
        """
        if self.state is State.STOPPING:
            self.commit.abort()
        if self.state is not State.SERVING:
            return
        self.last_failure = f"{type(error).__name__}: {error}"
        logger.error("writing in %s failed (%s); taking the directory anew", self.files.directory, self.last_failure)
        if not isinstance(error, OSError | GymCaptureError):
            self.note_fault(error)
        self._set_state(State.REOPENING)
        self.commit.abort()
        self._end_sessions()
        self._spawn(self._reopen())

    async def _reopen(self) -> None:
        log = self._log
        if log is None:
            return
        await self._executor.run(log.abandon)
        while self.state is State.REOPENING:
            # Without a pause at first; it grows until a group has been written again.
            pause = self._reopen_pause
            self._reopen_pause = min(max(2 * pause, self.settings.reopen_first_s), self.settings.reopen_max_s)
            if pause:
                await asyncio.sleep(pause * self._entropy.uniform(0.8, 1.2))
            try:
                await self._executor.run(log.check)
                await self._take()
            except (Superseded, DirectoryHeld) as error:
                self._superseded(error)
            except (OSError, GymCaptureError) as error:
                self.last_failure = f"{type(error).__name__}: {error}"
                logger.warning("%s cannot be taken anew yet (%s)", self.files.directory, self.last_failure)
            else:
                self.reopened += 1
                logger.warning("epoch %s of %s serves again", self.epoch, self.files.directory)
                self.waiters.recheck()
                return

    def _superseded(self, error: GymCaptureError) -> None:
        """Another owner has the directory: refuse everything and go."""
        if self.state in (State.SUPERSEDED, State.STOPPED):
            return
        logger.error("%s", error)
        self._set_state(State.SUPERSEDED)
        self.commit.abort()
        self._end_sessions()
        self.waiters.abandon(error)
        self._leave("superseded")

    def _leave(self, why: str) -> None:
        if not self._left:
            self._left = True
            self._on_leave(why)

    def note_protocol_error(self, error: ProtocolError) -> None:
        """A connection carried something that it must not."""
        self.counts["protocol_errors"] += 1
        logger.warning("a connection was closed: %s", error)

    def note_fault(self, error: BaseException) -> None:
        """A fault of this package that cost one call or task, and must be seen."""
        self.counts["faults"] += 1
        logger.error("the owner has a fault", exc_info=error)

    # -- time ---------------------------------------------------------------------------------------------------

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.beat_s)
            log = self._log
            if self.state is not State.SERVING or log is None:
                continue
            try:
                await self._executor.run(log.beat)
            except Superseded as error:
                self._superseded(error)
                return
            except OSError:
                self.counts["missed_beats"] += 1

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.tick_s)
            self.tick()

    def tick(self) -> None:
        """Let leases end. A client is expired one tick after its lease ended, so that all it sent has been read."""
        before = self._serving_clock.tick()
        if self.state is not State.SERVING:
            return
        now = self.now()
        for session in self.sessions.values():
            # Whoever is in the middle of a long message, or is not being read, cannot say more.
            if session.heard or session.paused:
                session.heard = False
                self.ledger.renew(session.client, now)
        losses = self.ledger.expire(before)
        if losses:
            self._journal(losses)

    # -- connections --------------------------------------------------------------------------------------------

    def connect(self, send: Send, close: Callable[[], None], hold: Callable[[bool], None] = _never_hold) -> Session:
        """A new connection; its first message has to be a hello.

        Args:
            send: queues one encoded message; never blocks.
            close: ends the connection after what was sent.
            hold: True: stop reading; False: read on.
        """
        self.counts["connections"] += 1
        session = Session(self, send, close, hold)
        self._all_sessions.add(session)
        return session

    def admit(self, session: Session, open_claims: Sequence[int]) -> None:
        """A session's hello was right. An earlier session of the client ends, its unread input is void."""
        previous = self.sessions.get(session.client)
        if previous is not None:
            self.counts["replaced_connections"] += 1
            previous.end()
        self.sessions[session.client] = session
        self._places[session.client] = session.place
        losses = self.ledger.hello(session.client, open_claims, self.now())
        if losses:
            self._journal(losses)

    def goodbye(self, session: Session) -> None:
        """The client ends; what it still holds is lost."""
        losses = self.ledger.leave(session.client)
        if losses:
            self._journal(losses)

    def session_ended(self, session: Session) -> None:
        """A connection is gone."""
        self._all_sessions.discard(session)
        self.paused.discard(session)
        if self.sessions.get(session.client) is session:
            del self.sessions[session.client]

    def pause(self, session: Session) -> None:
        """Read no more of this session until there is room."""
        self.paused.add(session)
        session.set_paused(True)

    def _resume(self) -> None:
        if not self.paused or self.buffered > _RESUME_SHARE * self.settings.owner_buffer_bytes:
            return
        for session in [found for found in self.paused if found.unanswered <= self.settings.window_bytes]:
            self.paused.discard(session)
            session.set_paused(False)

    def _end_sessions(self) -> None:
        for session in list(self._all_sessions):
            session.end()

    # -- quiescence ---------------------------------------------------------------------------------------------

    async def quiesce(self, rollout_id: str | None, timeout_s: float) -> bool:
        """Whether the rollout (None: the run) has nothing outstanding, waiting for it for at most `timeout_s`.

        Raises:
            InvalidRolloutId: no rollout can have this id.
            OwnerUnavailable, Superseded: nothing can be said.
        """
        if rollout_id is not None:
            validate_rollout_id(rollout_id)
        await self._available()
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answer(result: bool | GymCaptureError) -> None:
            if future.done():
                return
            if isinstance(result, GymCaptureError):
                future.set_exception(result)
            else:
                future.set_result(result)

        waiter = self.waiters.add(rollout_id, timeout_s, answer)
        try:
            quiescent = await future
        finally:
            self.waiters.cancel(waiter)
        if not quiescent and self.state is not State.SERVING:
            raise self.unavailable or OwnerUnavailable()
        return quiescent

    def _outstanding(self, rollout_id: str | None) -> int:
        if self.state is not State.SERVING:
            return 1
        return self.ledger.outstanding if rollout_id is None else self.ledger.outstanding_of(rollout_id)

    @property
    def _groups_started(self) -> int:
        return self._groups_before + self.commit.started if self.epoch else 0

    async def _check_owned(self) -> bool:
        log = self._log
        if log is None or self.state is not State.SERVING:
            return False
        try:
            await self._executor.run(log.check)
        except Superseded as error:
            self._superseded(error)
        except OSError as error:
            if log is self._log:
                self._fail(error)
        return self.state is State.SERVING and log is self._log

    def _durable(self, sequence: int, group: int) -> None:
        self._reopen_pause = 0.0
        settled = self.ledger.durable(sequence)
        if settled.rollouts:
            self.waiters.settled(settled, self._groups_before + group)

    # -- merge, clear, read -------------------------------------------------------------------------------------

    async def merge(self, rollout_id: str, generation: int = CURRENT, issued: int = 0) -> MergeReply:
        """What the rollout's current generation has captured, journaled as merged. Waits for no claim.

        Args:
            generation: refuse if this is not the current one.
            issued: how many calls the caller counted; what is nowhere of them is a gap.

        Raises:
            InvalidRolloutId: no rollout can have this id.
            Fenced: the generation is not the current one.
            OwnerUnavailable, Superseded: nothing can be said.
        """
        validate_rollout_id(rollout_id)
        while True:
            await self._available()
            self._fence(rollout_id, generation)
            # One step of the loop: the view holds exactly what lies before the merge's row in the log.
            journaled = self._journal([self.ledger.merge_row(rollout_id, issued)])
            view = self.ledger.view(rollout_id)
            if await journaled:
                break
        found = await self._readers.run(partial(read_records, self.files, view.entries))
        if found.damaged:
            self.counts["damaged_records"] += found.damaged
        return MergeReply(
            rollout_id, view.generation, found.records, found.damaged + view.holes, view.reasons, view.outstanding
        )

    async def clear(self, rollout_ids: Sequence[str], request: str) -> list[int]:
        """Begin the next generation of each rollout; returns their numbers, in order.

        Args:
            request: names this clear; the same again begins nothing and returns the same numbers.

        Raises:
            InvalidRolloutId: nothing was cleared.
            OwnerUnavailable, Superseded: whether it was cleared is not known; ask again under the same request.
        """
        for rollout_id in rollout_ids:
            validate_rollout_id(rollout_id)
        request = request or self._entropy.bytes(16).hex()
        while True:
            await self._available()
            rows = [ClearRow(rollout_id, request) for rollout_id in rollout_ids]
            if not rows or await self._journal(rows):
                return [row.generation for row in rows]

    async def read_parts(
        self, rollout_id: str, generation: int, call_indexes: Sequence[int]
    ) -> tuple[PartsReply, list[bytes]]:
        """All stored parts of these calls, and the bytes that the parts' offsets refer to. Damaged ones are left out.

        Raises:
            Fenced: the generation is not the current one.
            GymCaptureError: more than one message can hold; ask for fewer calls.
            OwnerUnavailable, Superseded: nothing can be read now.
        """
        await self._available()
        self._fence(rollout_id, generation)
        wanted = set(call_indexes)
        entries = [entry for entry in self.ledger.view(rollout_id).entries if entry.call_index in wanted]
        size = sum(part.length for entry in entries for part in entry.parts)
        if size > self.settings.read_bytes:
            raise GymCaptureError(
                f"{len(entries)} calls hold {size} bytes, one answer at most {self.settings.read_bytes}. Nothing was "
                "read; ask for fewer calls at once."
            )
        if (
            any(entry.ref.sequence > self.ledger.durable_sequence for entry in entries)
            and not await self.commit.flush()
        ):
            raise self.unavailable or OwnerUnavailable("the log was taken anew meanwhile; nothing was read, ask again.")
        listed, body = await self._readers.run(partial(read_parts, self.files, entries))
        return PartsReply(listed), body

    async def _available(self) -> None:
        if self.state is State.REOPENING:
            try:
                async with asyncio.timeout(self.settings.reopen_wait_s):
                    await self._decided.wait()
            except TimeoutError:
                pass  # the state says why
        error = self.unavailable
        if error is not None:
            raise error

    def _fence(self, rollout_id: str, generation: int) -> None:
        rollout = self.ledger.rollouts.get(rollout_id)
        current = rollout.generation if rollout else 0
        if generation not in (CURRENT, current):
            raise Fenced(
                f"generation {generation} of rollout {rollout_id} is not the current one ({current}). Nothing was "
                "changed; whoever cleared it since then has the records.",
                rollout_id=rollout_id,
                generation=generation,
                current=current,
            )

    def _journal(self, rows: Sequence[Row]) -> asyncio.Future[bool]:
        """Apply the owner's own rows and queue their frame. The future says whether it became durable."""
        ref = FrameRef(self.ledger.last_sequence + 1, self.epoch)
        self.ledger.apply_owner_rows(rows, ref)
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        frame = PendingFrame(FrameKind.OWNER, encode_rows(rows), len(rows), (), ref)
        self.commit.submit(frame, lambda durable: None if future.done() else future.set_result(durable))
        return future
