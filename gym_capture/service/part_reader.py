"""Stored parts of exchanges, read back from the segment files. Blocking; runs in an executor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gym_capture.errors import DamagedLog
from gym_capture.model.codec import checksum
from gym_capture.model.exchange import open_part
from gym_capture.model.rollout_state import Entry
from gym_capture.model.rows import Part, PartKind
from gym_capture.storage.files import Files
from gym_capture.storage.names import SegmentName

_GAP_BYTES = 32 * 1024
"""Reading so much that nobody asked for costs less than a second read."""
_RUN_BYTES = 4 * 1024 * 1024


class _Wanted(NamedTuple):
    """One part, where it lies in its segment, and whose it is."""

    epoch: int
    segment: int
    offset: int
    call: int
    part: Part


class Records(NamedTuple):
    """(call index, RECORD part as it was before compression) in call order, and how many entries had none readable."""

    records: list[tuple[int, bytes]]
    damaged: int


def read_records(files: Files, entries: Sequence[Entry]) -> Records:
    """The RECORD part of every entry; what is damaged is counted and left out."""
    wanted = [_wanted(entry, part) for entry in entries for part in entry.parts[:1] if part.kind == PartKind.RECORD]
    found: dict[int, bytes] = {}
    for item, stored in _read(files, wanted):
        try:
            found[item.call] = open_part(item.part, stored)
        except DamagedLog:
            pass  # counted below
    records = [(entry.call_index, found[entry.call_index]) for entry in entries if entry.call_index in found]
    return Records(records, len(entries) - len(records))


def read_parts(files: Files, entries: Sequence[Entry]) -> tuple[list[tuple[int, list[Part]]], list[bytes]]:
    """All parts of the entries as stored: (call index, parts with offsets into the joined bytes), and the bytes.

    Damaged parts are left out.
    """
    stored: dict[tuple[int, int], bytes] = {}
    for item, data in _read(files, [_wanted(entry, part) for entry in entries for part in entry.parts]):
        if len(data) == item.part.length and checksum(data) == item.part.crc:
            stored[item.call, item.part.offset] = data
    listed: list[tuple[int, list[Part]]] = []
    body: list[bytes] = []
    offset = 0
    for entry in entries:
        parts: list[Part] = []
        for part in entry.parts:
            data_or_none = stored.get((entry.call_index, part.offset))
            if data_or_none is None or len(data_or_none) != part.length:
                continue
            parts.append(Part(part.kind, part.flags, offset, part.length, part.raw, part.crc))
            body.append(data_or_none)
            offset += part.length
        listed.append((entry.call_index, parts))
    return listed, body


def _wanted(entry: Entry, part: Part) -> _Wanted:
    ref = entry.ref
    return _Wanted(ref.epoch, ref.segment, ref.body_offset + part.offset, entry.call_index, part)


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
