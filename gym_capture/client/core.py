"""The client's core: one link to the owner, and everything that is said over it. One asyncio loop, no threads.

`host.CoreHost` gives it a thread and loop of its own; a simulation or a test runs it on a loop that is there.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from gym_capture import __version__
from gym_capture.client.buffer import Buffer
from gym_capture.client.claim_book import ClaimBook
from gym_capture.client.contact import Contact
from gym_capture.client.delivery import Delivery
from gym_capture.client.heartbeat import Heartbeat
from gym_capture.client.history_book import HistoryBook
from gym_capture.client.leftover import Leftover
from gym_capture.client.operations import Ask, Commit, Flush, GiveUp, Operation, Release, Rows, Ticket
from gym_capture.client.options import ClientOptions
from gym_capture.client.outbox import Outbox, SentBatch
from gym_capture.client.packing import Packing
from gym_capture.client.presence import REFUSALS, Presence
from gym_capture.client.requests import Requests
from gym_capture.client.transport import Link, Message, Pushes, Transport
from gym_capture.client.trouble_log import TroubleLog, logger
from gym_capture.client.unsettled import Unsettled
from gym_capture.errors import (
    ClientClosed,
    GymCaptureError,
    HandshakeRefused,
    OwnerUnavailable,
    ProtocolError,
    Superseded,
    from_wire,
)
from gym_capture.model.clock import Clock
from gym_capture.model.entropy import Entropy
from gym_capture.model.messages import (
    PROTOCOL_VERSION,
    Answers,
    Beat,
    BeatReply,
    Failure,
    FromClient,
    FromOwner,
    Goodbye,
    Hello,
    Refused,
    Reply,
    Welcome,
    decode_from_owner,
    encode_message,
)
from gym_capture.model.rows import CommitRow, MarkRow, Outcome, Result


class ClientCore:
    """One client process's conversation with the owner.

    Everything but the constructor is to be called in `loop`.

    Args:
        transport: makes links.
        options: limits and times.
        clock: for log lines; timers go by the loop's time.
        entropy: the client's id and the jitter.
        loop: the loop that `run` will run in.
        executor: where large exchanges are packed; None: a thread of its own.

    Attributes:
        leftover: what was not acknowledged when nothing was sent any more; None before that.
    """

    def __init__(
        self,
        transport: Transport,
        options: ClientOptions,
        *,
        clock: Clock,
        entropy: Entropy,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None = None,
    ) -> None:
        self.id = entropy.bytes(16)
        self.loop = loop
        self.transport = transport
        self.run_id = options.run
        self.epoch = 0
        self.connects = 0
        self.welcomes = 0
        self._options = options
        self._entropy = entropy
        self._window = options.max_batch_bytes
        self._link: Link | None = None
        self._misheard: Exception | None = None
        self._heartbeat = Heartbeat(loop, options.lease_s, self._beat)
        self._contact = Contact()
        self._beats: deque[float] = deque()
        self._hello_at = self._welcomed_at = 0.0
        self._first_sent: dict[int, float] = {}
        self._wanted = asyncio.Event()
        self._closing = False
        self.closed = False
        self.leftover: Leftover | None = None
        self._main: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._orphans: asyncio.TimerHandle | None = None
        self._packing = Packing(loop, executor, self.turn)
        self._log = TroubleLog(clock)
        self.presence = Presence(options.patience_s)
        self.outbox = Outbox(options.max_batch_bytes, options.batches_under_way)
        self.buffer = Buffer(options.client_buffer_bytes)
        self.unsettled = Unsettled()
        self.delivery = Delivery(self._undelivered)
        self.book = ClaimBook(
            outbox=self.outbox,
            buffer=self.buffer,
            unsettled=self.unsettled,
            presence=self.presence,
            delivery=self.delivery,
            now=loop.time,
            pack_elsewhere=self._packing.pack_elsewhere,
            pack_inline_bytes=options.pack_inline_bytes,
            max_exchange_bytes=options.max_exchange_bytes,
            histories=HistoryBook() if options.history else None,
            log=self._log,
        )
        self.requests = Requests(
            loop=loop,
            outbox=self.outbox,
            unsettled=self.unsettled,
            presence=self.presence,
            delivery=self.delivery,
            send=self._send,
            turn=self.turn,
        )
        self._do: dict[type[Operation], Callable[[Any], None]] = {
            Ticket: self.book.claim,
            Commit: self.book.commit,
            Release: self.book.release,
            Ask: self.requests.ask,
            Rows: self.requests.rows,
            Flush: self.requests.flush,
            GiveUp: self.requests.give_up,
        }

    # -- operations ---------------------------------------------------------------------------------------------

    def handle(self, operations: Sequence[Operation]) -> None:
        """Take what callers hand in."""
        if not self._wanted.is_set():
            self._wanted.set()
            self.presence.lost(self.loop.time())
            self._await_patience()
        for operation in operations:
            try:
                self._do[type(operation)](operation)
            except Exception as error:  # noqa: BLE001 - a fault of this package must not leave its caller waiting
                logger.exception("the capture client failed on a %s", type(operation).__name__.lower())
                self.delivery.finish(operation, error=GymCaptureError(f"the capture client has a fault: {error!r}"))
        self.turn()

    def turn(self) -> None:
        """Send what can be sent and wake the callers that have their answers. Ends every step of the core."""
        if self.presence.ready:
            self.book.queue_losses()
            link = self._link
            while link is not None and (batch := self.outbox.next_batch(self._window)) is not None:
                self._first_sent[batch.number] = self.loop.time()
                self._heartbeat.sent()
                link.send(batch.message)
                if self.presence.unanswered_since is None:
                    self.presence.unanswered_since = self.loop.time()
                    self._await_patience()
        self.requests.settled()
        self.delivery.flush()

    def _send(self, message: FromClient) -> None:
        if self._link is not None:
            self._heartbeat.sent()
            self._link.send(encode_message(message))

    def _beat(self) -> None:
        if self.presence.ready:
            self._beats.append(self.loop.time())
            self._send(Beat())

    def _undelivered(self, operation: Operation) -> None:
        if isinstance(operation, Ticket) and not operation.leaving:
            # Not within this turn: its rows are sent by the next one.
            self.loop.call_soon(self._abandon, operation)

    def _abandon(self, ticket: Ticket) -> None:
        self.book.undelivered(ticket)
        self.turn()

    # -- the link -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a link to the owner from the first operation on, until `close`."""
        self._main = asyncio.current_task()
        self._orphans = self.loop.call_later(self._heartbeat.lease_s / 3, self._look_for_orphans)
        pause = self._options.backoff_first_s
        try:
            await self._wanted.wait()
            while not self._closing:
                welcomes = self.welcomes
                try:
                    await self._converse()
                except GymCaptureError as error:
                    self._failed(error)
                except TimeoutError:
                    self._failed(OwnerUnavailable(f"no link within {self._options.connect_timeout_s:g} s"))
                except Exception as error:  # noqa: BLE001 - a transport's or this module's fault must not end capture
                    logger.exception("the link to the capture owner failed")
                    self._failed(OwnerUnavailable(f"the link failed: {error!r}"))
                if self._closing:
                    break
                if self.presence.refused:
                    pause = self._options.backoff_refused_s
                elif self.welcomes != welcomes:
                    pause = self._options.backoff_first_s
                await asyncio.sleep(self._entropy.uniform(0.5, 1.0) * pause)
                pause = min(2 * pause, self._options.backoff_last_s)
        finally:
            self._heartbeat.end()
            for timer in filter(None, (self._orphans, self._patience)):
                timer.cancel()

    async def _converse(self) -> None:
        """Open a link and listen until it breaks."""
        async with asyncio.timeout(self._options.connect_timeout_s):
            link = await self.transport.connect()
        self.connects += 1
        self._link = link
        self._misheard = None
        self._heartbeat.begin(link)
        self._beats.clear()
        self._hello_at = self.loop.time()
        try:
            if isinstance(link, Pushes):
                link.push_to(self._take)
            self._send(
                Hello(
                    PROTOCOL_VERSION,
                    __version__,
                    link.token,
                    self.run_id or link.run,
                    self.id,
                    self.book.sent_claims(),
                    f"{socket.gethostname()}:{os.getpid()}",
                )
            )
            while True:
                self._take(await link.receive())
        except OwnerUnavailable:
            if self._misheard is not None:
                raise self._misheard from None
            raise
        finally:
            self._heartbeat.end()
            self._link = None
            link.close()
            self._lost()

    def _take(self, messages: list[Message]) -> None:
        """What came over the link that is open. Nothing more is taken from it after something that must not come."""
        link = self._link
        if link is None or self._misheard is not None:
            return
        try:
            self._heartbeat.heard()
            self._heard(messages)
            self.turn()
        except Exception as error:  # noqa: BLE001 - whoever listens for the link's end is told
            self._misheard = error
            link.close()

    def _lost(self) -> None:
        self.presence.lost(self.loop.time())
        self.requests.link_broken()
        self.book.owner_lost()
        self._await_patience()
        self.turn()

    def _failed(self, error: GymCaptureError) -> None:
        self.presence.failed(error)
        if isinstance(error, REFUSALS):
            self._tell_refusal(error)
        if self.presence.ended is not None:
            self._answer_all()
            return
        if self.presence.refused:
            self.requests.refuse()
        self._out_of_patience()

    def _tell_refusal(self, error: GymCaptureError) -> None:
        waits = self.unsettled.total or self.book.claims or self.requests.waiting
        if self.presence.ended_cleanly and not waits:
            self._log.inform("ended", "the capture owner has ended: %s", error)
        elif not self.presence.stopped:  # else whoever waits hears that this process has ended it
            self._log.warn("refused-link", "the capture owner cannot be used: %s", error)

    def _await_patience(self) -> None:
        """See to it that somebody looks when patience may be over; one timer at most, set anew when it fires."""
        since = self.presence.waiting_since
        if self._patience is None and since is not None:
            self._patience = self.loop.call_at(since + self._options.patience_s, self._look_at_patience)

    def _look_at_patience(self) -> None:
        self._patience = None
        if self.presence.patience_over(self.loop.time()):
            self._out_of_patience()
        else:
            self._await_patience()

    def _out_of_patience(self) -> None:
        if self.presence.patience_over(self.loop.time()):
            self.book.patience_over()
        self.turn()

    def _look_for_orphans(self) -> None:
        self.book.release_orphans()
        self.turn()
        self._orphans = self.loop.call_later(self._heartbeat.lease_s / 3, self._look_for_orphans)

    # -- what the owner says ------------------------------------------------------------------------------------

    def _heard(self, messages: list[Message]) -> None:
        for head, body in messages:
            message: FromOwner = decode_from_owner(head)
            if type(message) is Welcome:
                self._welcomed(message)
            elif type(message) is Refused:
                raise from_wire(message.code, message.message)
            elif not self.presence.ready:
                raise ProtocolError("the owner answered before it said welcome")
            elif type(message) is Answers:
                self.presence.works()
                self._answered(message)
            elif type(message) is Reply:
                self.presence.works()
                self.requests.replied(message.number, message.value, body)
            elif type(message) is Failure:
                self.requests.failed(message.number, message.code, message.message)
            elif type(message) is BeatReply:
                self._beaten(message)

    def _welcomed(self, welcome: Welcome) -> None:
        if self.run_id and welcome.run != self.run_id:
            error = HandshakeRefused(
                f"the capture owner serves run {welcome.run}, this client belongs to run {self.run_id}: nothing was "
                "sent. Connect anew to capture into the other run."
            )
            self.presence.ended = error
            raise error
        if welcome.epoch < self.epoch:
            raise Superseded(f"an owner of epoch {welcome.epoch} answered, epoch {self.epoch} has taken over")
        self.run_id = welcome.run
        self.epoch = welcome.epoch
        self._heartbeat.lease_s = welcome.lease_s
        self._contact.proved(self._hello_at, welcome.lease_s)
        self._welcomed_at = self.loop.time()
        self._window = welcome.window_bytes
        self.book.max_exchange_bytes = welcome.max_exchange_bytes
        self.outbox.max_batch_bytes = min(welcome.max_batch_bytes, self._options.max_batch_bytes)
        self.welcomes += 1
        self.presence.welcomed()
        if not self.outbox.under_way_bytes:
            self.presence.works()
        if (link := self._link) is not None:
            for batch in self.outbox.under_way():
                link.send(batch.message)
        self.requests.link_opened()

    def _beaten(self, beat: BeatReply) -> None:
        if beat.epoch < self.epoch:
            raise Superseded(f"an owner of epoch {beat.epoch} answered, epoch {self.epoch} has taken over")
        # An owner that was not sure of itself may have left one unanswered: then this proves less than it could.
        if self._beats:
            self._contact.proved(self._beats.popleft(), self._heartbeat.lease_s)
        if not self.outbox.under_way_bytes:
            self.presence.works()

    def _answered(self, answers: Answers) -> None:
        batch = self.outbox.answered(answers.batch)
        if batch is None:
            return
        now, lease_s = self.loop.time(), self._heartbeat.lease_s
        sent_at = self._first_sent.pop(answers.batch)
        self._contact.proved(max(sent_at, self._welcomed_at), lease_s)  # a new link says everything again
        late = not self._contact.unbroken(sent_at, now, lease_s)
        self.presence.unanswered_since = now if self.outbox.under_way_bytes else None
        results = answers.results
        if results is None or len(results) != len(batch.entries):
            self._send_anew(batch, answers)
            return
        for entry, result in zip(batch.entries, results, strict=True):
            try:
                entry.late = late
                entry.settle(result)
            except Exception:  # noqa: BLE001 - a fault of this package must not cost the other rows their answers
                logger.exception("the capture client failed on an answer to a %s", type(entry.row).__name__)

    def _send_anew(self, batch: SentBatch, answers: Answers) -> None:
        logger.error(
            "the capture owner has no answers for batch %d (%s): its rows are sent anew, which doubles nothing",
            batch.number,
            "confirmed before" if answers.results is None else f"{len(answers.results)} results",
        )
        for entry in batch.entries:
            if type(entry.row) is MarkRow:
                # It was applied, and unlike the others it would count twice.
                entry.settle(Result(Outcome.APPLIED, entry.row.generation))
            else:
                self.outbox.add(entry)

    # -- the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Say goodbye and answer everybody. What was not acknowledged by now may be lost; `Flush` first."""
        self.closed = True
        if self.presence.ready:
            self._send(Goodbye())
        self._answer_all()
        self._wanted.set()  # `run` may not have begun
        if self._main is not None:
            self._main.cancel()
        self._packing.close()

    def _answer_all(self) -> None:
        """Nothing will be sent any more."""
        self._closing = True
        self.presence.ready = False
        if self.leftover is None:
            self.leftover = self._left()
        self.outbox.drain()
        self.book.end()
        self.requests.end(
            self.presence.ended or ClientClosed("this capture client is closed; open a new one with connect()")
        )
        self.turn()

    def _left(self) -> Leftover:
        """What is not acknowledged now."""
        unwritten = self.book.unwritten
        sent = sum(type(entry.row) is CommitRow for batch in self.outbox.under_way() for entry in batch.entries)
        exchanges = Counter(commit.rollout for commit in unwritten)
        return Leftover(exchanges, sent, self.unsettled.total - len(unwritten))

    def stats(self) -> dict[str, Any]:
        """This client's own counters."""
        return {
            "client": self.id.hex(),
            "transport": self.transport.name,
            "connected": self.presence.ready,
            "connects": self.connects,
            "epoch": self.epoch,
            "open_claims": len(self.book.claims),
            "unanswered": self.unsettled.total,
            "buffered_bytes": self.buffer.held,
            "dropped": self.book.dropped,
        }
