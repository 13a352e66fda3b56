"""What the ledger knows of one rollout: its current generation, the calls in it, the claims that are open."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from gym_capture.model.codec import FrameRef
from gym_capture.model.rows import Part, PartFlag, PartKind

LOST = "lost"
RELEASED = "released"
REFUSED = "refused"
DROPPED = "dropped"
UNACCOUNTED = "unaccounted"
DAMAGED = "damaged"
OWNERS_REASONS = frozenset({LOST, UNACCOUNTED, DAMAGED})
PLAIN = ""
"""Incompleteness reasons. The plain marker has no name; others may be named by clients."""

MAX_CLEARS_KEPT = 64
"""How many clears of one rollout are remembered by their request."""

_encode_parts = _encode_piece = msgspec.msgpack.Encoder().encode
_decode_piece = msgspec.msgpack.Decoder(tuple[list[Part], list[tuple[int, int]]]).decode
_decode_parts = msgspec.msgpack.Decoder(list[Part]).decode


class Place(NamedTuple):
    """Where a page lies: the checkpoint's `epoch` and `number`, bytes from the start of its file, and its length."""

    epoch: int
    number: int
    offset: int
    length: int


class Saved(NamedTuple):
    """What of a rollout is in checkpoints.

    Fields: its last page and that one's generation, `packed` as the archive keeps it (`pages.pack_archived`), and how
    many of the rollout's `entries` and of `others` that page and those before it hold: of its absences, and of the
    pieces of each history.
    """

    packed: bytes
    entries: int
    others: tuple[int, ...]

    @property
    def absences(self) -> int:
        """How many of the rollout's absences they hold."""
        return self.others[0]

    @property
    def pieces(self) -> tuple[int, ...]:
        """How many pieces of each of its histories they hold."""
        return self.others[1:]


Absence = str | tuple[str, bytes] | tuple[bytes, int, str | None]
"""What became known of a call without an exchange: its id (`absent`), its id and digest (`refused`), or the client, the
number of its claim and what identifies it (`lost`; None: retracted)."""


class History:
    """The messages that one client stored for a generation: where they lie, by number.

    Attributes:
        name: what tells it from others of the rollout.
        reach: messages below this number are all there; later ones may be, where damage swallowed some before.
    """

    __slots__ = ("_pieces", "name", "reach")

    def __init__(self, client: bytes, number: int) -> None:
        self.name = f"{client.hex()}:{number}"
        self.reach = 0
        self._pieces: dict[int, tuple[FrameRef, int, bytes]] = {}

    def has(self, first: int, count: int) -> bool:
        """Whether exactly these messages came in one row before."""
        piece = self._pieces.get(first)
        return piece is not None and piece[1] == count

    def add(self, first: int, ref: FrameRef, parts: list[Part], ranges: list[tuple[int, int]]) -> None:
        """Messages from the number `first` on lie in that frame (`HistoryPiece`). What is there already stays."""
        if first not in self._pieces:
            self.restore(first, ref, len(ranges) or len(parts), _encode_piece((parts, ranges)))

    def rows(self, start: int) -> Iterator[tuple[int, FrameRef, int, bytes]]:
        """What `add` took in after its first `start` calls, as `restore` wants it."""
        for first, (ref, count, packed) in islice(self._pieces.items(), start, None):
            yield first, ref, count, packed

    def restore(self, first: int, ref: FrameRef, count: int, packed: bytes) -> None:
        """Take in again what `rows` gave."""
        self._pieces[first] = (ref, count, packed)
        while (piece := self._pieces.get(self.reach)) is not None:
            self.reach += piece[1]

    def pieces(self, below: int, start: int = 0) -> list[HistoryPiece]:
        """What came in each row, as far as it has messages from `start` to `below`, in order of their numbers."""
        return [
            HistoryPiece(first, ref, *_decode_piece(packed))
            for first, (ref, count, packed) in sorted(self._pieces.items())
            if first < below and first + count > start
        ]


class HistoryPiece(NamedTuple):
    """Messages that came in one row.

    Fields: the number of the `first`, the frame in whose body they lie, a part for each; or the one part in whose text
    they all lie, with their `ranges` (offset, length).
    """

    first: int
    ref: FrameRef
    parts: list[Part]
    ranges: list[tuple[int, int]]

    def within(self, text: bytes) -> list[tuple[int, bytes]]:
        """The numbered messages, given the text that they lie in."""
        return [(number, text[at : at + size]) for number, (at, size) in enumerate(self.ranges, self.first)]


class Entry:
    """One committed exchange of the current generation, and where its parts lie.

    Attributes:
        call_index: durable append order in the generation, from 0.
        model_call_id, digest: its identity.
        parts: offsets are relative to the body of the frame that `ref` names. Kept packed: an owner holds an entry for
            every call of the run, and five parts as objects take 1 KB.
        history, messages: what its skeleton refers to, and how many messages of that it needs; None and 0: nothing.
    """

    __slots__ = ("_parts", "call_index", "digest", "history", "messages", "model_call_id", "ref")

    def __init__(
        self,
        call_index: int,
        model_call_id: str,
        digest: bytes,
        parts: list[Part],
        ref: FrameRef,
        history: History | None = None,
        messages: int = 0,
    ) -> None:
        self.call_index = call_index
        self.model_call_id = model_call_id
        self.digest = digest
        self._parts = _encode_parts(parts)
        self.ref = ref
        self.history = history
        self.messages = messages

    @classmethod
    def restored(
        cls,
        call_index: int,
        model_call_id: str,
        digest: bytes,
        packed_parts: bytes,
        ref: FrameRef,
        history: History | None,
        messages: int,
    ) -> Entry:
        """An entry made again of what was kept of it."""
        entry = cls.__new__(cls)
        entry.call_index = call_index
        entry.model_call_id = model_call_id
        entry.digest = digest
        entry._parts = packed_parts
        entry.ref = ref
        entry.history = history
        entry.messages = messages
        return entry

    @property
    def packed_parts(self) -> bytes:
        """Where its bytes lie, packed."""
        return self._parts

    @property
    def parts(self) -> list[Part]:
        """Where its bytes lie."""
        return _decode_parts(self._parts)

    def request_in_full(self) -> Part | None:
        """Its request's part, if that holds the text itself."""
        for part in self.parts:
            if part.kind == PartKind.REQUEST and not part.flags & PartFlag.HISTORY:
                return part
        return None


class Claim:
    """One open claim. `client` is the holder's id, `number` its own number for it, `at` the owner's wall time."""

    __slots__ = ("at", "client", "model_call_id", "number", "rollout")

    def __init__(self, client: bytes, number: int, rollout: RolloutState, model_call_id: str, at: float) -> None:
        self.client = client
        self.number = number
        self.rollout = rollout
        self.model_call_id = model_call_id
        self.at = at

    @property
    def identity(self) -> str:
        """What tells its call from others: its model_call_id, or the claim itself where none was given."""
        return self.model_call_id or f"{self.client.hex()}:{self.number}"


class RolloutView(NamedTuple):
    """What a merge of one rollout returns, before any payload is read.

    Fields: `entries` in call order, `holes` (call indexes that damage swallowed), `reasons` of incompleteness
    (None: complete), `outstanding` claims (open ones: what closes them on its way to disk is in the entries), and the
    `generation` that all this is of.
    """

    rollout_id: str
    generation: int
    entries: list[Entry]
    holes: int
    reasons: dict[str, int] | None
    outstanding: int


class RolloutState:
    """The current generation of one rollout id.

    Attributes:
        generation: 0 until the id is first cleared.
        entries, calls: the exchanges, in order and by model_call_id.
        open: claims that were neither closed nor lost.
        closing: closings that are applied and not yet durable; they still count as outstanding.
        lost: (client, claim number) of the claims whose holder went away, until a late commit retracts one; with what
            identifies the call.
        reasons: incompleteness reasons with their counts.
        merged, returned: whether a merge was journaled, and the call index below which merges returned all rows.
        issued: the most calls that a merging caller said were issued.
        clears: request → the generation that it began; the same request again begins no other.
        refused: (model_call_id, digest) of the exchanges refused as conflicts; the same again is no further loss.
        absent: model_call_ids that are known to have been issued and have no exchange (released, lost, refused).
        absences: what `lost`, `refused` and `absent` were made of, in order; an owner keeps what is in no page yet.
        absences_left_out: how many there were before those.
        marked: missing exchanges that are known by their number only (dropped by a client).
        histories: messages stored once, by client and the client's number for the history.
        saved: what of it is in checkpoints; of an earlier generation: nothing of this one.
    """

    __slots__ = (
        "absences",
        "absences_left_out",
        "absent",
        "calls",
        "clears",
        "closing",
        "entries",
        "generation",
        "histories",
        "id",
        "issued",
        "lost",
        "marked",
        "merged",
        "next_index",
        "open",
        "reasons",
        "refused",
        "returned",
        "saved",
    )

    def __init__(self, rollout_id: str) -> None:
        self.id = rollout_id
        self.generation = 0
        self.open: dict[tuple[bytes, int], Claim] = {}
        self.closing = 0
        self.saved: Saved | None = None
        self.clears: dict[str, int] = {}
        self.begin(0, "")

    def begin(self, generation: int, request: str) -> None:
        """Start a generation with nothing in it. The caller has closed the open claims."""
        self.generation = generation
        if request:
            self.clears[request] = generation
            if len(self.clears) > MAX_CLEARS_KEPT:
                del self.clears[next(iter(self.clears))]
        self.entries: list[Entry] = []
        self.calls: dict[str, Entry] = {}
        self.histories: dict[tuple[bytes, int], History] = {}
        self.lost: dict[tuple[bytes, int], str] = {}
        self.refused: set[tuple[str, bytes]] = set()
        self.absent: set[str] = set()
        self.absences: list[Absence] | tuple[()] = ()  # most rollouts lack nothing, and there may be very many
        self.absences_left_out = 0
        self.marked = 0
        self.reasons: dict[str, int] = {}
        self.next_index = 0
        self.merged = False
        self.returned = 0
        self.issued = 0

    def history(self, client: bytes, number: int) -> History:
        """A client's history, made when it is new."""
        history = self.histories.get((client, number))
        if history is None:
            history = self.histories[client, number] = History(client, number)
        return history

    @property
    def outstanding(self) -> int:
        """Claims (and unclaimed exchanges on their way to disk) that quiescence waits for."""
        return len(self.open) + self.closing

    @property
    def holes(self) -> int:
        """Call indexes that are known to have been given and are in no readable row."""
        return max(0, self.next_index - len(self.entries))

    @property
    def has_evidence(self) -> bool:
        """Whether there is anything in the current generation."""
        return bool(self.next_index or self.open or self.reasons)

    @property
    def known(self) -> bool:
        """Whether the log knows it. A merge alone is no knowledge: it may have been of what lies beside the log."""
        return bool(self.generation or self.has_evidence)

    @property
    def incomplete(self) -> bool:
        """Whether evidence is known to be missing."""
        return bool(self.reasons) or (self.issued > self.next_index and self.view().reasons is not None)

    @property
    def late(self) -> int:
        """Rows that landed after a merge and that no merge has returned."""
        return max(0, self.next_index - self.returned) if self.merged else 0

    def add_reason(self, reason: str, count: int = 1) -> None:
        """Count `count` more exchanges that are missing for `reason`."""
        self.reasons[reason] = self.reasons.get(reason, 0) + count

    def add_absent(self, call: str) -> None:
        """A call was issued and has no exchange."""
        if call not in self.absent:
            self.absent.add(call)
            self._note(call)

    def refuse(self, model_call_id: str, digest: bytes) -> bool:
        """An exchange is refused as a conflict. False if the same one was before."""
        conflict = (model_call_id, digest)
        if conflict in self.refused:
            return False
        self.refused.add(conflict)
        self._note(conflict)
        self.add_reason(REFUSED)
        return True

    def lose(self, claim: Claim) -> None:
        """The holder of a claim, which the caller has closed, is gone."""
        self.lost[claim.client, claim.number] = claim.identity
        self.absent.add(claim.identity)
        self._note((claim.client, claim.number, claim.identity))
        self.add_reason(LOST)

    def _note(self, absence: Absence) -> None:
        if self.absences:
            self.absences.append(absence)
        else:
            self.absences = [absence]

    def page_is_written(self, saved: Saved, generation: int) -> None:
        """A page of that generation is on disk: what it holds of absences need not be kept."""
        self.saved = saved
        if generation == self.generation:
            if self.absences:
                self.absences = self.absences[saved.absences - self.absences_left_out :]
            self.absences_left_out = saved.absences

    def retract_loss(self, key: tuple[bytes, int]) -> bool:
        """A lost claim's holder is back, or its exchange arrived after all: forget that loss, if there is one."""
        if key not in self.lost:
            return False
        self.absent.discard(self.lost.pop(key))
        self._note((*key, None))
        left = self.reasons[LOST] - 1
        if left:
            self.reasons[LOST] = left
        else:
            del self.reasons[LOST]
        return True

    def _known_calls(self) -> int:
        """Calls that something is known of. A call that was tried twice, or refused beside its exchange, is one."""
        without_exchange = self.absent | {claim.identity for claim in self.open.values()}
        return self.holes + len(self.calls) + len(without_exchange - self.calls.keys()) + self.marked

    def view(self) -> RolloutView:
        """A snapshot; `reasons` include the calls that were issued and are nowhere."""
        reasons = dict(self.reasons)
        unaccounted = self.issued - self._known_calls() if self.issued else 0
        if unaccounted > 0:
            reasons[UNACCOUNTED] = reasons.get(UNACCOUNTED, 0) + unaccounted
        return RolloutView(self.id, self.generation, list(self.entries), self.holes, reasons or None, len(self.open))
