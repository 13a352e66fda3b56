"""Frames and segment headers: how rows and payloads become bytes of the log, and back.

A frame is one client batch (or one act of the owner): a fixed head, msgpack rows, then the payloads' bytes. All
integers are little-endian. Two kinds of checksum (CRC-32C): one over the segment's key, the fixed head and the rows,
and one per part, which stands in the rows. So a flipped bit in a payload costs one exchange and one in the rows at most
one batch; and nobody who does not know the run's uuid can put bytes into a payload that pass for a frame.
`docs/format.md` has the byte table and a worked example.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

import google_crc32c
import msgspec

from gym_capture.errors import DamagedLog, FormatError
from gym_capture.model.rows import Row

FORMAT_VERSION = 2

FRAME_MAGIC = b"\xf7GCF"
_FRAME = struct.Struct("<4sBBHIIQIII")
_CRC = struct.Struct("<I")
FRAME_HEAD_BYTES = _FRAME.size + _CRC.size
"""Bytes of the fixed head (40)."""

SEGMENT_MAGIC = b"GCSEG\r\n\x1a"
_SEGMENT = struct.Struct("<8sIII16s")
SEGMENT_HEAD_BYTES = _SEGMENT.size + _CRC.size
"""Bytes of a segment's header (40)."""

MAX_FRAME_BYTES = 1 << 30
"""No frame is longer; a head that says more is damaged."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Row])


class FrameKind(IntEnum):
    """Who made a frame."""

    BATCH = 1
    """A client's batch: `SenderRow`, then its rows."""
    OWNER = 2
    """The owner's own rows: losses, clears, merges, marks, opening, cuts, seals."""


class FrameFlag(IntEnum):
    """Bits of `FrameHead.flags`."""

    COPIED = 1
    """Copied from an earlier owner's segment at a takeover; epoch and sequence are the original ones."""
    PARTIAL = 2
    """Some rows of the original were damaged and left out, so its batch does not count as applied."""
    FILLER = 4
    """No frame: it stands in the place of damaged bytes that a repair put aside. Readers mark what they marked then."""
    GONE = 8
    """Of a filler: what stood there may concern more than its own segment's rollouts (an end, or a whole segment)."""


class FrameHead(NamedTuple):
    """The fixed head of a frame.

    Fields: `kind` (FrameKind), `flags` (FrameFlag bits), `epoch` of the owner that wrote it, `group` (counts those of
    one epoch; a group is what one sync covered), `sequence` (counts frames; never falls, unique in an epoch),
    `rows` (how many), `head_bytes` of msgpack rows, `body_bytes` of payloads.
    """

    kind: int
    flags: int
    epoch: int
    group: int
    sequence: int
    rows: int
    head_bytes: int
    body_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole frame."""
        return FRAME_HEAD_BYTES + self.head_bytes + self.body_bytes


def checksum(data: bytes | memoryview) -> int:
    """CRC-32C (RFC 3720, appendix B.4) of `data`."""
    return int(google_crc32c.value(data if isinstance(data, bytes) else bytes(data)))


def encode_rows(rows: Sequence[Row]) -> bytes:
    """Rows as one msgpack array."""
    return _encoder.encode(rows)


def decode_rows(data: bytes | memoryview) -> list[Row]:
    """The rows of a frame.

    Raises:
        DamagedLog: the bytes passed their checksum but are not rows of this format version.
    """
    try:
        return _decoder.decode(data)
    except (ValueError, OverflowError, RecursionError) as error:  # msgspec's own are ValueErrors
        raise DamagedLog(
            f"rows cannot be decoded ({error}); they may come from a newer gym_capture. Nothing was changed; "
            "read the directory with the version that wrote it."
        ) from error


def encode_frame_head(
    rows: bytes,
    *,
    key: bytes,
    kind: int,
    epoch: int,
    group: int,
    sequence: int,
    row_count: int,
    body_bytes: int,
    flags: int = 0,
) -> bytes:
    """The fixed head for encoded `rows` in the segment of that `key`. The frame is this, `rows`, then the body."""
    head = _FRAME.pack(FRAME_MAGIC, kind, flags, 0, epoch, group, sequence, row_count, len(rows), body_bytes)
    crc = google_crc32c.extend(google_crc32c.value(key + head), rows)
    return head + _CRC.pack(crc)


def parse_frame_head(data: bytes | memoryview) -> FrameHead | None:
    """The fixed head at the start of `data`, or None where no frame can begin. The checksum is not yet checked."""
    if len(data) < FRAME_HEAD_BYTES:
        return None
    magic, kind, flags, _, epoch, group, sequence, rows, head_bytes, body_bytes = _FRAME.unpack_from(data)
    if magic != FRAME_MAGIC:
        return None
    head = FrameHead(kind, flags, epoch, group, sequence, rows, head_bytes, body_bytes)
    return head if head.total_bytes <= MAX_FRAME_BYTES else None


def head_matches(fixed: bytes | memoryview, rows: bytes | memoryview, key: bytes) -> bool:
    """Whether the checksum in the fixed head fits it, the encoded rows and the segment of that `key`."""
    (expected,) = _CRC.unpack_from(fixed, _FRAME.size)
    crc = google_crc32c.extend(google_crc32c.value(key + bytes(fixed[: _FRAME.size])), bytes(rows))
    return bool(crc == expected)


_KEY = struct.Struct("<16sII")


class SegmentHead(NamedTuple):
    """A segment's header: the `epoch` that wrote it, its `number` in that epoch (from 0), the `run`'s 16-byte uuid."""

    epoch: int
    number: int
    run: bytes

    @property
    def key(self) -> bytes:
        """What the checksums of its frames begin with: no frame of another run or segment passes for one of its own."""
        return _KEY.pack(self.run, self.epoch, self.number)


def encode_segment_head(head: SegmentHead) -> bytes:
    """The 40 bytes that begin a segment file."""
    data = _SEGMENT.pack(SEGMENT_MAGIC, FORMAT_VERSION, head.epoch, head.number, head.run)
    return data + _CRC.pack(google_crc32c.value(data))


def parse_segment_head(data: bytes | memoryview) -> SegmentHead:
    """The header at the start of a segment file.

    Raises:
        DamagedLog: too short, or the checksum does not match.
        FormatError: written by another format version.
    """
    if len(data) < SEGMENT_HEAD_BYTES:
        raise DamagedLog("segment header is incomplete")
    magic, version, epoch, number, run = _SEGMENT.unpack_from(data)
    (expected,) = _CRC.unpack_from(data, _SEGMENT.size)
    if magic != SEGMENT_MAGIC or google_crc32c.value(bytes(data[: _SEGMENT.size])) != expected:
        raise DamagedLog("segment header does not match its checksum")
    if version != FORMAT_VERSION:
        raise FormatError(
            f"segment has format version {version}, this gym_capture reads {FORMAT_VERSION}. Nothing was changed; "
            "read the directory with the version that wrote it."
        )
    return SegmentHead(epoch, number, run)


class FrameRef:
    """Where a frame is, or will be once it is appended: shared by all that point into its body.

    Attributes:
        sequence: the frame's sequence number.
        epoch, segment: the segment file; `segment` is -1 until the frame is appended.
        body_offset: bytes from the start of that file to the frame's body.
    """

    __slots__ = ("body_offset", "epoch", "segment", "sequence")

    def __init__(self, sequence: int, epoch: int, segment: int = -1, body_offset: int = -1) -> None:
        self.sequence = sequence
        self.epoch = epoch
        self.segment = segment
        self.body_offset = body_offset


class PendingFrame(NamedTuple):
    """A frame that is ready to be appended; the segment writer adds epoch, group and place.

    Fields: `kind` (FrameKind), encoded `rows` and their number, the `body` as buffers in order, the `ref` to fill in,
    `flags` (FrameFlag bits), and the `rollouts` that the rows are of.
    """

    kind: int
    rows: bytes
    row_count: int
    body: Sequence[bytes | memoryview]
    ref: FrameRef
    flags: int = 0
    rollouts: Iterable[str] = ()
