"""The ledger: claims, leases, generations and batches of one owner as a pure state machine.

Commands and the time go in; completed rows and events come out. Nothing here does I/O, so the same class is the
owner's live state, the fold that a restart replays, and what a reader of a directory builds.

Every change is a row. A command first *decides*: it completes the row (generation, outcome, call index) from the
state as it is. Then the row is *applied* by the same method that replays it from the log, so that what a restart
rebuilds is what was decided. What is applied is not durable yet: `durable(sequence)` says how far the log is on disk,
and only then does a closed claim stop being outstanding. A group that could not be written is not undone: the ledger
is thrown away and rebuilt from the log.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gym_capture.model.codec import FrameFlag, FrameHead, FrameKind, FrameRef
from gym_capture.model.rollout_state import DAMAGED, LOST, REFUSED, Claim, Entry, RolloutState, RolloutView
from gym_capture.model.rows import (
    CURRENT,
    NO_CLAIM,
    ClaimRow,
    ClearRow,
    ClientRow,
    CommitRow,
    LossRow,
    MarkRow,
    MergeRow,
    Outcome,
    ReleaseRow,
    Result,
    Row,
    SenderRow,
    result_of,
)


class Settled(NamedTuple):
    """What became quiescent: the rollouts that lost their last outstanding claim, and whether the whole run did."""

    rollouts: list[str]
    run: bool


NOTHING_SETTLED = Settled([], False)


class Applied(NamedTuple):
    """A batch that was applied now: the rows to log, and the answers."""

    rows: list[Row]
    results: list[Result]


class Repeated(NamedTuple):
    """A batch that was applied before, in frame `sequence`: its answers again (None once the client confirmed them)."""

    sequence: int
    results: list[Result] | None


class ClientState:
    """What the ledger knows of one client process.

    Attributes:
        deadline: when its lease ends, on the owner's serving clock (seconds).
        live: whether the lease is running.
        claims: its open claims by number.
        answers: batch number → (frame sequence, results), until the client confirms their receipt.
        confirmed: every batch up to this one was confirmed.
    """

    __slots__ = ("answers", "claims", "confirmed", "deadline", "id", "live")

    def __init__(self, client_id: bytes, deadline: float) -> None:
        self.id = client_id
        self.deadline = deadline
        self.live = True
        self.claims: dict[int, Claim] = {}
        self.answers: dict[int, tuple[int, list[Result]]] = {}
        self.confirmed = 0


class Ledger:
    """Claims, generations, batches and leases of one capture directory.

    Args:
        lease_s: how long a client may be silent before its claims are lost, in seconds of serving time.
    """

    def __init__(self, lease_s: float = 6.0) -> None:
        self.lease_s = lease_s
        self.rollouts: dict[str, RolloutState] = {}
        self.clients: dict[bytes, ClientState] = {}
        self.counts: Counter[str] = Counter()
        self.durable_sequence = 0
        self.last_sequence = 0
        self._open = 0
        self._closing = 0
        self._closings: deque[tuple[int, RolloutState]] = deque()
        self._late = 0

    # -- what is outstanding ------------------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """Outstanding claims of the whole run."""
        return self._open + self._closing

    @property
    def late(self) -> int:
        """Rows of the run that landed after a merge of their rollout and that no merge has returned."""
        return sum(rollout.late for rollout in self.rollouts.values()) if self._late else 0

    def outstanding_of(self, rollout_id: str) -> int:
        """Outstanding claims of one rollout, 0 for an unknown one."""
        rollout = self.rollouts.get(rollout_id)
        return rollout.outstanding if rollout else 0

    def open_claims(self) -> Iterable[Claim]:
        """All open claims, in no order."""
        for client in self.clients.values():
            yield from client.claims.values()

    def durable(self, sequence: int) -> Settled:
        """All frames up to `sequence` are on disk: their closings count from now on."""
        self.durable_sequence = sequence
        closings = self._closings
        if not closings or closings[0][0] > sequence:
            return NOTHING_SETTLED
        settled: list[str] = []
        while closings and closings[0][0] <= sequence:
            _, rollout = closings.popleft()
            rollout.closing -= 1
            self._closing -= 1
            if not rollout.closing and not rollout.open:
                settled.append(rollout.id)
        return Settled(settled, not self.outstanding)

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
        sender = SenderRow(client_id, batch, max(confirmed, client.confirmed))
        self._remember(client, sender, ref.sequence, results)
        self.last_sequence = ref.sequence
        return Applied([sender, *rows], results)

    def apply_owner_rows(self, rows: Sequence[Row], ref: FrameRef) -> None:
        """Apply rows of the owner's own (losses, merges, clears it was asked for directly); they go into one frame."""
        for row in rows:
            if isinstance(row, ClearRow | MarkRow):
                self._decide(None, row)
            self._apply(None, row, ref)
        self.last_sequence = ref.sequence

    def merge_row(self, rollout_id: str, issued: int) -> MergeRow:
        """The row that journals a merge of all rows applied by now."""
        rollout = self.rollout(rollout_id)
        return MergeRow(rollout_id, rollout.generation, rollout.next_index, issued)

    def view(self, rollout_id: str) -> RolloutView:
        """A snapshot of one rollout; an unknown one is empty."""
        rollout = self.rollouts.get(rollout_id)
        return rollout.view() if rollout else RolloutView(rollout_id, 0, [], 0, None, 0)

    def rollout(self, rollout_id: str) -> RolloutState:
        """The state of one rollout, made when it is new."""
        rollout = self.rollouts.get(rollout_id)
        if rollout is None:
            rollout = self.rollouts[rollout_id] = RolloutState(rollout_id)
        return rollout

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

    def expire(self, now: float) -> list[Row]:
        """Clients whose lease has ended; returns the losses of their claims, which the caller applies and logs."""
        losses: list[Row] = []
        for client in self.clients.values():
            if client.live and client.deadline <= now:
                client.live = False
                self.counts["expired_clients"] += 1
                losses += [self._loss(claim) for claim in client.claims.values()]
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
        """Apply a frame that was read from the log (and is durable)."""
        if head.kind == FrameKind.BATCH and rows and isinstance(rows[0], SenderRow):
            sender = rows[0]
            client = self.renew(sender.client, 0.0)
            for row in rows[1:]:
                self._apply(client, row, ref)
            if not head.flags & FrameFlag.PARTIAL:
                results = [result_of(row) for row in rows[1:]]  # type: ignore[arg-type]  # a batch holds client rows
                self._remember(client, sender, head.sequence, results)
        else:
            for row in rows:
                self._apply(None, row, ref)
        self.last_sequence = max(self.last_sequence, head.sequence)
        self.durable(self.last_sequence)

    def replay_damage(self, rollout_ids: Iterable[str]) -> None:
        """A head of the log is unreadable: these rollouts may have lost rows in it."""
        for rollout_id in rollout_ids:
            self.rollout(rollout_id).add_reason(DAMAGED)

    # -- deciding -----------------------------------------------------------------------------------------------

    def _decide(self, client: ClientState | None, row: ClientRow) -> None:
        """Complete a row: its generation, outcome and call index, from the state as it is.

        A row that comes in as too large or invalid was refused at the door and stays so; as a commit it still closes
        its claim and marks its rollout, unless its generation is over.
        """
        refused = row.outcome if row.outcome in (Outcome.TOO_LARGE, Outcome.INVALID) else None
        if refused is not None and type(row) is not CommitRow:
            return
        rollout = self.rollout(row.rollout)
        if type(row) is ClearRow:
            repeated = row.request != "" and row.request == rollout.clear_request
            row.generation = rollout.generation if repeated else rollout.generation + 1
            row.outcome = Outcome.DUPLICATE if repeated else Outcome.APPLIED
            return
        if row.generation == CURRENT:
            row.generation = rollout.generation
            self.counts["rows_without_token"] += 1
        elif row.generation != rollout.generation:
            row.outcome = Outcome.FENCED if row.generation < rollout.generation else Outcome.UNKNOWN_GENERATION
            if type(row) is CommitRow:
                row.parts = []
            return
        if refused is not None:
            return
        row.outcome = Outcome.APPLIED
        if type(row) is CommitRow:
            self._decide_commit(rollout, row)
        elif type(row) is ClaimRow and client is not None and row.claim in client.claims:
            row.outcome = Outcome.DUPLICATE

    def _decide_commit(self, rollout: RolloutState, row: CommitRow) -> None:
        known = rollout.calls.get(row.model_call_id)
        if known is None:
            row.call_index = rollout.next_index
        elif known.digest == row.digest:
            row.outcome = Outcome.DUPLICATE
            row.call_index = known.call_index
            row.parts = []
        else:
            row.outcome = Outcome.CONFLICT
            row.parts = []

    # -- applying -----------------------------------------------------------------------------------------------

    def _apply(self, client: ClientState | None, row: Row, ref: FrameRef) -> None:
        """Change the state as a completed row says; live and in replay alike. Damage may have swallowed rows before."""
        kind = type(row)
        if kind is CommitRow:
            self._apply_commit(client, row, ref)  # type: ignore[arg-type]
        elif kind is ClaimRow:
            self._apply_claim(client, row)  # type: ignore[arg-type]
        elif kind is ReleaseRow:
            self._apply_release(client, row, ref)  # type: ignore[arg-type]
        elif kind is LossRow:
            self._apply_loss(row, ref)  # type: ignore[arg-type]
        elif kind is MarkRow:
            self._apply_mark(row)  # type: ignore[arg-type]
        elif kind is ClearRow:
            self._apply_clear(row, ref)  # type: ignore[arg-type]
        elif kind is MergeRow:
            self._apply_merge(row)  # type: ignore[arg-type]

    def _current(self, row: ClientRow | LossRow | MergeRow) -> RolloutState | None:
        """The rollout, if the row belongs to its current generation. A later one means that its clear was damaged."""
        rollout = self.rollout(row.rollout)
        if row.generation == rollout.generation:
            return rollout
        if row.generation < rollout.generation:
            return None
        for claim in rollout.open.values():
            self._forget_claim(claim)
        self._open -= len(rollout.open)
        rollout.open.clear()
        rollout.begin(row.generation, "")
        rollout.add_reason(DAMAGED)
        return rollout

    def _apply_claim(self, client: ClientState | None, row: ClaimRow) -> None:
        if row.outcome != Outcome.APPLIED:
            self._count_refusal(row)
            return
        rollout = self._current(row)
        if rollout is None or client is None:
            return
        claim = Claim(client.id, row.claim, rollout, row.model_call_id, row.at)
        client.claims[row.claim] = claim
        rollout.open[client.id, row.claim] = claim
        self._open += 1
        self.counts["claims"] += 1

    def _apply_commit(self, client: ClientState | None, row: CommitRow, ref: FrameRef) -> None:
        if row.outcome in (Outcome.FENCED, Outcome.UNKNOWN_GENERATION):
            self._count_refusal(row)
            return
        rollout = self._current(row)
        if rollout is None:
            return
        closed = client is not None and row.claim != NO_CLAIM and self._close(client, row.claim, rollout, ref)
        if row.outcome == Outcome.APPLIED:
            entry = Entry(row.call_index, row.model_call_id, row.digest, row.parts, ref)
            rollout.entries.append(entry)
            rollout.calls[row.model_call_id] = entry
            rollout.next_index = row.call_index + 1
            self.counts["commits"] += 1
            if rollout.merged:
                self._late += 1
            if not closed:
                self._hold(rollout, ref)
        elif row.outcome == Outcome.DUPLICATE:
            self.counts["duplicates"] += 1
        else:
            self.counts["conflicts" if row.outcome == Outcome.CONFLICT else "refused_rows"] += 1
            rollout.add_reason(REFUSED)

    def _apply_release(self, client: ClientState | None, row: ReleaseRow, ref: FrameRef) -> None:
        if row.outcome != Outcome.APPLIED:
            self._count_refusal(row)
            return
        rollout = self._current(row)
        if rollout is None or client is None:
            return
        was_lost = (client.id, row.claim) in rollout.lost
        if self._close(client, row.claim, rollout, ref) or was_lost:
            if row.reason:
                rollout.add_reason(row.reason)
            self.counts["releases"] += 1

    def _apply_loss(self, row: LossRow, ref: FrameRef) -> None:
        rollout = self._current(row)
        client = self.clients.get(row.client)
        if rollout is None or client is None or (row.client, row.claim) not in rollout.open:
            return
        self._close(client, row.claim, rollout, ref)
        rollout.lost.add((row.client, row.claim))
        rollout.add_reason(LOST)
        self.counts["losses"] += 1

    def _apply_mark(self, row: MarkRow) -> None:
        if row.outcome != Outcome.APPLIED:
            self._count_refusal(row)
            return
        rollout = self._current(row)
        if rollout is not None:
            rollout.add_reason(row.reason, row.count)

    def _apply_clear(self, row: ClearRow, ref: FrameRef) -> None:
        rollout = self.rollout(row.rollout)
        if row.outcome != Outcome.APPLIED or row.generation <= rollout.generation:
            return
        # The claims close as fenced; until the clear is durable they are still outstanding, for a crash may undo it.
        for claim in rollout.open.values():
            self._forget_claim(claim)
            self._hold(rollout, ref)
            self.counts["fenced"] += 1
        self._open -= len(rollout.open)
        rollout.open.clear()
        rollout.begin(row.generation, row.request)
        self.counts["clears"] += 1

    def _apply_merge(self, row: MergeRow) -> None:
        rollout = self._current(row)
        if rollout is not None:
            rollout.merged = True
            rollout.returned = max(rollout.returned, row.returned)
            rollout.issued = max(rollout.issued, row.issued)
            self.counts["merges"] += 1

    # -- claims and batches -------------------------------------------------------------------------------------

    def _close(self, client: ClientState, number: int, rollout: RolloutState, ref: FrameRef) -> bool:
        """Close a claim if it is open, and retract its loss if it was lost. True if it was open."""
        key = (client.id, number)
        claim = rollout.open.pop(key, None)
        if claim is None:
            rollout.retract_loss(key)
            return False
        client.claims.pop(number, None)
        self._open -= 1
        self._hold(rollout, ref)
        return True

    def _forget_claim(self, claim: Claim) -> None:
        client = self.clients.get(claim.client)
        if client is not None:
            client.claims.pop(claim.number, None)

    def _hold(self, rollout: RolloutState, ref: FrameRef) -> None:
        """Something of the rollout is applied and must be durable before it counts as settled."""
        rollout.closing += 1
        self._closing += 1
        self._closings.append((ref.sequence, rollout))

    def _remember(self, client: ClientState, sender: SenderRow, sequence: int, results: list[Result]) -> None:
        client.answers[sender.batch] = (sequence, results)
        if sender.confirmed > client.confirmed:
            client.confirmed = sender.confirmed
            for batch in [number for number in client.answers if number <= sender.confirmed]:
                del client.answers[batch]

    def _count_refusal(self, row: ClientRow) -> None:
        self.counts["fenced" if row.outcome == Outcome.FENCED else "refused_rows"] += 1
