"""Stored parts of exchanges, read back from the segment files. Blocking; runs in an executor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gym_capture.errors import DamagedLog
from gym_capture.model.codec import FrameRef, checksum
from gym_capture.model.exchange import open_part
from gym_capture.model.messages import PartsReply, StoredEntry, StoredMessages
from gym_capture.model.rollout_state import Entry, History, HistoryPiece
from gym_capture.model.rows import Part, PartKind
from gym_capture.storage.files import Files
from gym_capture.storage.names import SegmentName

_GAP_BYTES = 32 * 1024
"""Reading so much that nobody asked for costs less than a second read."""
_RUN_BYTES = 4 * 1024 * 1024


class _Wanted(NamedTuple):
    """One part, where it lies in its segment, and whose it is (a call index, or a piece's place in a list)."""

    epoch: int
    segment: int
    offset: int
    owner: int
    part: Part


class Records(NamedTuple):
    """(call index, RECORD part as it was before compression) in call order, and how many entries had none readable."""

    records: list[tuple[int, bytes]]
    damaged: int


def read_records(files: Files, entries: Sequence[Entry]) -> Records:
    """The RECORD part of every entry; what is damaged is counted and left out."""
    wanted = [
        _wanted(entry.ref, entry.call_index, part)
        for entry in entries
        for part in entry.parts[:1]
        if part.kind == PartKind.RECORD
    ]
    found: dict[int, bytes] = {}
    for item, stored in _read(files, wanted):
        try:
            found[item.owner] = open_part(item.part, stored)
        except DamagedLog:
            pass  # counted below
    records = [(entry.call_index, found[entry.call_index]) for entry in entries if entry.call_index in found]
    return Records(records, len(entries) - len(records))


def needed_pieces(entries: Sequence[Entry], have: Mapping[str, int]) -> list[tuple[History, HistoryPiece]]:
    """What the entries' skeletons refer to and the caller does not have: below `have` it has them all."""
    needs: dict[History, int] = {}
    for entry in entries:
        if entry.history is not None:
            needs[entry.history] = max(entry.messages, needs.get(entry.history, 0))
    return [
        (history, piece)
        for history, below in needs.items()
        for piece in history.pieces(below, have.get(history.name, 0))
    ]


def read_parts(
    files: Files, entries: Sequence[Entry], pieces: Sequence[tuple[History, HistoryPiece]]
) -> tuple[PartsReply, list[bytes]]:
    """All parts of the entries and pieces as stored, with offsets into the joined bytes, and the bytes.

    Damaged parts are left out.
    """
    packed = _Packed()
    of_entries = _stored(
        files, [_wanted(entry.ref, entry.call_index, part) for entry in entries for part in entry.parts]
    )
    listed: list[StoredEntry] = []
    for entry in entries:
        index, parts = entry.call_index, entry.parts
        intact = [part for part in parts if (index, part.offset) in of_entries]
        moved = [packed.add(part, of_entries[index, part.offset]) for part in intact]
        name = entry.history.name if entry.history is not None else ""
        listed.append(StoredEntry(index, moved, len(moved) == len(parts), name, entry.messages))
    of_pieces = _stored(
        files, [_wanted(piece.ref, place, part) for place, (_, piece) in enumerate(pieces) for part in piece.parts]
    )
    histories = [
        StoredMessages(
            history.name,
            [
                (number, packed.add(part, of_pieces[place, part.offset]))
                for number, part in enumerate(piece.parts, piece.first)
                if (place, part.offset) in of_pieces
            ],
            piece.ranges,
        )
        for place, (history, piece) in enumerate(pieces)
    ]
    return PartsReply(listed, histories), packed.body


class _Packed:
    """Stored parts one after another."""

    def __init__(self) -> None:
        self.body: list[bytes] = []
        self._offset = 0

    def add(self, part: Part, data: bytes) -> Part:
        """Add a part's bytes; returns the part with its new place."""
        moved = Part(part.kind, part.flags, self._offset, part.length, part.raw, part.crc)
        self.body.append(data)
        self._offset += part.length
        return moved


def _stored(files: Files, wanted: list[_Wanted]) -> dict[tuple[int, int], bytes]:
    """The bytes of the parts that are intact, by owner and offset."""
    return {
        (item.owner, item.part.offset): data
        for item, data in _read(files, wanted)
        if len(data) == item.part.length and checksum(data) == item.part.crc
    }


def _wanted(ref: FrameRef, owner: int, part: Part) -> _Wanted:
    return _Wanted(ref.epoch, ref.segment, ref.body_offset + part.offset, owner, part)


def _read(files: Files, wanted: list[_Wanted]) -> Iterable[tuple[_Wanted, bytes]]:
    """The stored bytes of each part, neighbours in one call; short or empty where the file has no more."""
    wanted.sort(key=lambda item: item[:3])
    start = 0
    while start < len(wanted):
        first = wanted[start]
        end = first.offset + first.part.length
        stop = start + 1
        while stop < len(wanted):
            item = wanted[stop]
            item_end = max(end, item.offset + item.part.length)
            if item[:2] != first[:2] or item.offset > end + _GAP_BYTES or item_end - first.offset > _RUN_BYTES:
                break
            end = item_end
            stop += 1
        try:
            data = files.read_at(SegmentName(first.epoch, first.segment).file, first.offset, end - first.offset)
        except OSError:
            data = b""
        for item in wanted[start:stop]:
            at = item.offset - first.offset
            yield item, data[at : at + item.part.length]
        start = stop
