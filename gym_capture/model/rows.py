"""Rows: what the log says and what clients ask for, in one vocabulary.

A client sends rows with the owner's fields left at their defaults (`generation=CURRENT`, `outcome`, `call_index`);
the owner's ledger completes them and the completed rows are what the log keeps. So an answer to a batch can always
be told again from the log, and a restart replays exactly what was decided.

On disk and on the wire a row is a msgpack array: its tag, then its fields in the order below (`docs/format.md`).
Tags 20 to 29 are reserved for what is stored once and referred to.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import msgspec

CURRENT = -1
"""As a row's generation: whichever is current when the owner applies the row."""

NO_CLAIM = 0
"""As a commit's claim: the exchange was recorded without a claim. Claim numbers start at 1."""

PENDING_INDEX = -1
"""As a commit's call_index: not assigned (the owner has not applied the row, or did not keep it)."""


class Outcome(IntEnum):
    """What the owner did with one row of a batch."""

    APPLIED = 0
    DUPLICATE = 1
    FENCED = 2
    CONFLICT = 3
    TOO_LARGE = 4
    UNKNOWN_GENERATION = 5
    INVALID = 6
    LACKING = 7


class PartKind(IntEnum):
    """What a part of an exchange holds."""

    RECORD = 0
    META = 1
    REQUEST = 2
    RESPONSE = 3
    REQUEST_RAW = 4
    RESPONSE_RAW = 5
    MESSAGE = 6
    """One message of a history (`HistoryRow`)."""


class PartFlag(IntEnum):
    """Bits of `Part.flags`."""

    ZSTD = 1
    """Stored as one zstd frame; `raw` is the length before compression."""
    BYTES = 2
    """The caller gave bytes: they come back byte for byte. Otherwise this package encoded a JSON value."""
    NONSTANDARD = 4
    """JSON text that the standard refuses (NaN, infinities, integers over 64 bits, lone surrogates)."""
    NOT_JSON = 8
    """The bytes are not JSON text at all."""
    HISTORY = 16
    """A skeleton that refers to messages of the commit's history (`history.resolve`); `raw` is the text's length."""


class Part(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where one part of an exchange lies.

    Args:
        kind: a `PartKind`.
        flags: `PartFlag` bits.
        offset: bytes from the start of the frame's body.
        length: stored bytes.
        raw: bytes before compression.
        crc: CRC-32C of the stored bytes.
    """

    kind: int
    flags: int
    offset: int
    length: int
    raw: int
    crc: int


class SenderRow(msgspec.Struct, array_like=True, tag=1, gc=False):
    """Who sent the batch of this frame; the first row of a batch frame.

    Args:
        client: the client's 16-byte id.
        batch: the batch's number, from 1.
        confirmed: every batch up to this number was answered and its answer received.
    """

    client: bytes
    batch: int
    confirmed: int


class ClaimRow(msgspec.Struct, array_like=True, tag=2, gc=False):
    """One exchange is about to be made. `at` is the owner's wall time in seconds, set by the owner."""

    rollout: str
    claim: int
    model_call_id: str = ""
    generation: int = CURRENT
    at: float = 0.0
    outcome: int = 0


class CommitRow(msgspec.Struct, array_like=True, tag=3):
    """One exchange, under a claim or without one (`claim=NO_CLAIM`).

    Args:
        digest: the exchange's identity (see `exchange.SealedExchange`).
        parts: where its bytes lie in the frame's body; empty when the owner did not keep it.
        call_index: its place in the rollout's generation, set by the owner.
        history: the sender's history that its skeleton refers to; 0: none.
        messages: how many messages of that history it needs, counted from the first.
    """

    rollout: str
    claim: int
    model_call_id: str
    digest: bytes
    parts: list[Part]
    generation: int = CURRENT
    call_index: int = PENDING_INDEX
    outcome: int = 0
    history: int = 0
    messages: int = 0


class ReleaseRow(msgspec.Struct, array_like=True, tag=4, gc=False):
    """A claim is closed without an exchange.

    `reason` is the incompleteness reason that the rollout gets (`released`, `refused`, `dropped`); an empty one
    withdraws the claim: its call was never made, so nothing is missing.
    """

    rollout: str
    claim: int
    reason: str = "released"
    generation: int = CURRENT
    outcome: int = 0


class MarkRow(msgspec.Struct, array_like=True, tag=5, gc=False):
    """`count` exchanges of the rollout are missing for `reason`; an empty reason is the plain marker."""

    rollout: str
    reason: str
    count: int = 1
    generation: int = CURRENT
    outcome: int = 0


class ClearRow(msgspec.Struct, array_like=True, tag=6, gc=False):
    """The rollout's next generation begins; `generation` is set by the owner. The same `request` again is the same."""

    rollout: str
    request: str
    generation: int = CURRENT
    outcome: int = 0


class LossRow(msgspec.Struct, array_like=True, tag=7, gc=False):
    """A claim's holder is gone (its lease ended, or it came back without the claim)."""

    rollout: str
    generation: int
    client: bytes
    claim: int


class MergeRow(msgspec.Struct, array_like=True, tag=8, gc=False):
    """A merge returned the rows below call index `returned`; `issued` is the caller's count of calls (0: none)."""

    rollout: str
    generation: int
    returned: int
    issued: int = 0


class OpenRow(msgspec.Struct, array_like=True, tag=9, gc=False):
    """An owner took the directory. `at`: wall time in seconds; `owner`: what it calls itself."""

    epoch: int
    at: float
    owner: str


class CutRow(msgspec.Struct, array_like=True, tag=10, gc=False):
    """What lies at or beyond `offset` of that segment is not part of the log."""

    epoch: int
    segment: int
    offset: int


class SealRow(msgspec.Struct, array_like=True, tag=11, gc=False):
    """That segment was finished at `length` bytes, every one of them synced."""

    epoch: int
    segment: int
    length: int


class MembersRow(msgspec.Struct, array_like=True, tag=12, gc=False):
    """That segment, as far as it counts, has rows of these rollouts: so damage in it concerns no others."""

    epoch: int
    segment: int
    rollouts: list[str]


class HistoryRow(msgspec.Struct, array_like=True, tag=20):
    """The next messages of a history, for commits in this batch or later ones to refer to.

    Args:
        history: the sender's number for the history, from 1; it belongs to one rollout and one generation.
        first: the number of the first of these messages; a history's messages are numbered from 0.
        digests: the first 16 bytes of each message's SHA-256, joined.
        parts: where the messages lie in the frame's body; empty when the owner did not keep them.
        source, source_digest: the messages lie in the request of that exchange of the rollout, which was stored whole
            before: its model_call_id and digest. Empty: they are in `parts`.
        ranges: where in that request's text, (offset, length) each.
    """

    rollout: str
    history: int
    first: int
    digests: bytes
    parts: list[Part]
    generation: int = CURRENT
    outcome: int = 0
    source: str = ""
    source_digest: bytes = b""
    ranges: list[tuple[int, int]] = []

    @property
    def count(self) -> int:
        """How many messages it brings."""
        return len(self.ranges) if self.source else len(self.parts)


Row = (
    SenderRow
    | ClaimRow
    | CommitRow
    | ReleaseRow
    | MarkRow
    | ClearRow
    | LossRow
    | MergeRow
    | OpenRow
    | CutRow
    | SealRow
    | MembersRow
    | HistoryRow
)
"""Any row of the log."""

ClientRow = ClaimRow | CommitRow | ReleaseRow | MarkRow | ClearRow | HistoryRow
"""The rows that a client may send."""


class Result(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The owner's answer to one client row: an `Outcome`, the generation it belongs to, its call index (or -1)."""

    outcome: int
    generation: int
    call_index: int = PENDING_INDEX


def rollouts_of(rows: Iterable[Row]) -> set[str]:
    """The rollouts that rows are of."""
    return {rollout for row in rows if (rollout := getattr(row, "rollout", None)) is not None}


def result_of(row: ClientRow) -> Result:
    """The answer that a completed row stands for."""
    if type(row) is CommitRow:
        return Result(row.outcome, row.generation, row.call_index)
    return Result(row.outcome, row.generation)
