"""Reading the payloads that a merge shows beside the derived records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from gym_capture.client.host import Host, ask_owner
from gym_capture.errors import DamagedLog
from gym_capture.model.exchange import open_part, payloads_of
from gym_capture.model.messages import PartsReply, ReadParts
from gym_capture.model.rows import PartKind

_FIRST_ENTRIES = 8
_REPLY_BYTES = 8 << 20
"""About so many bytes are asked for at once."""


class PayloadReader(Protocol):
    """Reads payloads of a rollout's entries."""

    async def read(self, rollout_id: str, generation: int, call_indexes: Sequence[int]) -> dict[int, dict[str, Any]]:
        """The four payload values by call index. What cannot be read is left out."""


class OwnerPayloadReader:
    """Reads payloads through the owner, some megabytes at a time.

    Args:
        host: where requests are handed in.
        timeout_s: how long to wait for an owner that is away, seconds.
    """

    def __init__(self, host: Host, timeout_s: float) -> None:
        self._host = host
        self._timeout_s = timeout_s

    async def read(self, rollout_id: str, generation: int, call_indexes: Sequence[int]) -> dict[int, dict[str, Any]]:
        """The four payload values by call index. What cannot be read is left out.

        Raises:
            OwnerUnavailable: the owner went away.
        """
        found: dict[int, dict[str, Any]] = {}
        start, count = 0, _FIRST_ENTRIES
        while start < len(call_indexes):
            wanted = list(call_indexes[start : start + count])
            value, body = await ask_owner(self._host, ReadParts(rollout_id, generation, wanted), self._timeout_s)
            reply = msgspec.convert(value, PartsReply)
            found.update(open_entries(reply, body))
            start += count
            if len(body) < _REPLY_BYTES // 2:
                count *= 2
            elif len(body) > _REPLY_BYTES:
                count = max(1, count // 2)
        return found


def open_entries(reply: PartsReply, body: bytes) -> dict[int, dict[str, Any]]:
    """Payload values of the entries of a reply; entries with a damaged part are left out."""
    found: dict[int, dict[str, Any]] = {}
    for call_index, parts in reply.entries:
        try:
            opened = [
                (part, open_part(part, body[part.offset : part.offset + part.length]))
                for part in parts
                if part.kind not in (PartKind.RECORD, PartKind.META)
            ]
        except DamagedLog:
            continue
        found[call_index] = payloads_of(opened)
    return found
