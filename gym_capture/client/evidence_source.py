"""Where a merge's evidence comes from: the owner, and the capture directory while the owner is away."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from gym_capture.client.host import Host, ask_owner
from gym_capture.client.payload_reader import OwnerPayloadReader, PayloadReader
from gym_capture.errors import ClientClosed, Fenced, GymCaptureError
from gym_capture.model.evidence import gather_evidence
from gym_capture.model.merge import RolloutEvidence
from gym_capture.model.messages import Merge, MergeReply, Quiesce
from gym_capture.model.rollout_state import UNACCOUNTED
from gym_capture.model.rows import CURRENT

_LEAST_S = 1.0
"""How long the merge itself waits for an owner that is away, when waiting for quiescence took all the time."""


class EvidenceReader(Protocol):
    """Reads what a capture directory holds of a rollout, without its owner. For a caller that blocks (`blocking_mode`),
    it blocks too and awaits nothing.
    """

    async def read_evidence(
        self, rollout_id: str, generation: int | None, include_payloads: bool
    ) -> RolloutEvidence | None:
        """What is known of it; None where the directory cannot be read from here."""


class EvidenceSource:
    """Gathers what is known of a rollout.

    Args:
        host: where requests are handed in.
        payload_reader: reads payloads; None: through the owner.
        evidence_reader: reads the capture directory while the owner is away; None: nothing does.
    """

    def __init__(
        self, host: Host, payload_reader: PayloadReader | None, evidence_reader: EvidenceReader | None
    ) -> None:
        self._host = host
        self._payload_reader = payload_reader
        self._evidence_reader = evidence_reader

    async def gather(
        self,
        rollout_id: str,
        generation: int,
        include_payloads: bool,
        issued: int,
        timeout_s: float,
        *,
        quiesce: bool = True,
    ) -> RolloutEvidence:
        """Wait for quiescence, then take what there is. An owner that cannot be reached makes it `unreadable`.

        Args:
            generation: the generation that is meant, or `rows.CURRENT`.
            issued: how many calls the caller counted, 0: it did not count.
            timeout_s: how long to wait for quiescence, and for an owner that is away, seconds.
            quiesce: False: take what there is now, claims that are outstanding are counted.

        Raises:
            Fenced: that generation was cleared since.
            ClientClosed: the client was closed.
        """
        try:
            began = self._host.clock.monotonic()
            if quiesce:
                await ask_owner(self._host, Quiesce(rollout_id, timeout_s), timeout_s)
            # An owner that is there may take its time; one that was away all the while has used it up.
            left = max(_LEAST_S, began + timeout_s - self._host.clock.monotonic())
            value, _ = await ask_owner(self._host, Merge(rollout_id, generation, issued), left)
            reply = msgspec.convert(value, MergeReply)
            payloads = None
            if include_payloads:
                indexes = [index for index, _ in reply.records]
                payloads = await self._payloads(reply.rollout, reply.generation, indexes)
        except (Fenced, ClientClosed):
            raise
        except GymCaptureError:
            return await self._without_owner(rollout_id, generation, include_payloads, issued)
        return gather_evidence(
            rollout_id,
            reply.records,
            payloads=payloads,
            damaged=reply.damaged,
            incomplete=reply.reasons,
            outstanding=reply.outstanding,
        )

    async def _payloads(self, rollout_id: str, generation: int, indexes: list[int]) -> dict[int, dict[str, Any]]:
        through_owner = OwnerPayloadReader(self._host, self._host.options.drain_timeout_s)
        if self._payload_reader is None:
            return await through_owner.read(rollout_id, generation, indexes)
        found = await self._payload_reader.read(rollout_id, generation, indexes)
        missing = [index for index in indexes if index not in found]
        if missing:
            # A shared file system may show the newest bytes later than the owner has acknowledged them.
            found.update(await through_owner.read(rollout_id, generation, missing))
        return found

    async def _without_owner(
        self, rollout_id: str, generation: int, include_payloads: bool, issued: int
    ) -> RolloutEvidence:
        evidence = None
        if self._evidence_reader is not None:
            token = None if generation == CURRENT else generation
            evidence = await self._evidence_reader.read_evidence(rollout_id, token, include_payloads)
        if evidence is None:
            evidence = RolloutEvidence(rollout_id, [])
        evidence.unreadable = True
        missing = evidence.incomplete or {}
        known = len(evidence.records) + evidence.damaged + evidence.outstanding + sum(missing.values())
        if issued > known:
            evidence.incomplete = {**missing, UNACCOUNTED: issued - known}
        return evidence
