"""Reading the payloads that a merge shows beside the derived records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from gym_capture.client.host import Host, ask_owner
from gym_capture.errors import DamagedLog
from gym_capture.model.exchange import open_part, open_text, payloads_of
from gym_capture.model.history import MessageRun, run_of
from gym_capture.model.messages import PartsReply, ReadParts, StoredEntry
from gym_capture.model.rows import Part, PartKind

_FIRST_ENTRIES = 8
_REPLY_BYTES = 8 << 20
"""About so many bytes are asked for at once."""


class PayloadReader(Protocol):
    """Reads payloads of a rollout's entries. For a caller that blocks (`blocking_mode`), it blocks too and awaits
    nothing but operations.
    """

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
        messages = KnownMessages()
        start, count = 0, _FIRST_ENTRIES
        while start < len(call_indexes):
            wanted = list(call_indexes[start : start + count])
            request = ReadParts(rollout_id, generation, wanted, messages.have)
            value, body = await ask_owner(self._host, request, self._timeout_s)
            reply = msgspec.convert(value, PartsReply)
            found.update(open_entries(reply, body, messages))
            start += count
            if len(body) < _REPLY_BYTES // 2:
                count *= 2
            elif len(body) > _REPLY_BYTES:
                count = max(1, count // 2)
        return found


class KnownMessages:
    """The messages of one rollout that replies brought.

    Attributes:
        have: of each history, below which number all that can be read are here.
    """

    def __init__(self) -> None:
        self.have: dict[str, int] = {}
        self._found: defaultdict[str, dict[int, bytes]] = defaultdict(dict)

    def take(self, reply: PartsReply, body: bytes) -> None:
        """Keep what a reply brings."""
        for stored in reply.histories:
            found = self._found[stored.history]
            for number, part in stored.messages:
                try:
                    opened = open_part(part, _bytes_of(part, body))
                except DamagedLog:
                    continue
                if not stored.ranges:
                    found[number] = opened
                for index, (at, size) in enumerate(stored.ranges, number):
                    found[index] = opened[at : at + size]
        for entry in reply.entries:
            if entry.history:
                self.have[entry.history] = max(entry.messages, self.have.get(entry.history, 0))

    def of(self, entry: StoredEntry) -> MessageRun:
        """The messages that an entry refers to; DamagedLog for one that cannot be read."""
        return run_of(self._found[entry.history])


def open_entries(reply: PartsReply, body: bytes, messages: KnownMessages) -> dict[int, dict[str, Any]]:
    """Payload values of the entries of a reply; entries with a damaged part or message are left out."""
    messages.take(reply, body)
    found: dict[int, dict[str, Any]] = {}
    for entry in reply.entries:
        if not entry.intact:
            continue
        try:
            opened = [
                (part, open_text(part, _bytes_of(part, body), entry.messages, messages.of(entry)))
                for part in entry.parts
                if part.kind not in (PartKind.RECORD, PartKind.META)
            ]
        except DamagedLog:
            continue
        found[entry.call_index] = payloads_of(opened)
    return found


def _bytes_of(part: Part, body: bytes) -> bytes:
    return body[part.offset : part.offset + part.length]
