"""The client's claims and exchanges, from being handed in to their answers. Runs in the client's loop only.

A claim's row, then what closes it, go through the outbox in order. What closes a claim waits until the claim itself
is answered, because only then is the generation known that it belongs to. While the owner is away nothing here is
lost but what `Buffer` has no room for; that is counted and journaled when the owner is back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gym_capture.client.buffer import Buffer
from gym_capture.client.delivery import Delivery
from gym_capture.client.history_book import FirstRequest, HistoryBook, Turn
from gym_capture.client.operations import ClaimState, Commit, Committed, Release, Ticket
from gym_capture.client.outbox import Entry, Outbox
from gym_capture.client.outcome import CallOutcome, outcome_of
from gym_capture.client.presence import Presence
from gym_capture.client.trouble_log import TroubleLog, logger
from gym_capture.client.unsettled import Unsettled
from gym_capture.model.exchange import SealedExchange, Snapshot, pack
from gym_capture.model.rollout_state import DROPPED, REFUSED, RELEASED
from gym_capture.model.rows import (
    NO_CLAIM,
    ClaimRow,
    CommitRow,
    MarkRow,
    Outcome,
    PartKind,
    ReleaseRow,
    Result,
)

PackElsewhere = Callable[[Callable[[], SealedExchange], Callable[[SealedExchange | None], None]], None]
"""Packs in another thread, then calls back in the client's loop; None: it could not be packed."""

_OPENED = (Outcome.APPLIED, Outcome.DUPLICATE)
_SETTLED = (ClaimState.OPEN, ClaimState.UNCLAIMED)
"""States of a claim in which the generation is known that its commit will name."""


def _generation_of(commit: Commit) -> int:
    """The generation that its row names."""
    ticket = commit.ticket
    answered = ticket is not None and ticket.state in (ClaimState.OPEN, ClaimState.CLOSING)
    return ticket.generation if answered and ticket is not None else commit.generation


def _nobody_waits(_result: Result) -> None:
    """Whether messages were kept shows when an exchange refers to them."""


class ClaimBook:
    """Claims, commits and releases of one client process.

    Args:
        now: the loop's time.
        pack_elsewhere: for exchanges of more than `pack_inline_bytes`.
        histories: what was sent of each conversation; None: every request is sent whole.

    Attributes:
        claims: the claims that the owner may hold open, or will be asked to open, by number.
        unwritten: the exchanges that are held until the owner acknowledges them.
    """

    def __init__(
        self,
        *,
        outbox: Outbox,
        buffer: Buffer,
        unsettled: Unsettled,
        presence: Presence,
        delivery: Delivery,
        now: Callable[[], float],
        pack_elsewhere: PackElsewhere,
        pack_inline_bytes: int,
        max_exchange_bytes: int,
        histories: HistoryBook | None,
        log: TroubleLog,
    ) -> None:
        self.claims: dict[int, Ticket] = {}
        self.unwritten: set[Commit] = set()
        self.max_exchange_bytes = max_exchange_bytes
        self.dropped = 0
        self._ended = False
        self._outbox = outbox
        self._buffer = buffer
        self._unsettled = unsettled
        self._presence = presence
        self._finish = delivery.finish
        self._now = now
        self._pack_elsewhere = pack_elsewhere
        self._pack_inline_bytes = pack_inline_bytes
        self._histories = histories
        self._log = log
        self._last = 0
        self._waiting: dict[Commit | Release, Committed] = {}
        self._losses: dict[tuple[str, int, str], int] = {}

    # -- claims -------------------------------------------------------------------------------------------------

    def claim(self, ticket: Ticket) -> None:
        """Declare a call. Answered once the claim is on disk, or once the call should go on without it."""
        self._last += 1
        ticket.number = self._last
        if self._ended or self._presence.patience_over(self._now()):
            ticket.state = ClaimState.UNCLAIMED
            self._finish(ticket, ClaimState.UNCLAIMED)
            if not self._ended:
                self._tell_unclaimed(ticket.rollout)
            return
        row = ClaimRow(ticket.rollout, ticket.number, ticket.model_call_id, ticket.generation)
        ticket.entry = Entry(row, lambda result: self._claim_answered(ticket, result))
        ticket.state = ClaimState.WAITING
        self.claims[ticket.number] = ticket
        self._unsettled.hold(ticket.rollout)
        self._outbox.add(ticket.entry)

    def sent_claims(self) -> list[int]:
        """The numbers of the claims that were sent and not seen closed."""
        return [number for number, ticket in self.claims.items() if ticket.entry is None or ticket.entry.sent]

    def _claim_answered(self, ticket: Ticket, result: Result) -> None:
        entry = ticket.entry
        if entry is not None and entry.late and not ticket.done and result.outcome in _OPENED:
            # It may be lost by now. Its call has not begun, so nobody is told before the owner says again that it is
            # open, or opens it anew, which takes the loss back.
            self._outbox.add(entry)
            return
        ticket.entry = None
        ticket.generation = result.generation
        if result.outcome in _OPENED:
            ticket.state = ClaimState.OPEN
        else:
            ticket.state = ClaimState.REFUSED
            ticket.outcome = outcome_of(result.outcome)
            if result.outcome == Outcome.UNKNOWN_GENERATION:
                self._log.warn(
                    "unknown-generation",
                    "generation %d of rollout %s was never handed out: its calls are not captured, and the rollout is "
                    "marked incomplete; use the number that clear() returned",
                    result.generation,
                    ticket.rollout,
                )
            del self.claims[ticket.number]
        self._finish(ticket, ticket.state)
        pending, ticket.pending = ticket.pending, None
        if pending is not None:
            pending()
        self._unsettled.settle(ticket.rollout)

    def _forget_unsent(self, ticket: Ticket) -> bool:
        """Take back a claim whose row has not left. True if the ticket is unclaimed now."""
        if ticket.state is not ClaimState.WAITING or ticket.entry is None or ticket.entry.sent:
            return False
        ticket.entry.withdrawn = True
        ticket.entry = None
        ticket.state = ClaimState.UNCLAIMED
        del self.claims[ticket.number]
        self._unsettled.settle(ticket.rollout)
        return True

    # -- commits ------------------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        """Write an exchange. Answered once it is on disk, or buffered, or lost."""
        ticket, snapshot = commit.ticket, commit.snapshot
        assert snapshot is not None
        if ticket is not None and ticket.state is ClaimState.REFUSED:
            self._finish(commit, Committed(ticket.outcome or CallOutcome.REFUSED, ticket.generation))
            return
        if self._ended:
            self.dropped += 1
            self._finish(commit, Committed(CallOutcome.DROPPED, commit.generation))
            return
        size = snapshot.raw_bytes
        if size > self.max_exchange_bytes:
            self._log.warn(
                "refused",
                "an exchange of rollout %s has %d bytes, at most %d are captured: it is refused and the rollout is "
                "marked incomplete; raise capture.max_exchange_bytes to keep such exchanges",
                commit.rollout,
                size,
                self.max_exchange_bytes,
            )
            value = Committed(CallOutcome.REFUSED, commit.generation, row_outcome=Outcome.TOO_LARGE)
            self._close_without(commit, ticket, commit.rollout, commit.generation, REFUSED, value)
            return
        self._unsettled.hold(commit.rollout)
        self.unwritten.add(commit)
        self._waiting[commit] = Committed(CallOutcome.BUFFERED, commit.generation)
        if self._buffer.waiting or not self._buffer.take(commit, size):
            if self._hurried(commit):
                self._drop(commit)
            else:
                self._buffer.waiting.append(commit)
        else:
            self._admit(commit, snapshot, size)

    def _hurried(self, commit: Commit) -> bool:
        """Its caller should not wait for the owner, which is away or answers nothing."""
        return (commit.impatient and not self._presence.ready) or self._presence.patience_over(self._now())

    def _admit(self, commit: Commit, snapshot: Snapshot, size: int) -> None:
        self._pack(commit, snapshot, size, self._turn(commit, snapshot))
        if commit in self._waiting and self._hurried(commit):
            self._let_wait(commit, self._waiting[commit])

    def _turn(self, commit: Commit, snapshot: Snapshot) -> Turn | None:
        """Its turn in the rollout's conversation, if it has one and the generation is known that its row will name."""
        ticket = commit.ticket
        if self._histories is None or (ticket is not None and ticket.state not in _SETTLED):
            return None
        request = snapshot.texts.get(PartKind.REQUEST)
        return self._histories.turn(commit.rollout, _generation_of(commit), request.data if request else b"")

    def _pack(self, commit: Commit, snapshot: Snapshot, size: int, turn: Turn | None) -> None:
        work = partial(pack if turn is None else turn.pack, snapshot)
        if size <= self._pack_inline_bytes:
            try:
                sealed = work()
            except Exception:  # noqa: BLE001 - a fault of this package: the exchange is lost, and that is accounted for
                logger.exception("an exchange could not be packed and is lost")
                sealed = None
            self._packed(commit, sealed, turn)
        else:
            self._pack_elsewhere(work, lambda sealed: self._packed(commit, sealed, turn))

    def _packed(self, commit: Commit, sealed: SealedExchange | None, turn: Turn | None) -> None:
        snapshot, commit.snapshot = commit.snapshot, None
        if sealed is None:
            if turn is not None:
                turn.end()
            self._lose(commit)
            return
        size = sealed.body_bytes if sealed.new is None else sealed.body_bytes + sealed.new.body_bytes
        if (
            sealed.needs
            and snapshot is not None
            and self._buffer.held + snapshot.raw_bytes <= self._buffer.capacity // 2
        ):
            # Kept for the case that the owner lacks what the exchange refers to.
            commit.whole = snapshot
            size += snapshot.raw_bytes
        self._buffer.resize(commit, size)
        queued = self._queue(commit, sealed, turn)
        # Nothing may refer to what still waits for its claim's answer, or was refused: the owner would lack it.
        if queued and turn is None and self._histories is not None and snapshot is not None:
            request = snapshot.texts.get(PartKind.REQUEST)
            if request is not None:
                first = FirstRequest(sealed.model_call_id, sealed.digest, request.data)
                self._histories.sent_whole(commit.rollout, _generation_of(commit), first)
        if turn is not None:
            turn.end()

    def _queue(self, commit: Commit, sealed: SealedExchange, turn: Turn | None = None) -> bool:
        """Queue its rows. False: not now (its claim may be open), or not at all (it was refused)."""
        ticket = commit.ticket
        claim = NO_CLAIM
        if ticket is not None:
            if ticket.state is ClaimState.WAITING and not self._forget_unsent(ticket):
                # The claim may be open at the owner, in a generation that only its answer tells.
                ticket.pending = lambda: self._queue(commit, sealed, turn)
                return False
            if ticket.state is ClaimState.REFUSED:
                self._settle_commit(commit, Committed(ticket.outcome or CallOutcome.REFUSED, ticket.generation))
                return False
        generation = _generation_of(commit)
        if ticket is not None and ticket.state is ClaimState.OPEN:
            claim = ticket.number
            ticket.state = ClaimState.CLOSING
        row = CommitRow(commit.rollout, claim, sealed.model_call_id, sealed.digest, sealed.parts, generation)
        if turn is not None and sealed.needs:
            row.history, row.messages = turn.conversation.number, sealed.needs
            for messages, new in turn.rows(commit.rollout, generation, sealed):
                self._outbox.add(Entry(messages, _nobody_waits, new.body, new.body_bytes))
        settle = partial(self._committed, commit, turn)
        self._outbox.add(Entry(row, settle, sealed.body, sealed.body_bytes))
        return True

    def _send_whole(self, commit: Commit, turn: Turn, generation: int) -> None:
        """The owner lacks messages that the exchange refers to, and kept nothing of it; its claim is as it was."""
        if self._histories is not None:
            self._histories.lacking(commit.rollout, generation, turn.conversation)
        ticket = commit.ticket
        if ticket is not None and ticket.state is ClaimState.CLOSING:
            ticket.state = ClaimState.OPEN
        snapshot, commit.whole = commit.whole, None
        self._log.warn(
            "lacking",
            "the owner lacks messages that an exchange of rollout %s refers to (it was cleared, or its log is "
            "damaged): %s",
            commit.rollout,
            "it is sent whole" if snapshot is not None else "it is lost, and counted: there was no room to keep it",
        )
        if snapshot is None:
            self._lose(commit)
        else:
            commit.snapshot = snapshot
            self._pack(commit, snapshot, snapshot.raw_bytes, None)

    def _committed(self, commit: Commit, turn: Turn | None, result: Result) -> None:
        ticket = commit.ticket
        if result.outcome == Outcome.LACKING and turn is not None:
            self._send_whole(commit, turn, _generation_of(commit))
            return
        if ticket is not None and ticket.state is ClaimState.CLOSING:
            self._closed(ticket)
            if result.outcome in (Outcome.TOO_LARGE, Outcome.INVALID):
                # The owner may have passed the row over and left the claim open; closing it again changes nothing.
                self._send_release(ticket, REFUSED)
        value = Committed(outcome_of(result.outcome), result.generation, result.call_index, result.outcome)
        if value.outcome is CallOutcome.REFUSED:
            self._log.warn(
                "refused",
                "the owner refused an exchange of rollout %s (%s): it is not captured and the rollout is marked "
                "incomplete",
                commit.rollout,
                Outcome(result.outcome).name.lower(),
            )
        self._settle_commit(commit, value)

    def _settle_commit(self, commit: Commit, value: Committed) -> None:
        commit.whole = None
        self.unwritten.discard(commit)
        self._buffer.free(commit)
        self._answer(commit, value)
        self._unsettled.settle(commit.rollout)
        self.admit_waiting()

    def _drop(self, commit: Commit) -> None:
        self._log.warn(
            "dropped",
            "the capture owner is away and the buffer of %d bytes is full: an exchange of rollout %s is lost; it is "
            "counted, and its rollout will be marked incomplete (raise capture.client_buffer_bytes to hold more)",
            self._buffer.capacity,
            commit.rollout,
        )
        self._lose(commit)

    def _lose(self, commit: Commit) -> None:
        commit.snapshot = None
        self.dropped += 1
        self._close_without(None, commit.ticket, commit.rollout, commit.generation, DROPPED, None)
        self._settle_commit(commit, Committed(CallOutcome.DROPPED, commit.generation))

    def admit_waiting(self) -> None:
        """Let commits in that waited for room."""
        waiting = self._buffer.waiting
        while waiting:
            commit = waiting[0]
            snapshot = commit.snapshot
            assert snapshot is not None
            size = snapshot.raw_bytes
            if not self._buffer.take(commit, size):
                return
            waiting.popleft()
            self._admit(commit, snapshot, size)

    # -- closings without an exchange ---------------------------------------------------------------------------

    def release(self, release: Release) -> None:
        """Close a claim without an exchange."""
        ticket = release.ticket
        value = Committed(CallOutcome.RELEASED, ticket.generation)
        if self._ended:
            self._finish(release, value)
            return
        self._close_without(release, ticket, ticket.rollout, ticket.generation, release.reason, value)

    def _close_without(
        self,
        operation: Commit | Release | None,
        ticket: Ticket | None,
        rollout: str,
        generation: int,
        reason: str,
        value: Committed | None,
    ) -> None:
        """Close the claim, or mark the rollout when there is none; `operation` is answered by `value` after that."""
        if ticket is not None and ticket.state is ClaimState.WAITING and not self._forget_unsent(ticket):
            if operation is not None and value is not None:
                self._waiting[operation] = value
            ticket.pending = lambda: self._close_without(operation, ticket, rollout, ticket.generation, reason, value)
            return
        state = ClaimState.UNCLAIMED if ticket is None else ticket.state
        if ticket is not None and state is ClaimState.OPEN:
            self._send_release(ticket, reason, operation, value)
        elif state is ClaimState.UNCLAIMED and reason:
            key = (rollout, generation, reason)
            if key not in self._losses:
                self._unsettled.hold(rollout)
            self._losses[key] = self._losses.get(key, 0) + 1
            self._answer(operation, value)
        else:
            refused = ticket.outcome if ticket is not None and state is ClaimState.REFUSED else None
            self._answer(operation, value if refused is None else Committed(refused, generation))

    def _send_release(
        self,
        ticket: Ticket,
        reason: str,
        operation: Commit | Release | None = None,
        value: Committed | None = None,
    ) -> None:
        def answered(result: Result) -> None:
            self._closed(ticket)
            fenced = result.outcome == Outcome.FENCED
            self._answer(operation, Committed(CallOutcome.FENCED, result.generation) if fenced else value)
            self._unsettled.settle(ticket.rollout)

        if ticket.state is ClaimState.OPEN:
            ticket.state = ClaimState.CLOSING
        if operation is not None and value is not None:
            self._waiting[operation] = value
        self._unsettled.hold(ticket.rollout)
        self._outbox.add(Entry(ReleaseRow(ticket.rollout, ticket.number, reason, ticket.generation), answered))
        if operation is not None and value is not None and self._presence.patience_over(self._now()):
            self._answer(operation, value)

    def _closed(self, ticket: Ticket) -> None:
        ticket.state = ClaimState.CLOSED
        self.claims.pop(ticket.number, None)

    def _answer(self, operation: Commit | Release | None, value: Committed | None) -> None:
        if operation is not None:
            self._waiting.pop(operation, None)
            self._finish(operation, value)

    def queue_losses(self) -> None:
        """Journal what is missing without a claim of its own. The owner has to be there."""
        losses, self._losses = self._losses, {}
        for (rollout, generation, reason), count in losses.items():
            self._outbox.add(Entry(MarkRow(rollout, reason, count, generation), partial(self._marked, rollout)))

    def _marked(self, rollout: str, result: Result) -> None:
        self._unsettled.settle(rollout)

    # -- the owner is away, or callers are ----------------------------------------------------------------------

    def owner_lost(self) -> None:
        """The link broke: callers that are being cancelled wait no longer."""
        for operation, value in list(self._waiting.items()):
            if type(operation) is Commit and operation.impatient:
                self._let_go(operation, value)

    def patience_over(self) -> None:
        """Calls go on without the owner."""
        for ticket in list(self.claims.values()):
            if ticket.state is ClaimState.WAITING and not ticket.done:
                self._forget_unsent(ticket)
                self._finish(ticket, ClaimState.UNCLAIMED)
                self._tell_unclaimed(ticket.rollout)
        for operation, value in list(self._waiting.items()):
            self._let_go(operation, value)

    def _let_go(self, operation: Commit | Release, value: Committed) -> None:
        if type(operation) is Commit and operation.snapshot is not None and operation in self._buffer.waiting:
            self._buffer.waiting.remove(operation)
            self._drop(operation)
        elif type(operation) is Commit:
            self._let_wait(operation, value)
        else:
            self._answer(operation, value)

    def _let_wait(self, commit: Commit, value: Committed) -> None:
        """Its caller goes on, the exchange stays in the buffer."""
        self._answer(commit, value)
        ticket = commit.ticket
        # Without a claim it was told when the call began; without a ticket the caller gets an error.
        claimed = ticket is not None and ticket.state is not ClaimState.UNCLAIMED
        if claimed and (self._presence.refused or self._presence.ended_cleanly):
            self._tell_unclaimed(commit.rollout)

    def _tell_unclaimed(self, rollout: str) -> None:
        """A call goes on without the owner: say what is the case with it."""
        presence = self._presence
        if presence.stopped:
            self._log.warn(
                "stopped",
                "the capture owner was stopped by this process: exchanges of rollout %s are kept in memory only, and "
                "lost when this process ends unless start() makes an owner before; stop() it after the last call",
                rollout,
            )
        elif presence.ended_cleanly:
            self._log.warn(
                "stopped",
                "the capture owner was stopped: exchanges of rollout %s are kept in memory only, and lost when this "
                "process ends unless an owner is started before",
                rollout,
            )
        elif presence.refused:
            self._log.warn(
                "unusable",
                "no capture owner can be used (%s): exchanges of rollout %s are kept in memory only, and lost when "
                "this process ends unless one can be used before",
                presence.trouble,
                rollout,
            )
        else:
            self._log.warn(
                "unclaimed",
                "the capture owner is away for longer than patience_s: calls go on without a claim (rollout %s); "
                "their exchanges are kept in memory until it is back",
                rollout,
            )

    def release_orphans(self) -> None:
        """Release the claims whose callers' loops are closed: nobody will close them any more."""
        for ticket in list(self.claims.values()):
            loop = ticket.loop
            if loop is not None and loop.is_closed() and not ticket.leaving:
                self.undelivered(ticket)

    def undelivered(self, ticket: Ticket) -> None:
        """The caller of a claim is gone."""
        ticket.leaving = True
        self.release(Release(ticket, RELEASED if ticket.entered else ""))

    def end(self) -> None:
        """Nothing will be sent any more: answer everybody, now and later."""
        self._ended = True
        for ticket in self.claims.values():
            ticket.state, ticket.entry, ticket.pending = ClaimState.UNCLAIMED, None, None
            self._finish(ticket, ClaimState.UNCLAIMED)
        for operation, value in list(self._waiting.items()):
            lost = type(operation) is Commit
            self.dropped += lost
            self._finish(operation, Committed(CallOutcome.DROPPED, value.generation) if lost else value)
        self._waiting.clear()
        self.claims.clear()
        self._losses.clear()
        self._buffer.waiting.clear()
