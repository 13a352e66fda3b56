"""The fold of the log: what completed rows make of rollouts, claims and clients. Pure.

The same methods apply a row live and in a replay, so that what a restart rebuilds is what was decided. What is applied
is not durable yet: `durable(sequence)` says how far the log is on disk, and only then does a closed claim stop being
outstanding.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from gym_capture.model.archive import Archive
from gym_capture.model.codec import FrameRef
from gym_capture.model.rollout_state import DAMAGED, PLAIN, REFUSED, Claim, Entry, RolloutState
from gym_capture.model.rows import (
    NO_CLAIM,
    ClaimRow,
    ClearRow,
    ClientRow,
    CommitRow,
    HistoryRow,
    LossRow,
    MarkRow,
    MergeRow,
    Outcome,
    Part,
    ReleaseRow,
    Result,
    Row,
)

_APPLIED = int(Outcome.APPLIED)
_DUPLICATE = int(Outcome.DUPLICATE)
_FENCED = int(Outcome.FENCED)
_UNKNOWN_GENERATION = int(Outcome.UNKNOWN_GENERATION)
_LACKING = int(Outcome.LACKING)
_NOT_CURRENT = (_FENCED, _UNKNOWN_GENERATION)


class Settled(NamedTuple):
    """What became quiescent: the rollouts that lost their last outstanding claim, and whether the whole run did."""

    rollouts: list[str]
    run: bool


NOTHING_SETTLED = Settled([], False)


class ClientState:
    """What the ledger knows of one client process. It stays for good, so that no batch is applied twice.

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


class LedgerFold:
    """Rollouts and clients as the rows so far made them.

    Attributes:
        rollouts: by id. Ids that only ever had rows refused are not among them.
        clients: by id.
        counts: what happened, by name; `rows_without_token`, `repeated_batches` and `expired_clients` since the owner
            started, the others since the run began.
        durable_sequence: all frames up to it are on disk.
        last_sequence: all frames up to it are applied.
        archived: the rollouts that are on disk only (`ledger_pages`).
        changed: ids of the rollouts that changed since the last snapshot.
        lease_s: how long a client may be silent, in seconds of serving time.
        begun: how often something became outstanding. Nothing outstanding twice, with the same number in between, means
            nothing outstanding in between.
    """

    lease_s = 6.0

    def __init__(self) -> None:
        self.rollouts: dict[str, RolloutState] = {}
        self.archived = Archive()
        self.changed: set[str] = set()
        self.last_sequence = 0
        self._damages = 0
        self.clients: dict[bytes, ClientState] = {}
        self.counts: Counter[str] = Counter()
        self.durable_sequence = 0
        self._open = 0
        self._closing = 0
        self._closings: deque[tuple[int, RolloutState]] = deque()
        self._late = 0
        self.begun = 0
        # An end of the log is gone: of a rollout that is not known, nobody can say that it had nothing in it.
        self.others_damaged = False

    # -- what is outstanding ------------------------------------------------------------------------------------

    @property
    def outstanding(self) -> int:
        """Outstanding claims of the whole run."""
        return self._open + self._closing

    @property
    def late(self) -> int:
        """Rows of the run that landed after a merge of their rollout and that no merge has returned."""
        return self._late

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

    def rollout(self, rollout_id: str) -> RolloutState:
        """The state of one rollout that is about to change, made when it is new."""
        rollout = self.rollouts.get(rollout_id)
        if rollout is None:
            rollout = self.rollouts[rollout_id] = self._unknown(rollout_id)
        self.changed.add(rollout_id)
        return rollout

    def _unknown(self, rollout_id: str) -> RolloutState:
        if rollout_id in self.archived:
            raise RuntimeError(f"rollout {rollout_id} is archived and was not brought back")
        rollout = RolloutState(rollout_id)
        if self.others_damaged:
            rollout.add_reason(DAMAGED)
        return rollout

    # -- applying -----------------------------------------------------------------------------------------------

    def _apply(self, client: ClientState | None, row: Row, ref: FrameRef) -> None:
        """Change the state as a completed row says; live and in replay alike. Damage may have swallowed rows before."""
        if type(row) is CommitRow:
            self._apply_commit(client, row, ref)
        elif type(row) is ClaimRow:
            self._apply_claim(client, row, ref)
        elif type(row) is HistoryRow:
            self._apply_history(client, row, ref)
        elif type(row) is ReleaseRow:
            self._apply_release(client, row, ref)
        elif type(row) is LossRow:
            self._apply_loss(row, ref)
        elif type(row) is MarkRow:
            self._apply_mark(row, ref)
        elif type(row) is ClearRow:
            self._apply_clear(row, ref)
        elif type(row) is MergeRow:
            self._apply_merge(row)

    def _current(self, row: ClientRow | LossRow | MergeRow) -> RolloutState | None:
        """The rollout, if the row belongs to its current generation. A later one means that its clear was damaged."""
        rollout = self.rollout(row.rollout)
        if row.generation == rollout.generation:
            return rollout
        if row.generation < rollout.generation:
            return None
        self._begin(rollout, row.generation, "")
        rollout.add_reason(DAMAGED)
        return rollout

    def _begin(self, rollout: RolloutState, generation: int, request: str) -> None:
        """Start a generation; what is open closes as fenced."""
        for claim in rollout.open.values():
            holder = self.clients.get(claim.client)
            if holder is not None:
                holder.claims.pop(claim.number, None)
        self.counts["fenced"] += len(rollout.open)
        self._open -= len(rollout.open)
        self._late -= rollout.late
        rollout.open.clear()
        rollout.begin(generation, request)

    def _apply_claim(self, client: ClientState | None, row: ClaimRow, ref: FrameRef) -> None:
        if row.outcome != _APPLIED:
            self._count_refusal(row)
            if row.outcome == _UNKNOWN_GENERATION:
                self._mark_unknown(client, row)
            return
        rollout = self._current(row)
        if rollout is None or client is None:
            return
        earlier = client.claims.get(row.claim)
        if earlier is not None:
            # The number is used again, so what closed it is missing here (damage).
            self._close(client, row.claim, earlier.rollout, ref)
            earlier.rollout.add_reason(DAMAGED)
        claim = Claim(client.id, row.claim, rollout, row.model_call_id, row.at)
        client.claims[row.claim] = claim
        rollout.open[client.id, row.claim] = claim
        rollout.retract_loss((client.id, row.claim))
        self._open += 1
        self.begun += 1
        self.counts["claims"] += 1

    def _apply_history(self, client: ClientState | None, row: HistoryRow, ref: FrameRef) -> None:
        if row.outcome != _APPLIED or client is None:
            return
        rollout = self._current(row)
        if rollout is None:
            return
        if row.source:
            found = self._source(rollout, row)
            if found is None:
                return  # damage swallowed it
            rollout.history(client.id, row.history).add(row.first, found[0].ref, [found[1]], row.ranges)
        else:
            rollout.history(client.id, row.history).add(row.first, ref, row.parts, [])
        self.counts["messages"] += row.count

    @staticmethod
    def _source(rollout: RolloutState, row: HistoryRow) -> tuple[Entry, Part] | None:
        """The exchange in whose request the messages of a row lie, and the request's part."""
        entry = rollout.calls.get(row.source)
        if entry is None or entry.digest != row.source_digest:
            return None
        part = entry.request_in_full()
        if part is None or any(at + size > part.raw for at, size in row.ranges):
            return None
        return entry, part

    def _apply_commit(self, client: ClientState | None, row: CommitRow, ref: FrameRef) -> None:
        if row.outcome == _LACKING:
            # Not kept, and not over: the exchange comes again, whole.
            self.counts["lacking"] += 1
            return
        if row.outcome in _NOT_CURRENT:
            self._count_refusal(row)
            self._close_mistaken(client, row, ref)
            if row.outcome == _UNKNOWN_GENERATION:
                self._mark_unknown(client, row)
            return
        rollout = self._current(row)
        if rollout is None:
            return
        closed = client is not None and row.claim != NO_CLAIM and self._close(client, row.claim, rollout, ref)
        if row.outcome == _DUPLICATE:
            self.counts["duplicates"] += 1
            # Usually there; if damage swallowed the first one, this shows that there was one.
            self._extend(rollout, row.call_index + 1)
            return
        if not closed:
            self._hold(rollout, ref)
        if row.outcome == _APPLIED and row.model_call_id not in rollout.calls:
            self._append(rollout, client, row, ref)
        elif row.outcome == _APPLIED and rollout.calls[row.model_call_id].digest == row.digest:
            # It was committed again because the first one was unreadable then and is not now.
            self.counts["duplicates"] += 1
        else:
            self._refuse(rollout, row)

    def _mark_unknown(self, client: ClientState | None, row: ClaimRow | CommitRow) -> None:
        """A call under a token that no clear handed out: it may be made and is nowhere, so what is current says so."""
        rollout = self.rollout(row.rollout)
        call = row.model_call_id or f"{client.id.hex() if client is not None else ''}:{row.claim}"
        if rollout.refuse(call, b""):
            rollout.add_absent(call)

    def _append(self, rollout: RolloutState, client: ClientState | None, row: CommitRow, ref: FrameRef) -> None:
        history = rollout.history(client.id, row.history) if row.messages and client is not None else None
        entry = Entry(row.call_index, row.model_call_id, row.digest, row.parts, ref, history, row.messages)
        rollout.entries.append(entry)
        rollout.calls[row.model_call_id] = entry
        self._extend(rollout, row.call_index + 1)
        self.counts["commits"] += 1

    def _extend(self, rollout: RolloutState, next_index: int) -> None:
        """Call indexes below `next_index` were given."""
        if next_index > rollout.next_index:
            late = rollout.late
            rollout.next_index = next_index
            self._late += rollout.late - late

    def _refuse(self, rollout: RolloutState, row: CommitRow) -> None:
        if row.outcome in (Outcome.TOO_LARGE, Outcome.INVALID):
            self.counts["refused_rows"] += 1
            rollout.add_reason(REFUSED)
            rollout.add_absent(row.model_call_id)
            return
        self.counts["conflicts"] += 1
        rollout.refuse(row.model_call_id, row.digest)

    def _apply_release(self, client: ClientState | None, row: ReleaseRow, ref: FrameRef) -> None:
        if row.outcome != _APPLIED:
            self._count_refusal(row)
            self._close_mistaken(client, row, ref)
            return
        rollout = self._current(row)
        if rollout is None or client is None:
            return
        key = (client.id, row.claim)
        call = rollout.open[key].identity if key in rollout.open else rollout.lost.get(key)
        if self._close(client, row.claim, rollout, ref):
            if row.reason and call is not None:
                rollout.add_reason(row.reason)
                rollout.add_absent(call)
            self.counts["releases"] += 1

    def _apply_loss(self, row: LossRow, ref: FrameRef) -> None:
        rollout = self._current(row)
        client = self.clients.get(row.client)
        if rollout is None or client is None or (row.client, row.claim) not in rollout.open:
            return
        claim = rollout.open[row.client, row.claim]
        self._close(client, row.claim, rollout, ref)
        rollout.lose(claim)
        self.counts["losses"] += 1

    def _apply_mark(self, row: MarkRow, ref: FrameRef) -> None:
        if row.outcome != _APPLIED:
            self._count_refusal(row)
        # What is missing under a token that no clear handed out is missing all the same.
        rollout = self.rollout(row.rollout) if row.outcome == _UNKNOWN_GENERATION else self._marked(row)
        if rollout is not None:
            rollout.add_reason(row.reason, row.count)
            if row.reason not in (PLAIN, DAMAGED):
                rollout.marked += row.count
            self._hold(rollout, ref)

    def _marked(self, row: MarkRow) -> RolloutState | None:
        return self._current(row) if row.outcome == _APPLIED else None

    def _apply_clear(self, row: ClearRow, ref: FrameRef) -> None:
        if row.outcome != _APPLIED:
            return
        rollout = self.rollout(row.rollout)
        if row.generation <= rollout.generation:
            return
        # Until the clear is durable, what it fences is still outstanding, for a crash may undo it.
        for _ in rollout.open:
            self._hold(rollout, ref)
        self._begin(rollout, row.generation, row.request)
        self.counts["clears"] += 1

    def _apply_merge(self, row: MergeRow) -> None:
        rollout = self._current(row)
        if rollout is not None:
            self._extend(rollout, row.returned)
            late = rollout.late
            rollout.merged = True
            rollout.returned = max(rollout.returned, row.returned)
            rollout.issued = max(rollout.issued, row.issued)
            self._late += rollout.late - late
            self.counts["merges"] += 1

    # -- closing ------------------------------------------------------------------------------------------------

    def _close(self, client: ClientState, number: int, rollout: RolloutState, ref: FrameRef) -> bool:
        """Close a claim that is open, or retract its loss. True if it was open or lost."""
        key = (client.id, number)
        if rollout.open.pop(key, None) is not None:
            client.claims.pop(number, None)
            self._open -= 1
        elif not rollout.retract_loss(key):
            return False
        self._hold(rollout, ref)
        return True

    def _close_mistaken(self, client: ClientState | None, row: CommitRow | ReleaseRow, ref: FrameRef) -> None:
        """A refused row names a claim that is open in the current generation: its holder thinks that it is closed."""
        claim = client.claims.get(row.claim) if client is not None else None
        if client is not None and claim is not None and claim.rollout.id == row.rollout:
            self._close(client, row.claim, claim.rollout, ref)
            claim.rollout.add_reason(REFUSED)

    def _hold(self, rollout: RolloutState, ref: FrameRef) -> None:
        """Something of the rollout is applied and must be durable before it counts as settled."""
        self.changed.add(rollout.id)
        rollout.closing += 1
        self._closing += 1
        self.begun += 1
        self._closings.append((ref.sequence, rollout))

    def _count_refusal(self, row: ClientRow) -> None:
        if row.outcome == _FENCED:
            self.counts["fenced"] += 1
        else:
            self.counts["duplicates" if row.outcome == _DUPLICATE else "refused_rows"] += 1
