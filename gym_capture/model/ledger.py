"""The ledger: claims, leases, generations and batches of one owner as a pure state machine.

Commands and the time go in; completed rows and events come out. Nothing here does I/O, so the same class is the
owner's live state, the fold that a restart replays, and what a reader of a directory builds.

Every change is a row. A command first *decides*: it completes the row (generation, outcome, call index) from the
state as it is. Then the row is *applied* by the same method that replays it from the log (`ledger_fold`). A group
that could not be written is not undone: the ledger is thrown away and rebuilt from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gym_capture.model.codec import FrameFlag, FrameHead, FrameKind, FrameRef
from gym_capture.model.ledger_fold import NOTHING_SETTLED, ClientState, Settled
from gym_capture.model.ledger_pages import PagedLedger
from gym_capture.model.rollout_state import DAMAGED, Claim, RolloutState, RolloutView
from gym_capture.model.rows import (
    CURRENT,
    NO_CLAIM,
    PENDING_INDEX,
    ClaimRow,
    ClearRow,
    ClientRow,
    CommitRow,
    HistoryRow,
    LossRow,
    MarkRow,
    MergeRow,
    Outcome,
    Result,
    Row,
    SenderRow,
    result_of,
)

ANSWERS_KEPT_S = 3600.0
"""A client that was silent for so long after its lease is told of a repeated batch only that it was applied."""

_DAMAGE_STRIDE = 1 << 10
"""Generations skipped for each damage: an unreadable clear may have handed them out, and no number is used twice."""


# Plain integers: rows are decided and encoded by the ten thousand a second.
_APPLIED = int(Outcome.APPLIED)
_DUPLICATE = int(Outcome.DUPLICATE)
_FENCED = int(Outcome.FENCED)
_CONFLICT = int(Outcome.CONFLICT)
_UNKNOWN_GENERATION = int(Outcome.UNKNOWN_GENERATION)
_LACKING = int(Outcome.LACKING)
_REFUSED_AT_THE_DOOR = (int(Outcome.TOO_LARGE), int(Outcome.INVALID))


class Applied(NamedTuple):
    """A batch that was applied now: the rows to log, and the answers."""

    rows: list[Row]
    results: list[Result]


class Repeated(NamedTuple):
    """A batch that was applied before, in frame `sequence`: its answers again (None once the client confirmed them)."""

    sequence: int
    results: list[Result] | None


class Ledger(PagedLedger):
    """Claims, generations, batches and leases of one capture directory.

    Args:
        lease_s: how long a client may be silent before its claims are lost, in seconds of serving time.
    """

    def __init__(self, lease_s: float = 6.0) -> None:
        super().__init__()
        self.lease_s = lease_s

    def forget(self) -> None:
        """Be as new."""
        vars(self).update(vars(type(self)(self.lease_s)))

    # -- commands -----------------------------------------------------------------------------------------------

    def apply_batch(
        self,
        client_id: bytes,
        batch: int,
        confirmed: int,
        rows: Sequence[ClientRow],
        ref: FrameRef,
        now: float,
        wall: float,
    ) -> Applied | Repeated:
        """Apply one numbered batch, once.

        Args:
            batch: the client's number for it, from 1. A number that was applied before is answered from then.
            confirmed: the client has received the answers of all batches up to this one.
            ref: the frame that the batch will be logged in.
            now: the owner's serving clock, seconds.
            wall: the owner's wall clock, Unix seconds; kept as the claims' opening time.
        """
        client = self.renew(client_id, now)
        known = client.answers.get(batch)
        if known is not None:
            self.counts["repeated_batches"] += 1
            return Repeated(*known)
        if batch <= client.confirmed:
            self.counts["repeated_batches"] += 1
            return Repeated(0, None)
        for row in rows:
            if type(row) is ClaimRow:
                row.at = wall
            self._decide(client, row)
            self._apply(client, row, ref)
        results = [result_of(row) for row in rows]
        sender = SenderRow(client_id, batch, max(min(confirmed, batch - 1), client.confirmed))
        self._remember(client, sender, ref.sequence, results)
        self.last_sequence = ref.sequence
        self.unsaved_rows += len(rows)
        return Applied([sender, *rows], results)

    def apply_owner_rows(self, rows: Sequence[Row], ref: FrameRef) -> None:
        """Apply rows of the owner's own (losses, merges, clears it was asked for directly); they go into one frame."""
        for row in rows:
            if isinstance(row, ClearRow | MarkRow):
                self._decide(None, row)
            self._apply(None, row, ref)
        self.last_sequence = ref.sequence
        self.unsaved_rows += len(rows)

    def merge_row(self, rollout_id: str, issued: int) -> MergeRow:
        """The row that journals a merge of all rows applied by now."""
        rollout = self.rollout(rollout_id)
        return MergeRow(rollout_id, rollout.generation, rollout.next_index, issued)

    def view(self, rollout_id: str) -> RolloutView:
        """A snapshot of one rollout; an unknown one is empty."""
        rollout = self.rollouts.get(rollout_id)
        return (rollout or self._unknown(rollout_id)).view()

    # -- leases -------------------------------------------------------------------------------------------------

    def hello(self, client_id: bytes, open_claims: Iterable[int], now: float) -> list[Row]:
        """A client came (back). Returns losses for the claims that the ledger holds open and the client does not know.

        `open_claims` names every claim that the client has sent and not seen closed.
        """
        client = self.renew(client_id, now)
        unknown = client.claims.keys() - set(open_claims)
        return [self._loss(client.claims[number]) for number in sorted(unknown)]

    def renew(self, client_id: bytes, now: float) -> ClientState:
        """Any sign of life of a client renews its lease."""
        client = self.clients.get(client_id)
        if client is None:
            client = self.clients[client_id] = ClientState(client_id, now + self.lease_s)
        else:
            client.deadline = now + self.lease_s
            client.live = True
        return client

    def renew_all(self, now: float) -> None:
        """Give every known client a full lease (the owner was away and cannot know who is still there)."""
        for client in self.clients.values():
            client.deadline = now + self.lease_s
            client.live = True

    def renew_live(self, now: float) -> None:
        """Give every client that has not been expired a full lease: none of them could be heard now."""
        for client in self.clients.values():
            if client.live:
                client.deadline = now + self.lease_s

    def expire(self, now: float) -> list[Row]:
        """Clients whose lease has ended; returns the losses of their claims, which the caller applies and logs."""
        losses: list[Row] = []
        for client in self.clients.values():
            if client.live and client.deadline <= now:
                client.live = False
                self.counts["expired_clients"] += 1
                losses += [self._loss(claim) for claim in client.claims.values()]
            elif not client.live and client.answers and client.deadline + ANSWERS_KEPT_S <= now:
                client.confirmed = max(client.answers)
                client.answers.clear()
        return losses

    def leave(self, client_id: bytes) -> list[Row]:
        """A client says goodbye; claims it still holds are lost at once."""
        client = self.clients.get(client_id)
        if client is None:
            return []
        client.live = False
        return [self._loss(claim) for claim in client.claims.values()]

    def _loss(self, claim: Claim) -> LossRow:
        return LossRow(claim.rollout.id, claim.rollout.generation, claim.client, claim.number)

    # -- replay -------------------------------------------------------------------------------------------------

    def replay(self, head: FrameHead, rows: Sequence[Row], ref: FrameRef) -> None:
        """Apply a frame that was read from the log (and is durable). A batch that comes again is passed over."""
        if head.kind == FrameKind.BATCH and rows and isinstance(rows[0], SenderRow):
            sender = rows[0]
            client = self.renew(sender.client, 0.0)
            if sender.batch > client.confirmed and sender.batch not in client.answers:
                for row in rows[1:]:
                    self._apply(client, row, ref)
                if not head.flags & FrameFlag.PARTIAL:
                    results = [result_of(row) for row in rows[1:] if isinstance(row, ClientRow)]
                    self._remember(client, sender, head.sequence, results)
        else:
            for row in rows:
                self._apply(None, row, ref)
            if any(type(row) is MarkRow and row.reason == DAMAGED for row in rows):
                # An owner that recovered found rot in a last group. It lies beyond the cut, so no later reader sees it.
                self._damages += 1
        self.last_sequence = max(self.last_sequence, head.sequence)
        self.unsaved_rows += len(rows)
        self.durable(self.last_sequence)

    def replay_damage(self, rollout_ids: Iterable[str], *, others: bool = False) -> None:
        """A head of the log is unreadable: these rollouts may have lost rows in it.

        Args:
            others: so may every rollout that is not known yet; it begins as damaged, until it is cleared.
        """
        self._damages += 1
        for rollout_id in rollout_ids:
            self.rollout(rollout_id).add_reason(DAMAGED)
        self.others_damaged |= others

    # -- deciding -----------------------------------------------------------------------------------------------

    def _decide(self, client: ClientState | None, row: ClientRow) -> None:
        """Complete a row: its generation, outcome and call index, from the state as it is.

        A row that comes in as too large or invalid was refused at the door and stays so; as a commit it still closes
        its claim and marks its rollout, unless its generation is over.
        """
        kind = type(row)
        refused = row.outcome in _REFUSED_AT_THE_DOOR
        if refused and kind is not CommitRow:
            return
        rollout = self.rollouts.get(row.rollout)
        current = rollout.generation if rollout is not None else 0
        if type(row) is ClearRow:
            self._decide_clear(rollout, row)
            return
        if row.generation == CURRENT:
            row.generation = self._generation_of(client, rollout, row)
            self.counts["rows_without_token"] += 1
        if row.generation != current:
            row.outcome = _FENCED if row.generation < current else _UNKNOWN_GENERATION
        elif not refused:
            row.outcome = _APPLIED
        if type(row) is CommitRow:
            row.call_index = PENDING_INDEX
            if row.outcome != _APPLIED:
                row.parts = []
            elif rollout is not None:
                self._decide_commit(client, rollout, row)
            elif row.messages:
                row.outcome, row.parts = _LACKING, []
            else:
                row.call_index = 0
        elif type(row) is HistoryRow:
            self._decide_history(client, rollout, row)
        elif type(row) is ClaimRow and row.outcome == _APPLIED and client is not None and row.claim in client.claims:
            row.outcome = _DUPLICATE

    def _decide_clear(self, rollout: RolloutState | None, row: ClearRow) -> None:
        known = rollout.clears.get(row.request) if rollout is not None and row.request else None
        if known is not None:
            row.generation = known
            row.outcome = _DUPLICATE
        else:
            current = rollout.generation if rollout is not None else 0
            row.generation = current + 1 + _DAMAGE_STRIDE * self._damages
            row.outcome = _APPLIED

    @staticmethod
    def _generation_of(client: ClientState | None, rollout: RolloutState | None, row: ClientRow) -> int:
        """The generation of a row without a token: the current one, but for what belongs to an earlier claim.

        A claim without a token belongs to the generation that was current when it was made. So what closes it does
        too: a commit whose claim is neither open nor lost in a generation that began with a clear was fenced by it.
        """
        if rollout is None:
            return 0
        current = rollout.generation
        if not current or client is None or type(row) is not CommitRow or row.claim == NO_CLAIM:
            return current
        key = (client.id, row.claim)
        known = key in rollout.open or key in rollout.lost or row.model_call_id in rollout.calls
        return current if known else current - 1

    def _decide_history(self, client: ClientState | None, rollout: RolloutState | None, row: HistoryRow) -> None:
        if row.outcome == _APPLIED:
            history = rollout.histories.get((client.id, row.history)) if rollout is not None and client else None
            if history is not None and history.has(row.first, row.count):
                row.outcome = _DUPLICATE
            elif row.first != (history.reach if history is not None else 0):
                # Messages before it are missing; or it would say something else of a number that is taken.
                row.outcome = _LACKING
            elif row.source and (rollout is None or self._source(rollout, row) is None):
                row.outcome = _LACKING
        if row.outcome != _APPLIED:
            row.parts = []

    def _decide_commit(self, client: ClientState | None, rollout: RolloutState, row: CommitRow) -> None:
        known = rollout.calls.get(row.model_call_id)
        if known is None:
            if row.messages and not _has_messages(client, rollout, row):
                row.outcome, row.parts = _LACKING, []
            else:
                row.call_index = rollout.next_index
        elif known.digest == row.digest:
            row.outcome = _DUPLICATE
            row.call_index = known.call_index
            row.parts = []
        else:
            row.outcome = _CONFLICT
            row.parts = []

    def _remember(self, client: ClientState, sender: SenderRow, sequence: int, results: list[Result]) -> None:
        client.answers[sender.batch] = (sequence, results)
        if sender.confirmed > client.confirmed:
            client.confirmed = sender.confirmed
            for batch in [number for number in client.answers if number <= sender.confirmed]:
                del client.answers[batch]


def _has_messages(client: ClientState | None, rollout: RolloutState, row: CommitRow) -> bool:
    history = None if client is None else rollout.histories.get((client.id, row.history))
    return history is not None and history.reach >= row.messages


__all__ = ["ANSWERS_KEPT_S", "NOTHING_SETTLED", "Applied", "ClientState", "Ledger", "Repeated", "Settled"]
