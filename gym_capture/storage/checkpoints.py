"""Checkpoint files: what the log says up to one frame, said again so that it is found at once.

A file has a fixed head, the pages of the rollouts that changed since the checkpoint before, and at its end a header,
the ledger's own state, and a table of those pages. Head, header, state and table have one checksum and are all that an
opening reads; each page has its own. A checkpoint names the one before it and that one's checksum.
`docs/format.md` has the byte table, `docs/decisions/0013-checkpoints.md` the reasons.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gym_capture.errors import DamagedLog
from gym_capture.model.codec import checksum
from gym_capture.model.ledger_pages import LedgerState
from gym_capture.model.pages import (
    Page,
    PageSource,
    decode_page,
    encode_page,
    page_of,
    rollout_of,
    unpack_archived,
)
from gym_capture.model.rollout_state import Place, RolloutState, Saved
from gym_capture.storage.files import Files
from gym_capture.storage.names import CheckpointName

CHECKPOINT_MAGIC = b"GCIDX\r\n\x02"
_FIXED = struct.Struct("<8sQIII")
_CRC = struct.Struct("<I")
CHECKPOINT_HEAD_BYTES = _FIXED.size + _CRC.size
"""Bytes of a checkpoint's fixed head (32)."""


class CheckpointHeader(msgspec.Struct, array_like=True, frozen=True):
    """What a checkpoint says of itself.

    Args:
        run: the run's 16-byte uuid.
        epoch, number: its name.
        previous: epoch, number and checksum of the checkpoint before it; None: it holds everything.
        sequence: it holds all frames up to this one,
        segment, start, end: which lies there in a segment of the same epoch.
        seen: the frames read or written up to then, as runs of sequences by epoch.
    """

    run: bytes
    epoch: int
    number: int
    previous: tuple[int, int, int] | None
    sequence: int
    segment: int
    start: int
    end: int
    seen: dict[int, list[tuple[int, int]]]


class PageTable(msgspec.Struct, array_like=True, frozen=True):
    """Where each rollout's page lies (`pages.pack_archived`): of those with open claims, and of the others."""

    busy: dict[str, bytes]
    quiet: dict[str, bytes]


class Checkpoint(NamedTuple):
    """A checkpoint as it was read: everything but its pages. `crc` is what its successor calls it by."""

    name: CheckpointName
    header: CheckpointHeader
    state: LedgerState
    table: PageTable
    crc: int


def encode_checkpoint(
    header: CheckpointHeader, state: LedgerState, sources: Sequence[PageSource]
) -> tuple[bytes, list[Saved], int]:
    """The bytes of a checkpoint's file, what each rollout has to remember of its page in it, and its checksum."""
    pages: list[bytes] = []
    saved: list[Saved] = []
    table = PageTable({}, {})
    at = CHECKPOINT_HEAD_BYTES
    for source in sources:
        data = encode_page(page_of(source))
        place = Place(header.epoch, header.number, at, _CRC.size + len(data))
        pages += (_CRC.pack(checksum(data)), data)
        at += place.length
        saved.append(source.saved(place))
        (table.busy if source.open else table.quiet)[source.state.id] = saved[-1].packed
    tail = [msgspec.msgpack.encode(part) for part in (header, state, table)]
    fixed = _FIXED.pack(CHECKPOINT_MAGIC, at - CHECKPOINT_HEAD_BYTES, *map(len, tail))
    crc = checksum(b"".join((fixed, *tail)))
    return b"".join((fixed, _CRC.pack(crc), *pages, *tail)), saved, crc


def read_checkpoint(files: Files, name: CheckpointName) -> Checkpoint:
    """Read a checkpoint, but for its pages.

    Raises:
        DamagedLog: it is not what its writer wrote, or of another version; `offset` says where that shows.
        OSError: it could not be read.
    """
    head = files.read_at(name.file, 0, CHECKPOINT_HEAD_BYTES)
    if len(head) < CHECKPOINT_HEAD_BYTES or head[:8] != CHECKPOINT_MAGIC:
        raise _damaged(name, 0, "it does not begin as a checkpoint of this version does")
    _, page_bytes, *lengths = _FIXED.unpack_from(head)
    tail_at = CHECKPOINT_HEAD_BYTES + page_bytes
    size = files.size(name.file)
    if tail_at + sum(lengths) != size:
        raise _damaged(name, min(size, tail_at), f"it has {size} bytes, its head says {tail_at + sum(lengths)}")
    tail = files.read_at(name.file, tail_at, sum(lengths))
    (crc,) = _CRC.unpack_from(head, _FIXED.size)
    if checksum(head[: _FIXED.size] + tail) != crc:
        raise _damaged(name, tail_at, "its checksum does not match")
    header_end, state_end = lengths[0], lengths[0] + lengths[1]
    try:
        header = _decode_header(tail[:header_end])
        state = _decode_state(tail[header_end:state_end])
        table = _decode_table(tail[state_end:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(name, tail_at, f"it cannot be decoded ({error})") from error
    if (header.epoch, header.number) != name:
        raise _damaged(name, tail_at, f"it says that it is number {header.number} of epoch {header.epoch}")
    return Checkpoint(name, header, state, table, crc)


def read_page(files: Files, place: Place) -> Page:
    """One page.

    Raises:
        DamagedLog: it is not what its writer wrote, or its file is gone.
        OSError: it could not be read.
    """
    name = CheckpointName(place.epoch, place.number)
    try:
        data = files.read_at(name.file, place.offset, place.length)
    except FileNotFoundError:
        raise _damaged(name, 0, "it is gone") from None
    if len(data) != place.length or _CRC.unpack_from(data) != (checksum(data[_CRC.size :]),):
        raise _damaged(name, place.offset, "the checksum of a page does not match")
    try:
        return decode_page(data[_CRC.size :])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(name, place.offset, f"a page cannot be decoded ({error})") from error


def read_rollout(files: Files, rollout_id: str, packed: bytes) -> RolloutState:
    """An archived rollout, made of its pages.

    Args:
        packed: what the ledger's archive has of it.

    Raises:
        DamagedLog: a page is damaged, or is another rollout's: only the log can tell.
        OSError: a page could not be read.
    """
    generation, last, *_ = unpack_archived(packed)
    pages: list[Page] = []
    place: Place | None = last
    while place is not None:
        page = read_page(files, place)
        before = page.previous
        if (page.rollout, page.generation) != (rollout_id, generation) or (before is not None and before >= place):
            raise _damaged(CheckpointName(place.epoch, place.number), place.offset, "a page is of another rollout")
        pages.append(page)
        place = before
    pages.reverse()
    return rollout_of(pages, packed)


def _damaged(name: CheckpointName, offset: int, why: str) -> DamagedLog:
    return DamagedLog(
        f"{name.file} is no sound checkpoint ({why}, byte {offset}). Nothing is lost: the log holds all that it says.",
        file=name.file,
        offset=offset,
        why=why,
    )


_decode_header = msgspec.msgpack.Decoder(CheckpointHeader).decode
_decode_state = msgspec.msgpack.Decoder(LedgerState).decode
_decode_table = msgspec.msgpack.Decoder(PageTable).decode
