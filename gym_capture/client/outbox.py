"""Rows on their way to the owner: the queue, the numbered batches under way, and what was confirmed. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from gym_capture.model.messages import Batch, encode_message
from gym_capture.model.rows import ClientRow, CommitRow, HistoryRow, Part, Result

_ROW_BYTES = 96
_PART_BYTES = 24
"""What a row and a part take at most in the head, beside a row's texts."""


class Entry:
    """One row to be sent, and what to do with its answer.

    Attributes:
        row, body: the row, its parts' offsets counted from the start of its own `body`.
        size: at most so many bytes of head and body.
        settle: called once with the answer.
        sent: it is or was part of a batch, so the owner may know it.
        late: its answer came so late that a claim may be lost by now.
        withdrawn: it must not be sent any more.
    """

    __slots__ = ("body", "body_bytes", "late", "row", "sent", "settle", "size", "withdrawn")

    def __init__(
        self, row: ClientRow, settle: Callable[[Result], None], body: list[bytes] | None = None, body_bytes: int = 0
    ) -> None:
        self.row = row
        self.settle = settle
        self.body = body
        self.body_bytes = body_bytes
        self.size = body_bytes + _head_bytes(row)
        self.sent = False
        self.late = False
        self.withdrawn = False


def _head_bytes(row: ClientRow) -> int:
    size = _ROW_BYTES + len(row.rollout)
    text = getattr(row, "model_call_id", "")
    size += len(text) if text.isascii() else 4 * len(text)
    if type(row) is CommitRow:
        size += _PART_BYTES * len(row.parts)
    elif type(row) is HistoryRow:
        size += _PART_BYTES * row.count + len(row.digests) + 4 * len(row.source)
    return size


class SentBatch(NamedTuple):
    """A batch that is under way: its number, its entries, and its message, which is sent again unchanged."""

    number: int
    entries: list[Entry]
    message: list[bytes | memoryview]
    size: int


class Outbox:
    """The queue and the batches of one client, numbered from 1.

    Args:
        max_batch_bytes: no batch of more than one row is larger.
        limit: batches under way at most.
    """

    def __init__(self, max_batch_bytes: int, limit: int) -> None:
        self.max_batch_bytes = max_batch_bytes
        self.limit = limit
        self.confirmed = 0
        self.under_way_bytes = 0
        self._queue: deque[Entry] = deque()
        self._under_way: dict[int, SentBatch] = {}
        self._answered: set[int] = set()
        self._held: SentBatch | None = None
        self._last = 0

    def add(self, entry: Entry) -> None:
        """Queue a row."""
        self._queue.append(entry)

    def next_batch(self, window_bytes: int) -> SentBatch | None:
        """The next batch to send now; None when nothing waits, or enough is under way.

        Args:
            window_bytes: bytes that may be under way. One batch may always be, whatever its size.
        """
        under_way = self._under_way
        if len(under_way) >= self.limit:
            return None
        batch = self._held
        if batch is None:
            batch = self._form()
            if batch is None:
                return None
        if under_way and self.under_way_bytes + batch.size > window_bytes:
            self._held = batch
            return None
        self._held = None
        under_way[batch.number] = batch
        self.under_way_bytes += batch.size
        return batch

    def _form(self) -> SentBatch | None:
        queue = self._queue
        entries: list[Entry] = []
        rows: list[ClientRow] = []
        body: list[bytes | memoryview] = []
        size = offset = 0
        while queue:
            entry = queue[0]
            if entry.withdrawn:
                queue.popleft()
                continue
            if entries and size + entry.size > self.max_batch_bytes:
                break
            queue.popleft()
            entry.sent = True
            entries.append(entry)
            size += entry.size
            row = entry.row
            if entry.body is not None:
                if offset and isinstance(row, CommitRow | HistoryRow):
                    row = _shifted(row, offset)
                body += entry.body
                offset += entry.body_bytes
            rows.append(row)
        if not entries:
            return None
        self._last += 1
        message = encode_message(Batch(self._last, self.confirmed, rows), body)
        return SentBatch(self._last, entries, message, sum(map(len, message)))

    def answered(self, number: int) -> SentBatch | None:
        """The answers to a batch have come; None when that batch is not under way (they came before)."""
        batch = self._under_way.pop(number, None)
        if batch is None:
            return None
        self.under_way_bytes -= batch.size
        self._answered.add(number)
        while self.confirmed + 1 in self._answered:
            self.confirmed += 1
            self._answered.remove(self.confirmed)
        return batch

    def under_way(self) -> Iterator[SentBatch]:
        """The unanswered batches, oldest first."""
        return iter(self._under_way.values())

    def drain(self) -> list[Entry]:
        """Take everything out, sent or not: nothing will be sent any more."""
        entries = [entry for batch in self._under_way.values() for entry in batch.entries]
        if self._held is not None:
            entries += self._held.entries
        entries += [entry for entry in self._queue if not entry.withdrawn]
        self._under_way.clear()
        self._queue.clear()
        self._held = None
        self.under_way_bytes = 0
        return entries


def _shifted(row: CommitRow | HistoryRow, offset: int) -> ClientRow:
    parts = [Part(p.kind, p.flags, p.offset + offset, p.length, p.raw, p.crc) for p in row.parts]
    return msgspec.structs.replace(row, parts=parts)
