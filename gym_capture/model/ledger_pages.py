"""The ledger in part on disk: snapshots for checkpoints, rollouts that leave the memory and come back. Pure.

The log stays the only truth: a checkpoint says again what the log says up to one sequence. A rollout leaves the memory
only when its page is on disk and nothing happened to it since. Whoever applies a row, or looks at a rollout, brings
back first what is archived of it (`archived`, `adopt`); the ledger refuses to take an archived rollout for a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from gym_capture.model.archive import Archive
from gym_capture.model.ledger_fold import ClientState, LedgerFold
from gym_capture.model.pages import PageSource, take_page
from gym_capture.model.rollout_state import RolloutState, Saved
from gym_capture.model.rows import Result

_SINCE_THE_START = frozenset({"rows_without_token", "repeated_batches", "expired_clients"})
"""Counts that begin with each owner: no row of the log says them."""


class StoredClient(msgspec.Struct, array_like=True, frozen=True):
    """What a ledger knows of a client (`ClientState`) but its lease and its claims, which stand in the pages."""

    id: bytes
    confirmed: int
    answers: dict[int, tuple[int, list[Result]]]


class LedgerState(msgspec.Struct, array_like=True, frozen=True):
    """What a ledger holds besides rollouts, up to and with the frame `sequence`."""

    sequence: int
    damages: int
    others_damaged: bool
    late: int
    counts: dict[str, int]
    clients: list[StoredClient]


class Snapshot(NamedTuple):
    """A ledger at one moment: its own state whole, and the rollouts that changed since the snapshot before."""

    state: LedgerState
    sources: list[PageSource]


class PagedLedger(LedgerFold):
    """What a ledger does about memory.

    Attributes:
        unsaved_rows: rows applied since the last snapshot.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unsaved_rows = 0
        self._recent: set[str] = set()
        self._adopted: set[str] = set()

    # -- checkpoints --------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Everything as it is now, to be written once all of it is durable. `saved` or `not_saved` has to follow."""
        changed, self.changed = self.changed, set()
        self.unsaved_rows = 0
        return Snapshot(self.state(), [take_page(self.rollouts[rollout_id]) for rollout_id in changed])

    def state(self) -> LedgerState:
        """Everything but the rollouts, as it is now."""
        counts = {name: count for name, count in self.counts.items() if name not in _SINCE_THE_START}
        clients = [
            StoredClient(client.id, client.confirmed, dict(client.answers))
            for client in self.clients.values()
            if client.confirmed or client.answers
        ]
        return LedgerState(self.last_sequence, self._damages, self.others_damaged, self._late, counts, clients)

    def saved(self, snapshot: Snapshot, pages: Sequence[Saved]) -> None:
        """The snapshot is on disk, a page for each of its sources in order: what need not be in memory leaves it.

        That is what has nothing open or on its way and was merged, or had no row since the snapshot before.
        """
        touched: set[str] = set()
        for source, saved in zip(snapshot.sources, pages, strict=True):
            touched.add(source.state.id)
            source.state.page_is_written(saved, source.generation)
        staying: set[str] = set()
        for rollout_id in touched | self._recent | self._adopted:
            state = self.rollouts.get(rollout_id)
            if state is None or state.open or state.closing or rollout_id in self.changed:
                continue  # whatever settles it changes it, and it is in a later snapshot
            if state.merged or rollout_id not in touched:
                self._evict(state)
            else:
                staying.add(rollout_id)
        self._recent = staying
        self._adopted.clear()

    def not_saved(self, snapshot: Snapshot) -> None:
        """The snapshot could not be written: the next one has to hold what it held."""
        self.changed.update(source.state.id for source in snapshot.sources)

    def restore(self, state: LedgerState, archived: dict[str, bytes]) -> None:
        """Take over what a checkpoint holds. For a fresh ledger; those with open claims have to be adopted next."""
        self.last_sequence = self.durable_sequence = state.sequence
        self._damages = state.damages
        self.others_damaged = state.others_damaged
        self._late = state.late
        self.counts.update(state.counts)
        for stored in state.clients:
            client = self.clients[stored.id] = ClientState(stored.id, self.lease_s)
            client.confirmed = stored.confirmed
            client.answers = dict(stored.answers)
        self.archived = Archive(archived)

    # -- rollouts come back -------------------------------------------------------------------------------------

    def archived_among(self, rollout_ids: Iterable[str]) -> list[str]:
        """Those that have to be adopted before anything is done about them."""
        archived = self.archived
        return [rollout_id for rollout_id in rollout_ids if rollout_id in archived] if len(archived) else []

    def adopt(self, state: RolloutState, packed: bytes) -> None:
        """A rollout is in memory again, unless it came back meanwhile; `packed` is what was archived of it."""
        if self.archived.get(state.id) != packed:
            return
        self.archived.take(state.id)
        self.rollouts[state.id] = state
        self._adopted.add(state.id)
        for claim in state.open.values():
            holder = self.clients.get(claim.client)
            if holder is None:
                holder = self.clients[claim.client] = ClientState(claim.client, self.lease_s)
            holder.claims[claim.number] = claim
        self._open += len(state.open)

    def _evict(self, state: RolloutState) -> None:
        if state.saved is not None:
            self.archived.add(state.id, state.saved.packed)
            del self.rollouts[state.id]
