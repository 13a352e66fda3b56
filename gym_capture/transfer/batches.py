"""A rollout cut into batches for an owner: each exchange under an identity of its own, the marks with the last."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from gym_capture.model.captured import CapturedCall, CapturedRollout, CountedCalls
from gym_capture.model.rows import NO_CLAIM, ClearRow, ClientRow, CommitRow, MarkRow, Part
from gym_capture.service.row_check import MAX_CALL_ID_CHARACTERS, MAX_COUNT, MAX_REASON_CHARACTERS

BATCH_BYTES = 4 << 20
"""Stored bytes after which a batch ends."""

FIRST_GENERATION = 0

BEGUN = "import"
"""The request of the clear by which a rollout is begun that captured nothing in its source."""


class Identity(NamedTuple):
    """What makes an exchange the same as another: its `model_call_id` and `digest`."""

    model_call_id: str
    digest: bytes


class NamedCall(NamedTuple):
    """A call and the identity that it is committed under."""

    identity: Identity
    call: CapturedCall


class ImportBatch(NamedTuple):
    """Rows and what their parts lie in."""

    rows: list[ClientRow]
    body: bytes


def named_calls(rollout: CapturedRollout) -> Iterator[NamedCall]:
    """The calls of a rollout, each once. One whose id is missing, too long or another's gets one by its digest.

    The same calls get the same ids, so that an import that goes on knows what it wrote.
    """
    digests: dict[str, bytes] = {}
    for call in rollout.calls:
        name = call.model_call_id
        if not name or len(name) > MAX_CALL_ID_CHARACTERS or digests.get(name, call.digest) != call.digest:
            name = f"imported-{call.digest.hex()}"
        if name not in digests:
            digests[name] = call.digest
            yield NamedCall(Identity(name, call.digest), call)


def batches_of(rollout: CapturedRollout, skipped: int = 0, generation: int = FIRST_GENERATION) -> Iterator[ImportBatch]:
    """The batches that make the rollout. The marks of what is missing are in the last, so they are never counted twice.

    One that captured nothing, and of which nothing is known to be missing, is cleared: that says that it was begun.

    Args:
        skipped: so many of its first calls are there already.
        generation: the rollout's, where it is written.
    """
    rows: list[ClientRow] = []
    body: list[bytes] = []
    held = 0
    seen = CountedCalls(rollout.calls)
    for number, (identity, call) in enumerate(named_calls(rollout._replace(calls=seen))):
        if number < skipped:
            continue
        sealed = call.packed()
        if rows and held + sealed.body_bytes > BATCH_BYTES:
            yield ImportBatch(rows, b"".join(body))
            rows, body, held = [], [], 0
        parts = [Part(p.kind, p.flags, p.offset + held, p.length, p.raw, p.crc) for p in sealed.parts]
        rows.append(CommitRow(rollout.rollout_id, NO_CLAIM, *identity, parts, generation))
        body += sealed.body
        held += sealed.body_bytes
    rows += [
        MarkRow(rollout.rollout_id, reason, count, generation)
        for reason, count in sorted((marks_of(rollout, seen.calls) or {}).items())
    ]
    if not rows and not seen.calls:
        rows.append(ClearRow(rollout.rollout_id, BEGUN))
    if rows:
        yield ImportBatch(rows, b"".join(body))


def marks_of(rollout: CapturedRollout, readable: int) -> dict[str, int] | None:
    """Why evidence of an imported rollout is missing, counted; None: it is not.

    Args:
        readable: so many calls of it could be read.
    """
    given = Counter(rollout.reasons or {})
    if rollout.reasons == {}:
        given[""] = 1
    given["unreadable"] += max(0, rollout.indexes - readable)
    given["unsettled"] += rollout.outstanding
    marks: dict[str, int] = {}
    for reason, count in (+given).items():
        marks[_sound(reason)] = min(marks.get(_sound(reason), 0) + count, MAX_COUNT)
    return marks or None


def _sound(reason: str) -> str:
    """The reason as an owner takes it."""
    return reason if len(reason) <= MAX_REASON_CHARACTERS and re.fullmatch(r"\w*", reason) else "imported"


__all__ = ["Identity", "ImportBatch", "NamedCall", "batches_of", "marks_of", "named_calls"]
