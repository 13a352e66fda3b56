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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from gym_capture.errors import GymCaptureError, OwnerUnavailable, ProtocolError
from gym_capture.model.client_settings import ClientSettings
from gym_capture.model.clock import Clock
from gym_capture.model.endpoint import Endpoint
from gym_capture.model.entropy import Entropy
from gym_capture.model.ids import validate_rollout_id
from gym_capture.model.ledger import Ledger, Settled
from gym_capture.model.messages import MergeReply, PartsReply
from gym_capture.model.rows import CURRENT
from gym_capture.service.connections import Connections
from gym_capture.service.executor import Executor
from gym_capture.service.group_commit import GroupCommit
from gym_capture.service.latency import BatchLatency
from gym_capture.service.owned_log import Taking
from gym_capture.service.paging import Paging
from gym_capture.service.rollout_requests import NOTHING, RolloutRequests
from gym_capture.service.serving_clock import ServingClock
from gym_capture.service.session import Send, Session
from gym_capture.service.settings import OwnerSettings
from gym_capture.service.state import State
from gym_capture.service.stats import service_stats
from gym_capture.service.tenure import Tenure
from gym_capture.service.waiters import Waiters
from gym_capture.storage.files import Files
from gym_capture.storage.owner_file import OwnerIdentity
from gym_capture.storage.recovery_report import RecoveryReport

logger = logging.getLogger(__name__)

_LAST_WORD_S = 0.2
"""How long the answer to a stop may take to leave before the process goes."""


def _never_hold(_paused: bool) -> None:
    """For connections that cannot stop reading."""


class CaptureService:
    """One owner. Used from one event loop, made while it runs.

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
        client_settings: what clients are told to go by; None: what the directory's last owner told them.

    Attributes:
        tenure: the hold on the directory, with the ledger and the log.
        paging: brings rollouts back into memory.
        connections: the clients.
        waiters: who waits for quiescence.
        latency: how long claims and commits took here.
        gaps: how often a merge named each gap, by code.
        started_at: monotonic seconds.
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
        client_settings: ClientSettings | None = None,
    ) -> None:
        self.files = files
        self.identity = identity
        self.settings = settings.checked()
        self.clock = clock
        self.started_at = clock.monotonic()
        self.latency = BatchLatency()
        self.gaps: Counter[str] = Counter()
        readers = readers or executor
        self._on_leave = on_leave
        self._taking = Taking(files, identity, settings, clock, executor, readers, entropy, wait, client_settings)
        self.tenure = Tenure(
            files,
            self._taking,
            settings,
            clock=clock,
            executor=executor,
            readers=readers,
            entropy=entropy,
            events=self,
        )
        self.paging = Paging(files, self.tenure, readers)
        self.connections = Connections(settings)
        self._requests = RolloutRequests(
            files,
            self.tenure,
            self.paging,
            readers=readers,
            entropy=entropy,
            counts=self.connections.counts,
            gaps=self.gaps,
            settings=settings,
        )
        self.waiters = Waiters(self._outstanding, self.tenure.check, lambda: self.tenure.groups_started)
        self._serving_clock = ServingClock(clock, settings.tick_s)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsure: list[Callable[[], None]] = []
        self._unsure_since = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._left = False

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the owner is doing."""
        return self.tenure.state

    @property
    def ledger(self) -> Ledger:
        """The state that it serves from; another one after each `rebuilt`."""
        return self.tenure.ledger

    @property
    def commit(self) -> GroupCommit:
        """The queue to the disk; another one after each `rebuilt`."""
        return self.tenure.commit

    @property
    def unavailable(self) -> GymCaptureError | None:
        """Why nothing is served now; None while serving."""
        return self.tenure.unavailable

    @property
    def run(self) -> str:
        """The run's uuid, hex; empty before `open`."""
        return self.tenure.log.ownership.run.hex if self.tenure.log else ""

    @property
    def epoch(self) -> int:
        """The epoch that this owner holds, 0 before `open`."""
        return self.tenure.epoch

    @property
    def token(self) -> str:
        """What clients have to show."""
        return self.tenure.log.ownership.token if self.tenure.log else ""

    @property
    def earlier_token(self) -> str:
        """What clients of the owner before had to show: whoever shows it needs only look the owner up again."""
        return self._taking.earlier_token

    @property
    def report(self) -> RecoveryReport | None:
        """What the last recovery found."""
        return self.tenure.log.report if self.tenure.log else None

    @property
    def endpoint(self) -> Endpoint:
        """Where and how this owner is reached now; port 0 when it has no stream."""
        host, port = self._taking.listening
        return Endpoint(host, port, self.token, self.run, self.epoch, self._taking.tls)

    def now(self) -> float:
        """The serving clock, seconds."""
        return self._serving_clock.now()

    def stats(self, rollout_id: str | None = None) -> dict[str, Any]:
        """Counters of the run and, with a rollout, of it: plain data for JSON."""
        return service_stats(self, rollout_id)

    async def stats_of(self, rollout_id: str | None) -> dict[str, Any]:
        """`stats`, with the rollout brought into memory first."""
        if rollout_id is not None and self.state is State.SERVING:
            await self.paging.available([rollout_id])
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
        report = await self.tenure.take(takeover)
        self._spawn(self._beat_forever())
        self._spawn(self._tick_forever())
        return report

    async def stop(self) -> None:
        """End cleanly: what was received is written and answered, then the log is sealed and everything refused."""
        await self.tenure.stop()
        # Whoever asked for the stop over a connection is answered before it is closed.
        asyncio.get_running_loop().call_soon(self.connections.end_all)

    def leave_after_stop(self) -> None:
        """A client asked for the stop and was answered: the process can go."""
        asyncio.get_running_loop().call_later(_LAST_WORD_S, self._leave, "stopped")

    def _leave(self, why: str) -> None:
        if not self._left:
            self._left = True
            self._on_leave(why)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fault(error)

    # -- what becomes of the hold (tenure.Events) ---------------------------------------------------------------

    def settled(self, settled: Settled, group: int) -> None:
        """A group is durable, and with it rollouts became quiescent."""
        self.waiters.settled(settled, group)

    def releasing(self) -> None:
        """A group is durable: its callers are about to be told."""
        self.connections.gather()
        if self.tenure.sure:  # the group's own look was as good as any
            self._act_all()

    def released(self) -> None:
        """All callers of a group were told."""
        self.connections.flush()
        self.connections.resume()

    def rebuilding(self) -> None:
        """A write failed: clients come again and send what was not answered once more."""
        self.connections.end_all()

    def rebuilt(self, ledger: Ledger) -> None:
        """The state was read from the log, and nobody can know who is still there: everyone gets two leases.

        One is what a client waits before it looks up an owner that has fallen silent (a frozen one, whose successor
        this is); the other is for finding this one and saying hello.
        """
        ledger.renew_all(self.now() + self.settings.lease_s)
        self.waiters.recheck()

    def ended(self, error: GymCaptureError) -> None:
        """Nothing will be served any more."""
        for task in self._tasks:
            task.cancel()
        self.waiters.abandon(error)
        self.waiters.close()

    def superseded(self) -> None:
        """Another owner has the directory: go."""
        self.connections.end_all()
        self._leave("superseded")

    def fault(self, error: BaseException) -> None:
        """A fault of this package that cost one call or task, and must be seen."""
        self.connections.counts["faults"] += 1
        logger.error("the owner has a fault", exc_info=error)

    # -- time ---------------------------------------------------------------------------------------------------

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.beat_s)
            if not await self.tenure.beat():
                self.connections.counts["missed_beats"] += 1

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.tick_s)
            try:
                self.tick()
            except Exception as error:  # noqa: BLE001  # leases must go on, whatever this tick stumbled over
                self.fault(error)

    def tick(self) -> None:
        """Let leases end. A client is expired one tick after its lease ended, so that all it sent has been read."""
        before = self._serving_clock.tick()
        if self.state is not State.SERVING:
            return
        now = self.now()
        for session in self.connections.sessions.values():
            # Whoever is in the middle of a long message, or is not being read, cannot say more.
            if session.heard or session.paused:
                session.heard = False
                self.ledger.renew(session.client, now)
        if self._unsure and self.clock.monotonic() - self._unsure_since > self.settings.lease_s:
            # The disk hangs. After a lease without an answer clients take this owner for gone, come again, and are not
            # welcomed yet. Before that their beats renew their leases, as those of the dead are not.
            self.ledger.renew_live(now)
        losses = self.ledger.expire(before)
        if losses:
            self.tenure.journal(losses)
        for session in list(self.connections.sessions.values()):
            # Whoever thaws finds the connection closed, says hello again and is told what it has lost.
            if not self.ledger.clients[session.client].live:
                session.end()
        self.connections.forget_places(self.ledger.clients)

    def when_sure(self, act: Callable[[], None]) -> None:
        """Do something now, or once it is known that the directory is still ours; never, if it is not.

        An owner that was frozen, or whose disk hangs, may have a successor by then, and cannot know. Were it to welcome
        clients, and to answer their beats, they would stay with it until the successor takes their claims for lost.
        """
        if self.tenure.sure and not self._unsure:
            act()
            return
        self._unsure.append(act)
        if len(self._unsure) == 1:
            self._unsure_since = self.clock.monotonic()
            self._looking = self._spawn(self._become_sure())

    async def be_sure(self) -> None:
        """Return once it is known that the directory is still ours.

        Raises:
            OwnerUnavailable, Superseded: it is not, or that is not known within a lease.
        """
        sure = asyncio.Event()
        self.when_sure(sure.set)
        if not sure.is_set() and self._looking is not None:
            await asyncio.wait([self._looking], timeout=self.settings.lease_s)
        if not sure.is_set():
            raise self.unavailable or OwnerUnavailable(
                "the owner cannot see whether the directory is still its own: its disk does not answer. Nothing of "
                "this request was acknowledged; look the owner up again."
            )

    async def _become_sure(self) -> None:
        try:
            while True:
                ours = False
                asked_at = self.clock.monotonic()
                ours = await self.tenure.check()
                # A client goes by what it hears for a lease and a third; a successor that came just after the look
                # takes its claims for lost after two. Half a lease leaves it time to come over.
                if not ours or self.clock.monotonic() - asked_at <= self.settings.lease_s / 2:
                    break  # else it was ours when it was asked, and that is long ago: this process slept, or the disk
        finally:
            if not ours:
                self._unsure.clear()
        self._act_all()

    def _act_all(self) -> None:
        """Do what waited until it was sure."""
        waiting, self._unsure = self._unsure, []
        for act in waiting:
            try:
                act()
            except Exception as error:  # noqa: BLE001  # half of it may be done: only the log knows what is true
                self.tenure.fail(error)

    # -- connections --------------------------------------------------------------------------------------------

    def connect(self, send: Send, close: Callable[[], None], hold: Callable[[bool], None] = _never_hold) -> Session:
        """A new connection; its first message has to be a hello.

        Args:
            send: queues one encoded message; never blocks.
            close: ends the connection after what was sent.
            hold: True: stop reading; False: read on.
        """
        return self.connections.connect(self, send, close, hold)

    def admit(self, session: Session, open_claims: Sequence[int]) -> None:
        """A session's hello was right."""
        self.connections.admit(session)
        losses = self.ledger.hello(session.client, open_claims, self.now())
        if losses:
            self.tenure.journal(losses)

    def goodbye(self, session: Session) -> None:
        """A client ends; what it still holds is lost."""
        losses = self.ledger.leave(session.client)
        if losses:
            self.tenure.journal(losses)

    def note_protocol_error(self, error: ProtocolError) -> None:
        """A connection carried something that it must not."""
        self.connections.counts["protocol_errors"] += 1
        count = self.connections.counts["protocol_errors"]
        if not count & (count - 1):  # ever more seldom, for a client may do it again and again
            logger.warning("a connection was closed (%d so far): %s", count, error)

    # -- quiescence ---------------------------------------------------------------------------------------------

    async def quiesce(self, rollout_id: str | None, timeout_s: float) -> bool:
        """Whether the rollout (None: the run) has nothing outstanding, waiting for it for at most `timeout_s`.

        Raises:
            InvalidRolloutId: no rollout can have this id.
            OwnerUnavailable, Superseded: nothing can be said.
        """
        if rollout_id is not None:
            validate_rollout_id(rollout_id)
        await self.tenure.available()
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

    # -- merge, clear, read (`RolloutRequests`) -----------------------------------------------------------------

    async def merge(self, rollout_id: str, generation: int = CURRENT, issued: int = 0) -> MergeReply:
        """See `RolloutRequests.merge`."""
        return await self._requests.merge(rollout_id, generation, issued)

    async def clear(self, rollout_ids: Sequence[str], request: str) -> list[int]:
        """See `RolloutRequests.clear`."""
        return await self._requests.clear(rollout_ids, request)

    async def read_parts(
        self, rollout_id: str, generation: int, call_indexes: Sequence[int], have: Mapping[str, int] = NOTHING
    ) -> tuple[PartsReply, list[bytes]]:
        """See `RolloutRequests.read_parts`."""
        return await self._requests.read_parts(rollout_id, generation, call_indexes, have)
