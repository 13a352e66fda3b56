"""What a client's rows must be before the ledger sees them.

A row that breaks a rule costs itself only: it stays in its batch as *refused* (so that a repeated batch is answered the
same, also after a restart) and the others apply. Bytes that do not match their checksum were damaged on the way: the
batch is not believed at all and comes again. If it comes damaged again and again, it was damaged before it was sent.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import google_crc32c

from gym_capture.errors import InvalidRolloutId, ProtocolError
from gym_capture.model.history import DIGEST_BYTES
from gym_capture.model.ids import MAX_GENERATION, validate_rollout_id
from gym_capture.model.rows import (
    CURRENT,
    PENDING_INDEX,
    ClaimRow,
    ClearRow,
    ClientRow,
    CommitRow,
    HistoryRow,
    MarkRow,
    Outcome,
    Part,
    PartKind,
    ReleaseRow,
)

MAX_CALL_ID_CHARACTERS = 4096
MAX_REASON_CHARACTERS = 64
MAX_COUNT = 2**31
MAX_NUMBER = 2**63 - 1
_DIGEST_BYTES = 16
_RECORD = int(PartKind.RECORD)
_LAST_KIND = int(PartKind.RESPONSE_RAW)
_MESSAGE = int(PartKind.MESSAGE)
_crc = google_crc32c.value  # `codec.checksum` without its conversions: this is the owner's hottest line


class DamagedOnTheWay(ProtocolError):
    """Bytes of a batch do not match their checksum; nothing of it was applied, and it may come again."""


def check_rows(
    rows: Sequence[ClientRow], body: bytes, known: Container[str], max_exchange_bytes: int, *, last_try: bool = False
) -> Sequence[ClientRow]:
    """The rows as the ledger may apply them: completed by the owner alone, refused ones marked.

    A row whose rollout id is not valid concerns no rollout: a row that says nothing stands in its place.

    Args:
        body: what the commits' parts lie in.
        known: rollout ids that were found valid before.
        last_try: an exchange that does not match its checksum is refused like any other row.

    Raises:
        DamagedOnTheWay: a part does not match its checksum.
    """
    stand_ins: list[int] = []
    for index, row in enumerate(rows):
        if row.rollout not in known and not _is_rollout_id(row.rollout):
            stand_ins.append(index)
            continue
        kind = type(row)
        row.outcome = Outcome.APPLIED
        if kind is CommitRow:
            row.outcome = _commit_outcome(row, body, max_exchange_bytes, last_try)  # type: ignore[arg-type]
        elif kind is HistoryRow:
            if not _history_is_kept(row, body, max_exchange_bytes, last_try):  # type: ignore[arg-type]
                stand_ins.append(index)
        elif not CURRENT <= row.generation <= MAX_GENERATION or not _is_sane(row):
            stand_ins.append(index)
    if not stand_ins:
        return rows
    checked = list(rows)
    for index in stand_ins:
        checked[index] = MarkRow("", "", 0, 0, Outcome.INVALID)
    return checked


def _is_rollout_id(text: str) -> bool:
    try:
        validate_rollout_id(text)
    except InvalidRolloutId:
        return False
    return True


def _is_sane(row: ClientRow) -> bool:
    if isinstance(row, ClaimRow):
        return 0 < row.claim <= MAX_NUMBER and len(row.model_call_id) <= MAX_CALL_ID_CHARACTERS
    if isinstance(row, ReleaseRow):
        return 0 < row.claim <= MAX_NUMBER and _is_reason(row.reason)
    if isinstance(row, MarkRow):
        return 0 < row.count <= MAX_COUNT and _is_reason(row.reason)
    return isinstance(row, ClearRow) and len(row.request) <= MAX_CALL_ID_CHARACTERS


def _is_reason(text: str) -> bool:
    return len(text) <= MAX_REASON_CHARACTERS and (not text or text.replace("_", "").isalnum())


def _commit_outcome(row: CommitRow, body: bytes, max_exchange_bytes: int, last_try: bool) -> Outcome:
    row.call_index = PENDING_INDEX
    outcome = Outcome.APPLIED
    if (
        not CURRENT <= row.generation <= MAX_GENERATION
        or not 0 <= row.claim <= MAX_NUMBER
        or len(row.digest) != _DIGEST_BYTES
        or not 0 < len(row.model_call_id) <= MAX_CALL_ID_CHARACTERS
        or not 0 <= row.history <= MAX_NUMBER
        or not 0 <= row.messages <= MAX_COUNT
    ):
        row.generation = max(CURRENT, min(row.generation, MAX_GENERATION))
        outcome = Outcome.INVALID
    elif not row.parts or row.parts[0].kind != _RECORD:
        outcome = Outcome.INVALID
    else:
        outcome = _parts_outcome(row, body, max_exchange_bytes, last_try)
    if outcome != Outcome.APPLIED:
        row.parts = []
        # Nothing is kept of it, so its name only has to fit.
        row.model_call_id = row.model_call_id[:MAX_CALL_ID_CHARACTERS]
        row.claim = max(0, min(row.claim, MAX_NUMBER))
        row.history = row.messages = 0
    return outcome


def _parts_outcome(row: CommitRow, body: bytes, max_exchange_bytes: int, last_try: bool) -> Outcome:
    size = len(body)
    given = 0
    for part in row.parts:
        offset = part.offset
        end = offset + part.length
        if not 0 <= offset <= end <= size or not _RECORD <= part.kind <= _LAST_KIND or part.raw < 0:
            return Outcome.INVALID
        if _crc(body[offset:end]) != part.crc:
            if last_try:
                return Outcome.INVALID
            raise _damaged_on_the_way()
        # The record is derived by the client, so it is no part of what the caller handed in.
        if part.kind == _RECORD:
            if part.raw > max_exchange_bytes:
                return Outcome.TOO_LARGE
        else:
            given += part.raw
    return Outcome.TOO_LARGE if given > max_exchange_bytes else Outcome.APPLIED


def _history_is_kept(row: HistoryRow, body: bytes, max_exchange_bytes: int, last_try: bool) -> bool:
    if (
        not CURRENT <= row.generation <= MAX_GENERATION
        or not 0 < row.history <= MAX_NUMBER
        or not 0 <= row.first <= MAX_COUNT
        or not row.count
        or len(row.digests) != DIGEST_BYTES * row.count
    ):
        return False
    if row.source:
        named = len(row.source) <= MAX_CALL_ID_CHARACTERS and len(row.source_digest) == _DIGEST_BYTES
        return named and not row.parts and all(at >= 0 and size > 0 for at, size in row.ranges)
    if row.ranges or row.source_digest or sum(part.raw for part in row.parts) > max_exchange_bytes:
        return False
    if not all(_is_message(part, len(body)) for part in row.parts):
        return False
    if all(_crc(body[part.offset : part.offset + part.length]) == part.crc for part in row.parts):
        return True
    if last_try:
        return False
    raise _damaged_on_the_way()


def _is_message(part: Part, size: int) -> bool:
    return part.kind == _MESSAGE and 0 <= part.offset <= part.offset + part.length <= size and part.raw > 0


def _damaged_on_the_way() -> DamagedOnTheWay:
    return DamagedOnTheWay(
        "an exchange arrived damaged: its bytes do not match their checksum. Nothing of the batch was kept; "
        "the connection is closed and the client sends it again."
    )
