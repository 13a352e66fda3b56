"""Pages: what a checkpoint holds of one rollout, and how the rollout is made of them again. Pure.

A page has the rollout's plain state whole, but only those exchanges, messages and absences that came since the page
before it in the same generation, and says where that one lies. So all pages of a run together grow with its calls, and
a rollout is read by walking its chain. A clear starts a new chain.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from gym_capture.model.codec import FrameRef
from gym_capture.model.rollout_state import Claim, Entry, History, Place, RolloutState, Saved

_ARCHIVED = struct.Struct("<QIIQIQB")
_INCOMPLETE = 1
_EVIDENCE = 2
_KNOWN = 4
_BUSY = 8
_LATE = 16
_HOLES = 32
_FLAGS_AT = _ARCHIVED.size - 1


class ArchivedPage(NamedTuple):
    """What stays in memory of a rollout that was evicted, unpacked.

    Fields: its generation, where its page lies, how many call indexes were given in it, its flags.
    """

    generation: int
    place: Place
    calls: int
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

    @property
    def plain(self) -> bool:
        """Whether nothing is to be said of it but its calls: nothing is missing, damaged, late or open."""
        return not self.flags & (_INCOMPLETE | _BUSY | _LATE | _HOLES)


def unpack_archived(packed: bytes) -> ArchivedPage:
    """`pack_archived` undone."""
    generation, epoch, number, offset, length, calls, flags = _ARCHIVED.unpack(packed)
    return ArchivedPage(generation, Place(epoch, number, offset, length), calls, flags)


def is_incomplete(packed: bytes) -> bool:
    """`ArchivedPage.incomplete`, without unpacking the rest: there may be a million."""
    return bool(packed[_FLAGS_AT] & _INCOMPLETE)


def pack_archived(generation: int, place: Place, calls: int, flags: int) -> bytes:
    """An evicted rollout in 37 bytes: a run may have as many of them as it has calls."""
    return _ARCHIVED.pack(generation, *place, calls, flags)


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
        clears: in the first page of a generation only, for it is what they change.
        histories: (client, the client's number) of those that began since the previous page, in that order.
        lost: what became lost since the previous page, or was retracted, in order: (client, claim number, what
            identifies the call; None: retracted).
        refused, absent, entries, pieces: those that came since the previous page; `absent` by other ways than a loss.
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
    lost: list[tuple[bytes, int, str | None]]
    refused: list[tuple[str, bytes]]
    absent: list[str]
    histories: list[tuple[bytes, int]]
    entries: list[PageEntry]
    pieces: list[PagePiece]


class PageSource(NamedTuple):
    """A rollout as it was at one moment, copied so far that the loop may go on with the rollout itself.

    What it shares with the rollout never changes but for the places of frames that are still on their way to disk. So
    it becomes a page (`page_of`) only when all of it is durable. Fields as in `Page`; `before` is what was saved,
    `absences` how many there were in the generation.
    """

    state: RolloutState
    generation: int
    before: Saved | None
    next_index: int
    returned: int
    merged: bool
    issued: int
    marked: int
    incomplete: bool
    reasons: dict[str, int]
    clears: dict[str, int]
    open: Sequence[Claim]
    absences: int
    lost: Sequence[tuple[bytes, int, str | None]]
    refused: Sequence[tuple[str, bytes]]
    absent: Sequence[str]
    entries: list[Entry]
    histories: Sequence[History]
    names: Sequence[tuple[bytes, int]]
    pieces: Sequence[tuple[int, int, FrameRef, int, bytes]]

    @property
    def flags(self) -> int:
        """What `pack_archived` keeps."""
        evidence = self.next_index or self.open or self.reasons
        return (
            (_INCOMPLETE if self.incomplete else 0)
            | (_EVIDENCE if evidence else 0)
            | (_KNOWN if evidence or self.generation else 0)
            | (_BUSY if self.open else 0)
            | (_LATE if self.merged and self.next_index > self.returned else 0)
            | (_HOLES if self.next_index > self._entries else 0)
        )

    @property
    def _entries(self) -> int:
        return (self.before.entries if self.before is not None else 0) + len(self.entries)

    def saved(self, place: Place) -> Saved:
        """What the rollout has to remember, once its page lies at `place`."""
        before = self.before
        counts = [0] * len(self.histories)
        counts[: len(before.pieces) if before is not None else 0] = before.pieces if before is not None else ()
        for history, *_ in self.pieces:
            counts[history] += 1
        packed = pack_archived(self.generation, place, self.next_index, self.flags)
        return Saved(packed, self._entries, (self.absences, *counts))


_NO_DICT: dict[Any, Any] = {}


def take_page(state: RolloutState) -> PageSource:
    """Copy what a page needs. Cheap, for the loop waits for it: most of what there may be is not there."""
    before = state.saved
    if before is not None and unpack_archived(before.packed).generation != state.generation:
        before = None
    histories: Sequence[History] = ()
    names: Sequence[tuple[bytes, int]] = ()
    pieces: list[tuple[int, int, FrameRef, int, bytes]] | tuple[()] = ()
    if state.histories:
        counts = before.pieces if before is not None else ()
        histories, names, pieces = list(state.histories.values()), list(islice(state.histories, len(counts), None)), []
        for index, history in enumerate(histories):
            pieces += [(index, *piece) for piece in history.rows(counts[index] if index < len(counts) else 0)]
    return PageSource(
        state,
        state.generation,
        before,
        state.next_index,
        state.returned,
        state.merged,
        state.issued,
        state.marked,
        state.incomplete,
        dict(state.reasons) if state.reasons else _NO_DICT,
        dict(state.clears) if state.clears and before is None else _NO_DICT,
        list(state.open.values()) if state.open else (),
        state.absences_left_out + len(state.absences),
        *_absences(state, before),
        state.entries[before.entries if before is not None else 0 :],
        histories,
        names,
        pieces,
    )


def _absences(
    state: RolloutState, before: Saved | None
) -> tuple[list[tuple[bytes, int, str | None]], list[tuple[str, bytes]], list[str]]:
    """What came of `lost`, `refused` and `absent`.

    A page's losses come first when it is read, whatever was between them. So only those are absent that still are.
    """
    lost: list[tuple[bytes, int, str | None]] = []
    refused: list[tuple[str, bytes]] = []
    absent: list[str] = []
    for each in state.absences[before.absences - state.absences_left_out if before is not None else 0 :]:
        if isinstance(each, str):
            if each in state.absent:
                absent.append(each)
        elif len(each) == 2:
            refused.append(each)
        else:
            lost.append(each)
    return lost, refused, absent


def page_of(source: PageSource) -> Page:
    """The page itself; all that it tells of is durable."""
    index_of = {id(history): index for index, history in enumerate(source.histories)}
    return Page(
        source.state.id,
        source.generation,
        unpack_archived(source.before.packed).place if source.before is not None else None,
        source.next_index,
        source.returned,
        source.merged,
        source.issued,
        source.marked,
        source.reasons,
        source.clears,
        [(claim.client, claim.number, claim.model_call_id, claim.at) for claim in source.open],
        list(source.lost),
        list(source.refused),
        list(source.absent),
        list(source.names),
        [_stored_entry(entry, index_of) for entry in source.entries],
        [
            PagePiece(history, first, count, packed, ref.sequence, ref.epoch, ref.segment, ref.body_offset)
            for history, first, ref, count, packed in source.pieces
        ],
    )


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


def rollout_of(pages: Sequence[Page], packed: bytes) -> RolloutState:
    """The rollout that a chain of pages tells of.

    Args:
        pages: from the first of its generation to the last.
        packed: what was archived of it.
    """
    last = pages[-1]
    state = RolloutState(last.rollout)
    state.clears = dict(pages[0].clears)
    state.generation = last.generation
    state.next_index = last.next_index
    state.returned = last.returned
    state.merged = last.merged
    state.issued = last.issued
    state.marked = last.marked
    state.reasons = dict(last.reasons)
    for client, number, model_call_id, at in last.open:
        state.open[client, number] = Claim(client, number, state, model_call_id, at)
    refs: dict[tuple[int, int, int, int], FrameRef] = {}
    histories: list[History] = []
    counts: list[int] = []
    for page in pages:
        histories += [state.history(*key) for key in page.histories]
        counts += [0] * len(page.histories)
        for client, number, call in page.lost:
            if call is None:
                state.absent.discard(state.lost.pop((client, number)))
            else:
                state.lost[client, number] = call
                state.absent.add(call)
        state.refused.update(page.refused)
        state.absent.update(page.absent)
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
    state.saved = Saved(packed, len(state.entries), (state.absences_left_out, *counts))
    return state


def _ref(refs: dict[tuple[int, int, int, int], FrameRef], stored: PagePiece | PageEntry) -> FrameRef:
    """One reference for all that lies in one frame."""
    key = (stored.sequence, stored.epoch, stored.segment, stored.body_offset)
    ref = refs.get(key)
    if ref is None:
        ref = refs[key] = FrameRef(*key)
    return ref


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Page).decode
