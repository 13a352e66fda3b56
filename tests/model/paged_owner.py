"""An owner whose ledger is in part on disk: checkpoints in memory, rollouts that leave and are brought back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gym_capture.model.archive import Archive
from gym_capture.model.codec import decode_rows
from gym_capture.model.ledger import Applied, Ledger, Repeated
from gym_capture.model.ledger_pages import LedgerState, Snapshot
from gym_capture.model.pages import decode_page, encode_page, page_of, rollout_of, unpack_archived
from gym_capture.model.rollout_state import Place, RolloutState
from gym_capture.model.rows import ClientRow, Row, rollouts_of
from tests.model.ledgers import LEASE_S, Owner, replay


class Checkpoint(NamedTuple):
    """A checkpoint as it would be read back."""

    state: bytes
    packed: dict[str, bytes]


class PagedOwner(Owner):
    """Takes a snapshot when told to, has it written when told to, and starts from the last one that was."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: dict[Place, bytes] = {}
        self.checkpoints: list[Checkpoint] = []
        self.taken: Snapshot | None = None
        self.evicted = 0
        self.brought_back = 0

    # -- checkpoints --------------------------------------------------------------------------------------------

    def take(self) -> None:
        """A snapshot of what is applied now, if none is on its way."""
        if self.taken is None:
            self.taken = self.ledger.snapshot()

    def written(self, *, failed: bool = False) -> None:
        """The snapshot is on disk (or could not be written), if all that it holds is durable."""
        snapshot = self.taken
        if snapshot is None or snapshot.state.sequence > self.ledger.durable_sequence:
            return
        self.taken = None
        if failed:
            self.ledger.not_saved(snapshot)
            return
        packed, pages = {}, []
        for source in snapshot.sources:
            data = encode_page(page_of(source))
            place = Place(1, len(self.checkpoints), len(self.pages), len(data))
            self.pages[place] = data
            pages.append(source.saved(place))
            packed[source.state.id] = pages[-1].packed
        self.checkpoints.append(Checkpoint(msgspec.msgpack.encode(snapshot.state), packed))
        before = len(self.ledger.archived)
        self.ledger.saved(snapshot, pages)
        self.evicted += len(self.ledger.archived) - before

    def load(self, packed: bytes) -> RolloutState:
        """An archived rollout, read from its pages."""
        place: Place | None = unpack_archived(packed).place
        chain = []
        while place is not None:
            page = decode_page(self.pages[place])
            chain.append(page)
            place = page.previous
        return rollout_of(chain[::-1], packed)

    def bring_back(self, rollout_ids: set[str]) -> None:
        """What is about to change has to be in memory."""
        for rollout_id in self.ledger.archived_among(rollout_ids):
            packed = self.ledger.archived.packed[rollout_id]
            self.ledger.adopt(self.load(packed), packed)
            self.brought_back += 1

    def whole(self) -> Ledger:
        """The ledger as if all of it were in memory; to look at only."""
        whole = Ledger(LEASE_S)
        vars(whole).update(vars(self.ledger))
        loaded = {rollout_id: self.load(packed) for rollout_id, packed in self.ledger.archived.packed.items()}
        whole.rollouts = {**self.ledger.rollouts, **loaded}
        whole.archived = Archive()
        return whole

    # -- what an owner does -------------------------------------------------------------------------------------

    def apply(self, client: bytes, batch: int, confirmed: int, rows: Sequence[ClientRow]) -> Applied | Repeated:
        self.bring_back(rollouts_of(rows))
        return super().apply(client, batch, confirmed, rows)

    def write(self, rows: Sequence[Row]) -> None:
        self.bring_back(rollouts_of(rows))
        super().write(rows)

    def restart(self) -> None:
        self.taken = None
        durable = self.ledger.durable_sequence
        self.frames = [frame for frame in self.frames if frame.sequence <= durable]
        self.ledger = ledger = Ledger(LEASE_S)
        if self.checkpoints:
            packed: dict[str, bytes] = {}
            for checkpoint in self.checkpoints:
                packed.update(checkpoint.packed)
            state = msgspec.msgpack.decode(self.checkpoints[-1].state, type=LedgerState)
            ledger.restore(state, packed)
            self.bring_back({name for name, each in packed.items() if unpack_archived(each).busy})
        start = ledger.last_sequence
        for frame in self.frames:
            if frame.sequence > start:
                self.bring_back(rollouts_of(decode_rows(frame.rows)))
                replay(ledger, frame)
        ledger.renew_all(self.now)
