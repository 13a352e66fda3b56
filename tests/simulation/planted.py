"""Bugs to plant, each of a kind that a capture layer can have; the simulation has to find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from gym_capture.client import core as client_core
from gym_capture.client.contact import Contact
from gym_capture.client.history_book import HistoryBook, Turn
from gym_capture.model import codec
from gym_capture.model import ledger as ledger_module
from gym_capture.model import rows as row_kinds
from gym_capture.model.codec import FrameHead, FrameRef, PendingFrame
from gym_capture.model.ledger import Applied, Ledger, Repeated
from gym_capture.model.messages import BeatReply, Welcome
from gym_capture.model.rollout_state import RolloutState
from gym_capture.service.group_commit import Done, GroupCommit
from gym_capture.service.owned_log import OwnedLog
from gym_capture.storage import log_reader, segments
from gym_capture.storage.segments import SegmentWriter
from tests.simulation import forger

Patch = tuple[Any, str, Any]


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _without(kind: type) -> Patch:
    apply_batch = Ledger.apply_batch

    def leave_out(self: Ledger, *given: Any) -> Applied | Repeated:
        applied = apply_batch(self, *given)
        if isinstance(applied, Applied):
            return Applied([row for row in applied.rows if type(row) is not kind], applied.results)
        return applied

    return Ledger, "apply_batch", leave_out


def sync_skipped() -> list[Patch]:
    """Groups are acknowledged without having been synced."""
    return [(SegmentWriter, "sync", _nothing)]


def claims_not_journaled() -> list[Patch]:
    """A claim is acknowledged, and not in the log."""
    return [_without(row_kinds.ClaimRow)]


def clears_not_journaled() -> list[Patch]:
    """A new generation is handed out, and not in the log."""
    return [_without(row_kinds.ClearRow)]


def check_before_sync() -> list[Patch]:
    """Ownership is looked up before the group is on disk, and not after."""

    def commit(self: OwnedLog, frames: Sequence[PendingFrame]) -> None:
        self.ownership.check()
        self.writer.append(frames)
        self.writer.sync()

    return [(OwnedLog, "commit", commit)]


def answer_before_sync() -> list[Patch]:
    """Callers are told before the group is handed to the disk."""
    submit = GroupCommit.submit

    def early(self: GroupCommit, frame: PendingFrame, done: Done | None = None) -> None:
        if done is not None:
            done(True)
        submit(self, frame)

    return [(GroupCommit, "submit", early)]


def restart_forgets_batches() -> list[Patch]:
    """After a restart, what was applied before is not known again."""
    replay = Ledger.replay

    def forgetful(self: Ledger, head: FrameHead, rows: Sequence[Any], ref: FrameRef) -> None:
        replay(self, head, rows, ref)
        for client in self.clients.values():
            client.answers.clear()
            client.confirmed = 0
        for rollout in self.rollouts.values():
            rollout.calls.clear()

    return [(Ledger, "replay", forgetful)]


def leases_not_restarted() -> list[Patch]:
    """After a restart, a client's lease is taken to have run out while the owner was away."""

    def expired(self: Ledger, now: float) -> None:
        for client in self.clients.values():
            client.deadline, client.live = now, True

    return [(Ledger, "renew_all", expired)]


def older_epoch_accepted() -> list[Patch]:
    """A superseded owner does not look, and clients take what it says."""

    def commit(self: OwnedLog, frames: Sequence[PendingFrame]) -> None:
        self.writer.append(frames)
        self.writer.sync()

    welcomed, beaten = client_core.ClientCore._welcomed, client_core.ClientCore._beaten

    def welcome(self: client_core.ClientCore, message: Welcome) -> None:
        self.epoch = 0
        welcomed(self, message)

    def beat(self: client_core.ClientCore, message: BeatReply) -> None:
        self.epoch = 0
        beaten(self, message)

    return [
        (OwnedLog, "commit", commit),
        (OwnedLog, "check", _nothing),
        (client_core.ClientCore, "_welcomed", welcome),
        (client_core.ClientCore, "_beaten", beat),
    ]


def duplicates_counted() -> list[Patch]:
    """The same exchange again is a second call."""

    def careless(self: Ledger, client: Any, rollout: RolloutState, row: row_kinds.CommitRow) -> None:
        row.call_index = rollout.next_index
        rollout.calls.pop(row.model_call_id, None)

    return [(Ledger, "_decide_commit", careless)]


def late_answers_believed() -> list[Patch]:
    """A claim's answer that comes after a lease is told, whatever has become of the claim meanwhile."""
    return [(Contact, "unbroken", lambda *_: True)]


def messages_not_journaled() -> list[Patch]:
    """Messages that later requests refer to are acknowledged, and not in the log."""
    return [_without(row_kinds.HistoryRow)]


def lacking_messages_ignored() -> list[Patch]:
    """The owner stores an exchange whatever it refers to."""
    return [(ledger_module, "_has_messages", lambda *_: True)]


def history_numbers_used_again() -> list[Patch]:
    """A client gives a conversation that it has forgotten, and that goes on, its number again."""
    turn = HistoryBook.turn

    def numbered_anew(self: HistoryBook, rollout: str, generation: int, text: bytes) -> Turn | None:
        self._last = 0
        return turn(self, rollout, generation, text)

    return [(HistoryBook, "turn", numbered_anew)]


def frames_known_by_their_form() -> list[Patch]:
    """A frame's checksum is one that whoever writes a payload can reckon."""
    encode, matches = codec.encode_frame_head, codec.head_matches

    def unkeyed(rows: bytes, **fields: Any) -> bytes:
        return encode(rows, **{**fields, "key": b""})

    return [
        (forger, "HOSTILE", 1.0),
        (forger, "ANSWERS", 1.0),
        (segments, "encode_frame_head", unkeyed),
        (log_reader, "head_matches", lambda fixed, rows, key: matches(fixed, rows, b"")),
    ]


PLANTED: dict[str, Callable[[], list[Patch]]] = {
    "sync skipped": sync_skipped,
    "claims not journaled": claims_not_journaled,
    "clears not journaled": clears_not_journaled,
    "owner check before the sync": check_before_sync,
    "answer before the sync": answer_before_sync,
    "no dedupe after a restart": restart_forgets_batches,
    "lease clock not restarted": leases_not_restarted,
    "acknowledgment of an older epoch accepted": older_epoch_accepted,
    "duplicate counted as a second call": duplicates_counted,
    "late answer to a claim believed": late_answers_believed,
    "messages not journaled": messages_not_journaled,
    "messages that are lacking ignored": lacking_messages_ignored,
    "number of a history used again": history_numbers_used_again,
    "frames known by their form": frames_known_by_their_form,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The package with that bug."""
    patches = [mock.patch.object(target, attribute, value) for target, attribute, value in PLANTED[name]()]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
