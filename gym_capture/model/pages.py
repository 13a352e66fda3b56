"""Pages: what a checkpoint holds of one rollout, and how the rollout is made of them again. Pure.

A page has the rollout's plain state whole, but only those exchanges and messages that came since the page before it in
the same generation, and says where that one lies. So all pages of a run together grow with its calls, and a rollout is
read by walking its chain. A clear starts a new chain.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from gym_capture.model.codec import FrameRef
from gym_capture.model.rollout_state import Claim, Entry, History, Place, RolloutState, Saved

_ARCHIVED = struct.Struct("<QIIQIB")
_INCOMPLETE = 1
_EVIDENCE = 2
_KNOWN = 4
_BUSY = 8
_FLAGS_AT = _ARCHIVED.size - 1


class ArchivedPage(NamedTuple):
    """What stays in memory of a rollout that was evicted, unpacked: its generation, where its page lies, its flags."""

    generation: int
    place: Place
    flags: int

    @property
    def incomplete(self) -> bool:
        """Whether evidence is known to be missing."""
        return bool(self.flags & _INCOMPLETE)

    @property
    def evidence(self) -> bool:
        """Whether there is anything in its current generation."""
        return bool(self.flags & _EVIDENCE)

    @property
    def known(self) -> bool:
        """Whether the log knows it (`RolloutState.known`)."""
        return bool(self.flags & _KNOWN)

    @property
    def busy(self) -> bool:
        """Whether it has open claims."""
        return bool(self.flags & _BUSY)


def unpack_archived(packed: bytes) -> ArchivedPage:
    """`pack_archived` undone."""
    generation, epoch, number, offset, length, flags = _ARCHIVED.unpack(packed)
    return ArchivedPage(generation, Place(epoch, number, offset, length), flags)


def is_incomplete(packed: bytes) -> bool:
    """`ArchivedPage.incomplete`, without unpacking the rest: there may be a million."""
    return bool(packed[_FLAGS_AT] & _INCOMPLETE)


def flags_of(state: RolloutState) -> int:
    """What is asked of an evicted rollout most often."""
    return (
        (_INCOMPLETE if state.incomplete else 0)
        | (_EVIDENCE if state.has_evidence else 0)
        | (_KNOWN if state.known else 0)
        | (_BUSY if state.open else 0)
    )


def pack_archived(generation: int, place: Place, flags: int) -> bytes:
    """An evicted rollout in 29 bytes: a run may have as many of them as it has calls."""
    return _ARCHIVED.pack(generation, *place, flags)


class PagePiece(msgspec.Struct, array_like=True, frozen=True):
    """Messages that came in one row (`History`): `history` counts the page's `histories`."""

    history: int
    first: int
    count: int
    packed: bytes
    sequence: int
    epoch: int
    segment: int
    body_offset: int


class PageEntry(msgspec.Struct, array_like=True, frozen=True):
    """One exchange (`Entry`): `history` counts the page's `histories`, -1: it refers to none."""

    call_index: int
    model_call_id: str
    digest: bytes
    parts: bytes
    sequence: int
    epoch: int
    segment: int
    body_offset: int
    history: int = -1
    messages: int = 0


class Page(msgspec.Struct, array_like=True, frozen=True):
    """One rollout at one checkpoint; the fields are those of `RolloutState`.

    Args:
        previous: where the page before it in this generation lies, if there is one.
        open: (client, claim number, model_call_id, wall time) of each open claim.
        lost: (client, claim number, what identifies the call).
        histories: (client, the client's number) of each, in the order in which they began.
        entries, pieces: those that came since the previous page.
    """

    rollout: str
    generation: int
    previous: Place | None
    next_index: int
    returned: int
    merged: bool
    issued: int
    marked: int
    reasons: dict[str, int]
    clears: dict[str, int]
    open: list[tuple[bytes, int, str, float]]
    lost: list[tuple[bytes, int, str]]
    refused: list[tuple[str, bytes]]
    absent: list[str]
    histories: list[tuple[bytes, int]]
    entries: list[PageEntry]
    pieces: list[PagePiece]


class PageSource(NamedTuple):
    """A rollout as it was at one moment, copied so far that the loop may go on with the rollout itself.

    What it shares with the rollout never changes but for the places of frames that are still on their way to disk. So
    it becomes a page (`page_of`) only when all of it is durable.
    """

    state: RolloutState
    page: Page
    flags: int
    entries: list[Entry]
    histories: list[History]
    pieces: list[tuple[int, int, FrameRef, int, bytes]]
    entries_before: int
    pieces_before: tuple[int, ...]

    def saved(self, place: Place) -> Saved:
        """What the rollout has to remember, once its page lies at `place`."""
        counts = list(self.pieces_before) + [0] * (len(self.histories) - len(self.pieces_before))
        for history, *_ in self.pieces:
            counts[history] += 1
        return Saved(place, self.page.generation, self.entries_before + len(self.entries), tuple(counts))


def take_page(state: RolloutState) -> PageSource:
    """Copy what a page needs. Cheap: the loop waits for it."""
    saved = state.saved
    if saved is not None and saved.generation != state.generation:
        saved = None
    entries_before = saved.entries if saved is not None else 0
    pieces_before = saved.pieces if saved is not None else ()
    histories = list(state.histories.values())
    pieces: list[tuple[int, int, FrameRef, int, bytes]] = []
    for index, history in enumerate(histories):
        start = pieces_before[index] if index < len(pieces_before) else 0
        pieces += [(index, *piece) for piece in history.rows(start)]
    page = Page(
        state.id,
        state.generation,
        saved.place if saved is not None else None,
        state.next_index,
        state.returned,
        state.merged,
        state.issued,
        state.marked,
        dict(state.reasons),
        dict(state.clears),
        [(claim.client, claim.number, claim.model_call_id, claim.at) for claim in state.open.values()],
        [(*key, identity) for key, identity in state.lost.items()],
        list(state.refused),
        list(state.absent),
        list(state.histories),
        [],
        [],
    )
    flags = flags_of(state)
    return PageSource(
        state, page, flags, state.entries[entries_before:], histories, pieces, entries_before, pieces_before
    )


def page_of(source: PageSource) -> Page:
    """The page itself; all that it tells of is durable."""
    index_of = {id(history): index for index, history in enumerate(source.histories)}
    page = source.page
    page.entries.extend(_stored_entry(entry, index_of) for entry in source.entries)
    page.pieces.extend(
        PagePiece(history, first, count, packed, ref.sequence, ref.epoch, ref.segment, ref.body_offset)
        for history, first, ref, count, packed in source.pieces
    )
    return page


def _stored_entry(entry: Entry, index_of: dict[int, int]) -> PageEntry:
    ref = entry.ref
    return PageEntry(
        entry.call_index,
        entry.model_call_id,
        entry.digest,
        entry.packed_parts,
        ref.sequence,
        ref.epoch,
        ref.segment,
        ref.body_offset,
        -1 if entry.history is None else index_of[id(entry.history)],
        entry.messages,
    )


def encode_page(page: Page) -> bytes:
    """A page as msgpack."""
    return _encode(page)


def decode_page(data: bytes) -> Page:
    """A page of msgpack. Raises msgspec.MsgspecError, or UnicodeDecodeError."""
    return _decode(data)


def rollout_of(pages: Sequence[Page], place: Place) -> RolloutState:
    """The rollout that a chain of pages tells of.

    Args:
        pages: from the first of its generation to the last.
        place: where the last one lies.
    """
    last = pages[-1]
    state = RolloutState(last.rollout)
    state.clears = dict(last.clears)
    state.generation = last.generation
    state.next_index = last.next_index
    state.returned = last.returned
    state.merged = last.merged
    state.issued = last.issued
    state.marked = last.marked
    state.reasons = dict(last.reasons)
    state.lost = {(client, number): identity for client, number, identity in last.lost}
    state.refused = set(last.refused)
    state.absent = set(last.absent)
    for client, number, model_call_id, at in last.open:
        state.open[client, number] = Claim(client, number, state, model_call_id, at)
    refs: dict[tuple[int, int, int, int], FrameRef] = {}
    histories = [state.history(*key) for key in last.histories]
    counts = [0] * len(histories)
    for page in pages:
        for piece in page.pieces:
            histories[piece.history].restore(piece.first, _ref(refs, piece), piece.count, piece.packed)
            counts[piece.history] += 1
        for stored in page.entries:
            entry = Entry.restored(
                stored.call_index,
                stored.model_call_id,
                stored.digest,
                stored.parts,
                _ref(refs, stored),
                histories[stored.history] if stored.history >= 0 else None,
                stored.messages,
            )
            state.entries.append(entry)
            state.calls[entry.model_call_id] = entry
    state.saved = Saved(place, last.generation, len(state.entries), tuple(counts))
    return state


def _ref(refs: dict[tuple[int, int, int, int], FrameRef], stored: PagePiece | PageEntry) -> FrameRef:
    """One reference for all that lies in one frame."""
    key = (stored.sequence, stored.epoch, stored.segment, stored.body_offset)
    ref = refs.get(key)
    if ref is None:
        ref = refs[key] = FrameRef(*key)
    return ref


def incomplete_among(archived: Iterable[bytes]) -> int:
    """How many evicted rollouts are incomplete."""
    return sum(1 for packed in archived if packed[_FLAGS_AT] & _INCOMPLETE)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Page).decode
