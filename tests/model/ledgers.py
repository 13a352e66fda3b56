"""A ledger with its log in memory: what an owner does around the ledger, without any I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gym_capture.model.codec import FrameFlag, FrameHead, FrameKind, FrameRef, decode_rows, encode_rows
from gym_capture.model.ledger import Applied, Ledger, Repeated, Settled
from gym_capture.model.rows import (
    CURRENT,
    NO_CLAIM,
    ClaimRow,
    ClearRow,
    ClientRow,
    CommitRow,
    MarkRow,
    Part,
    ReleaseRow,
    Result,
    Row,
)

A = b"client-a" * 2
B = b"client-b" * 2
R = "7-0"

LEASE_S = 6.0


class Frame(NamedTuple):
    """One frame of the log."""

    kind: FrameKind
    sequence: int
    rows: bytes
    row_count: int
    flags: int = 0


class Owner:
    """Applies batches, keeps the frames, makes them durable when told to, and starts again from those that are."""

    def __init__(self) -> None:
        self.ledger = Ledger(LEASE_S)
        self.frames: list[Frame] = []
        self.now = 1000.0
        self.wall = 1_700_000_000.0
        self.batches: dict[bytes, int] = {}

    # -- what clients do ----------------------------------------------------------------------------------------

    def send(self, client: bytes, *rows: ClientRow, batch: int | None = None, confirmed: int = 0) -> list[Result]:
        """A batch that was not applied before; its answers."""
        if batch is None:
            batch = self.batches.get(client, 0) + 1
        self.batches[client] = max(batch, self.batches.get(client, 0))
        applied = self.apply(client, batch, confirmed, rows)
        assert isinstance(applied, Applied)
        return applied.results

    def apply(self, client: bytes, batch: int, confirmed: int, rows: Sequence[ClientRow]) -> Applied | Repeated:
        """A numbered batch."""
        sequence = self.ledger.last_sequence + 1
        applied = self.ledger.apply_batch(client, batch, confirmed, rows, FrameRef(sequence, 1), self.now, self.wall)
        if isinstance(applied, Applied):
            self.frames.append(Frame(FrameKind.BATCH, sequence, encode_rows(applied.rows), len(applied.rows)))
        return applied

    # -- what the owner does ------------------------------------------------------------------------------------

    def write(self, rows: Sequence[Row]) -> None:
        """Rows of the owner's own."""
        if rows:
            sequence = self.ledger.last_sequence + 1
            self.ledger.apply_owner_rows(rows, FrameRef(sequence, 1))
            self.frames.append(Frame(FrameKind.OWNER, sequence, encode_rows(rows), len(rows)))

    def sync(self, sequence: int | None = None) -> Settled:
        """Everything (or the frames up to `sequence`) is on disk."""
        return self.ledger.durable(self.ledger.last_sequence if sequence is None else sequence)

    def expire(self, now: float) -> None:
        """Time passes; what that loses is written."""
        self.now = now
        self.write(self.ledger.expire(now))

    def restart(self) -> None:
        """The process ends: what is not durable is gone, a new ledger is made of the rest."""
        durable = self.ledger.durable_sequence
        self.frames = [frame for frame in self.frames if frame.sequence <= durable]
        self.ledger = replayed(self.frames)
        self.ledger.renew_all(self.now)


def replay(ledger: Ledger, frame: Frame) -> None:
    """Replay a frame as it is read back from bytes."""
    head = FrameHead(frame.kind, frame.flags, 1, 1, frame.sequence, frame.row_count, len(frame.rows), 0)
    ledger.replay(head, decode_rows(frame.rows), FrameRef(frame.sequence, 1, 0, 0))


def replayed(frames: Iterable[Frame]) -> Ledger:
    """A ledger made of frames."""
    ledger = Ledger(LEASE_S)
    for frame in frames:
        replay(ledger, frame)
    return ledger


def partial(frame: Frame, keep: Iterable[int]) -> Frame:
    """The frame with only some of its rows, as a copy of a damaged one is."""
    rows = decode_rows(frame.rows)
    kept: list[Row] = [rows[index] for index in keep]
    return Frame(frame.kind, frame.sequence, encode_rows(kept), len(kept), FrameFlag.COPIED | FrameFlag.PARTIAL)


def state_of(ledger: Ledger) -> dict[str, Any]:
    """Everything that the log says: equal for a live ledger and one replayed from its log."""
    return {
        "rollouts": {
            rollout.id: {
                "generation": rollout.generation,
                "entries": [
                    (e.call_index, e.model_call_id, e.digest, e.parts, e.ref.sequence) for e in rollout.entries
                ],
                "open": {key: (claim.model_call_id, claim.at) for key, claim in rollout.open.items()},
                "lost": rollout.lost,
                "reasons": rollout.reasons,
                "next_index": rollout.next_index,
                "merged": (rollout.merged, rollout.returned, rollout.issued, rollout.late),
                "clears": rollout.clears,
                "refused": rollout.refused,
                "absent": (rollout.absent, rollout.marked),
                "histories": {
                    key: (history.reach, [(first, ref.sequence, *rest) for first, ref, *rest in history.rows(0)])
                    for key, history in rollout.histories.items()
                },
                "needs": [(e.history.name if e.history else None, e.messages) for e in rollout.entries],
            }
            for rollout in ledger.rollouts.values()
        },
        "clients": {
            client.id: (sorted(client.claims), client.answers, client.confirmed)
            for client in ledger.clients.values()
            if client.confirmed or client.answers
        },
        "late": ledger.late,
        "open": sorted((claim.client, claim.number) for claim in ledger.open_claims()),
    }


# -- rows -----------------------------------------------------------------------------------------------------------


def claim(number: int, rollout: str = R, generation: int = CURRENT, call: str = "") -> ClaimRow:
    return ClaimRow(rollout, number, call, generation)


def commit(
    number: int = NO_CLAIM, call: str = "call", digest: bytes = b"d", rollout: str = R, generation: int = CURRENT
) -> CommitRow:
    return CommitRow(rollout, number, call, digest, [Part(0, 0, 0, 3, 3, 7)], generation)


def release(number: int, reason: str = "released", rollout: str = R, generation: int = CURRENT) -> ReleaseRow:
    return ReleaseRow(rollout, number, reason, generation)


def mark(reason: str, count: int = 1, rollout: str = R, generation: int = CURRENT) -> MarkRow:
    return MarkRow(rollout, reason, count, generation)


def clear(request: str = "", rollout: str = R) -> ClearRow:
    return ClearRow(rollout, request)
