"""What is asked of one rollout or several: merges, clears, and reads of stored parts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from gym_capture.errors import Fenced, GymCaptureError, OwnerUnavailable
from gym_capture.model.entropy import Entropy
from gym_capture.model.gaps import evidence_gaps
from gym_capture.model.ids import validate_rollout_id
from gym_capture.model.messages import MergeReply, PartsReply
from gym_capture.model.rows import CURRENT, ClearRow
from gym_capture.service.executor import Executor
from gym_capture.service.paging import Paging
from gym_capture.service.part_reader import needed_pieces, read_parts, read_records
from gym_capture.service.row_check import MAX_CALL_ID_CHARACTERS, MAX_COUNT
from gym_capture.service.settings import OwnerSettings
from gym_capture.service.tenure import Tenure
from gym_capture.storage.files import Files

_CLEARED_AT_ONCE = 1024

NOTHING: Mapping[str, int] = MappingProxyType({})
"""No messages at hand."""


class RolloutRequests:
    """Answers them from the state and the log that the tenure holds. Used from the service's loop.

    Args:
        files: the capture directory.
        paging: brings rollouts back into memory.
        readers: runs reads of stored parts.
        entropy: names clears that bring no name.
        counts: the service's counters; damaged records are counted there.
        gaps: the gaps of each merge are counted there, by code.
    """

    def __init__(
        self,
        files: Files,
        tenure: Tenure,
        paging: Paging,
        *,
        readers: Executor,
        entropy: Entropy,
        counts: Counter[str],
        gaps: Counter[str],
        settings: OwnerSettings,
    ) -> None:
        self._files = files
        self._tenure = tenure
        self._paging = paging
        self._readers = readers
        self._entropy = entropy
        self._counts = counts
        self._gaps = gaps
        self._settings = settings

    async def merge(self, rollout_id: str, generation: int = CURRENT, issued: int = 0) -> MergeReply:
        """What the rollout's current generation has captured, journaled as merged. Waits for no claim.

        Args:
            generation: refuse if this is not the current one.
            issued: how many calls the caller counted; what is nowhere of them is a gap.

        Raises:
            InvalidRolloutId: no rollout can have this id.
            Fenced: the generation is not the current one.
            OwnerUnavailable, Superseded: nothing can be said.
        """
        validate_rollout_id(rollout_id)
        issued = max(0, min(issued, MAX_COUNT))
        while True:
            await self._paging.available([rollout_id])
            self._fence(rollout_id, generation)
            # One step of the loop: the view holds exactly what lies before the merge's row in the log.
            journaled = self._tenure.journal([self._tenure.ledger.merge_row(rollout_id, issued)])
            view = self._tenure.ledger.view(rollout_id)
            if await journaled:
                break
        found = await self._readers.run(partial(read_records, self._files, view.entries))
        if found.damaged:
            self._counts["damaged_records"] += found.damaged
        damaged = found.damaged + view.holes
        gaps = evidence_gaps(
            records=bool(found.records), damaged=damaged, incomplete=view.reasons, outstanding=view.outstanding
        )
        self._gaps.update(gap["code"] for gap in gaps)
        return MergeReply(rollout_id, view.generation, found.records, damaged, view.reasons, view.outstanding)

    async def clear(self, rollout_ids: Sequence[str], request: str) -> list[int]:
        """Begin the next generation of each rollout; returns their numbers, in order.

        Args:
            request: names this clear; the same again begins nothing and returns the same numbers.

        Raises:
            InvalidRolloutId: nothing was cleared.
            OwnerUnavailable, Superseded: whether it was cleared is not known; ask again under the same request.
        """
        for rollout_id in rollout_ids:
            validate_rollout_id(rollout_id)
        request = request or self._entropy.bytes(16).hex()
        if len(request) > MAX_CALL_ID_CHARACTERS or not request.isprintable():
            raise GymCaptureError(
                f"a clear's request is a short printable text, not {request[:80]!r}. Nothing was done."
            )
        while True:
            await self._tenure.available()
            rows: list[ClearRow] = []
            journaled: list[asyncio.Future[bool]] = []
            for start in range(0, len(rollout_ids), _CLEARED_AT_ONCE):
                # What was captured of so many is in memory at once, and no more of it once they are cleared.
                some = rollout_ids[start : start + _CLEARED_AT_ONCE]
                await self._paging.available(some)
                clears = [ClearRow(rollout_id, request) for rollout_id in some]
                journaled.append(self._tenure.journal(clears))
                rows += clears
            if all([await each for each in journaled]):
                return [row.generation for row in rows]

    async def read_parts(
        self, rollout_id: str, generation: int, call_indexes: Sequence[int], have: Mapping[str, int] = NOTHING
    ) -> tuple[PartsReply, list[bytes]]:
        """All stored parts of these calls, and the bytes that the parts' offsets refer to. Damaged ones are left out.

        Args:
            have: see `messages.ReadParts`.

        Raises:
            Fenced: the generation is not the current one.
            GymCaptureError: more than one message can hold; ask for fewer calls.
            OwnerUnavailable, Superseded: nothing can be read now.
        """
        await self._paging.available([rollout_id])
        self._fence(rollout_id, generation)
        wanted = set(call_indexes)
        entries = [entry for entry in self._tenure.ledger.view(rollout_id).entries if entry.call_index in wanted]
        pieces = needed_pieces(entries, have)
        size = sum(part.length for entry in entries for part in entry.parts)
        size += sum(part.length for _, piece in pieces for part in piece.parts)
        if size > self._settings.read_bytes:
            raise GymCaptureError(
                f"{len(entries)} calls hold {size} bytes, one answer at most {self._settings.read_bytes}. Nothing was "
                "read; ask for fewer calls at once."
            )
        if (
            any(entry.ref.sequence > self._tenure.ledger.durable_sequence for entry in entries)
            and not await self._tenure.commit.flush()
        ):
            raise self._tenure.unavailable or OwnerUnavailable(
                "the log was taken anew meanwhile; nothing was read, ask again."
            )
        return await self._readers.run(partial(read_parts, self._files, entries, pieces))

    def _fence(self, rollout_id: str, generation: int) -> None:
        rollout = self._tenure.ledger.rollouts.get(rollout_id)
        current = rollout.generation if rollout else 0
        if generation not in (CURRENT, current):
            raise Fenced(
                f"generation {generation} of rollout {rollout_id} is not the current one ({current}). Nothing was "
                "changed; whoever cleared it since then has the records.",
                rollout_id=rollout_id,
                generation=generation,
                current=current,
            )
