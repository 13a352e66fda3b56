"""A small owner for tests: what the service does with a ledger and a log, one step after another."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from gym_capture.model.codec import FrameKind, FrameRef, PendingFrame, encode_rows
from gym_capture.model.exchange import SealedExchange, seal
from gym_capture.model.ledger import Applied, Ledger
from gym_capture.model.rows import (
    CURRENT,
    NO_CLAIM,
    ClaimRow,
    ClearRow,
    ClientRow,
    CommitRow,
    Part,
    ReleaseRow,
    Result,
    rollouts_of,
)
from gym_capture.storage.files import Files
from gym_capture.storage.owner_file import OwnerIdentity
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.recovery import recover
from gym_capture.storage.resume import PagingFold
from gym_capture.storage.run_marker import create_or_adopt_run
from gym_capture.storage.segments import SEGMENT_BYTES, owner_frame
from gym_capture.testing.manual_clock import ManualClock

RUN = uuid.UUID(int=0xC0FFEE)
CLIENT = b"client-000000001"
OTHER_CLIENT = b"client-000000002"


def identity(actor_id: str = "actor-1") -> OwnerIdentity:
    return OwnerIdentity(actor_id, "capture", "gym_capture", "node-1", 4711)


def exchange(call: str, request: object = "hello", response: object = "world") -> dict[str, Any]:
    return {
        "model_call_id": call,
        "dialect": "chat",
        "model_ref": {"type": "policy", "name": "m"},
        "status_code": 200,
        "request": {"messages": [{"role": "user", "content": request}]},
        "response": {"choices": [{"message": {"role": "assistant", "content": response}, "finish_reason": "stop"}]},
    }


def shifted(sealed: SealedExchange, offset: int) -> list[Part]:
    return [Part(p.kind, p.flags, p.offset + offset, p.length, p.raw, p.crc) for p in sealed.parts]


class Batch:
    """Rows and bytes of one batch, built up."""

    def __init__(self) -> None:
        self.rows: list[ClientRow] = []
        self.body: list[bytes] = []
        self._bytes = 0

    def claim(self, rollout: str, number: int, generation: int = CURRENT) -> Batch:
        self.rows.append(ClaimRow(rollout, number, generation=generation))
        return self

    def commit(self, rollout: str, given: dict[str, Any], claim: int = NO_CLAIM, generation: int = CURRENT) -> Batch:
        sealed = seal(given)
        parts = shifted(sealed, self._bytes)
        self.rows.append(CommitRow(rollout, claim, sealed.model_call_id, sealed.digest, parts, generation))
        self.body += sealed.body
        self._bytes += sealed.body_bytes
        return self

    def release(self, rollout: str, number: int, reason: str = "released") -> Batch:
        self.rows.append(ReleaseRow(rollout, number, reason))
        return self

    def clear(self, rollout: str, request: str) -> Batch:
        self.rows.append(ClearRow(rollout, request))
        return self


class Owner:
    """An owner that took the directory and recovered.

    Attributes:
        acked: (client, batch) → results, in the order of acknowledgment.
    """

    def __init__(
        self,
        files: Files,
        actor_id: str = "actor-1",
        *,
        takeover: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        clock: ManualClock | None = None,
        checkpoints: bool = True,
    ) -> None:
        self.files = files
        self.clock = clock or ManualClock()
        create_or_adopt_run(files)
        self.ownership = Ownership.take(
            files,
            identity(actor_id),
            self.clock,
            takeover=takeover,
            wait=self.clock.advance,
            new_token=lambda: "secret",
        )
        self.ledger = Ledger()
        self.writer, self.report, self.checkpoints = recover(
            files, self.ownership, self.ledger, segment_bytes=segment_bytes, checkpoints=checkpoints
        )
        self.acked: dict[tuple[bytes, int], list[Result]] = {}
        self.bring_back(*self.ledger.archived)

    def bring_back(self, *rollouts: str) -> None:
        """Have these in memory again, if a checkpoint made them leave it."""
        PagingFold(self.files, self.ledger, resumed=True).bring_back(rollouts)

    def checkpoint(self) -> None:
        """Write a checkpoint; everything has to be acknowledged."""
        snapshot = self.ledger.snapshot()
        pages = self.checkpoints.write(snapshot, self.writer.last)
        self.ledger.saved(snapshot, pages)

    def merge(self, rollout: str, issued: int = 0) -> None:
        """Journal a merge, and sync."""
        self.bring_back(rollout)
        rows = [self.ledger.merge_row(rollout, issued)]
        frame = owner_frame(rows, self.ledger.last_sequence + 1, self.ownership.epoch)
        self.ledger.apply_owner_rows(rows, frame.ref)
        self.writer.append([frame])
        self.writer.sync()
        self.ledger.durable(self.ledger.last_sequence)

    def append(self, batch: Batch, number: int, client: bytes = CLIENT) -> FrameRef | None:
        """Apply a batch and append it, without a sync. None: it was applied before."""
        self.bring_back(*rollouts_of(batch.rows))
        ref = FrameRef(max(self.ledger.last_sequence, self.writer.last_sequence) + 1, self.ownership.epoch)
        applied = self.ledger.apply_batch(client, number, 0, batch.rows, ref, self.clock.monotonic(), self.clock.time())
        if not isinstance(applied, Applied):
            return None
        self.writer.append([frame_of(applied.rows, batch.body, ref)])
        return ref

    def acknowledge(self, number: int, client: bytes = CLIENT) -> list[Result]:
        """Sync, make sure of the ownership, answer."""
        self.writer.sync()
        self.ownership.check()
        self.ledger.durable(self.ledger.last_sequence)
        _, results = self.ledger.clients[client].answers[number]
        self.acked[client, number] = results
        return results

    def send(self, batch: Batch, number: int, client: bytes = CLIENT) -> list[Result]:
        """A batch from its arrival to its acknowledgment."""
        self.append(batch, number, client)
        return self.acknowledge(number, client)

    def stop(self) -> None:
        self.writer.close()
        self.ownership.release(self.writer.segment.number, self.writer.position)


def frame_of(rows: Sequence[Any], body: Sequence[bytes], ref: FrameRef) -> PendingFrame:
    return PendingFrame(FrameKind.BATCH, encode_rows(rows), len(rows), body, ref, rollouts=rollouts_of(rows))


def calls(ledger: Ledger, rollout: str) -> list[str]:
    """The ids of the calls that a ledger holds of a rollout, in order."""
    return [entry.model_call_id for entry in ledger.view(rollout).entries]
