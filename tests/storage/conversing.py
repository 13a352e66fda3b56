"""A client that talks in turns, as `ClaimBook` does it, to the small owner of `owners`: same book, rows and order."""

from __future__ import annotations

from typing import Any, NamedTuple

from gym_capture.client.history_book import FirstRequest, HistoryBook, Turn
from gym_capture.model.exchange import pack, snapshot
from gym_capture.model.rows import CURRENT, NO_CLAIM, CommitRow, HistoryRow, Outcome, Part, PartKind, Result
from tests.storage.owners import Batch, Owner


def moved(parts: list[Part], offset: int) -> list[Part]:
    return [Part(p.kind, p.flags, p.offset + offset, p.length, p.raw, p.crc) for p in parts]


def turn_of(call: str, request: Any, response: Any = None) -> dict[str, Any]:
    return {"model_call_id": call, "dialect": "chat", "request": request, "response": response}


class Acknowledged(NamedTuple):
    """An exchange that is durable, and the generation that it was committed in, as its answer says."""

    rollout: str
    generation: int
    exchange: dict[str, Any]


class Talker:
    """One client process.

    Attributes:
        unanswered: batches by number, with what to do when one's commit is answered.
    """

    def __init__(self, client: bytes, capacity_bytes: int = 1 << 20) -> None:
        self.id = client
        self.book = HistoryBook(capacity_bytes)
        self.number = 0
        self.unanswered: dict[int, tuple[Batch, dict[str, Any], str, Turn | None]] = {}
        self.lacked = 0

    def say(self, rollout: str, given: dict[str, Any], generation: int = CURRENT, *, whole: bool = False) -> int:
        """Form the batch of one exchange; returns its number."""
        frozen = snapshot(given)
        turn = None if whole else self.book.turn(rollout, generation, frozen.texts[PartKind.REQUEST].data)
        sealed = pack(frozen) if turn is None else turn.pack(frozen)
        batch, offset = Batch(), 0
        row = CommitRow(rollout, NO_CLAIM, sealed.model_call_id, sealed.digest, [], generation)
        if turn is None:
            text = frozen.texts[PartKind.REQUEST].data
            self.book.sent_whole(rollout, generation, FirstRequest(sealed.model_call_id, sealed.digest, text))
        elif sealed.needs:
            row.history, row.messages = turn.conversation.number, sealed.needs
            for history, messages in turn.rows(rollout, generation, sealed):
                history.parts = moved(history.parts, offset)
                batch.rows.append(history)
                batch.body += messages.body
                offset += messages.body_bytes
        if turn is not None:
            turn.end()
        row.parts = moved(sealed.parts, offset)
        batch.rows.append(row)
        batch.body += sealed.body
        self.number += 1
        self.unanswered[self.number] = (batch, given, rollout, turn)
        return self.number

    def send(self, owner: Owner) -> list[Acknowledged]:
        """Send what is unanswered, in order, and take the answers; returns what was acknowledged as durable."""
        kept: list[Acknowledged] = []
        for number in sorted(self.unanswered):
            batch, given, rollout, turn = self.unanswered[number]
            owner.append(fresh(batch), number, self.id)
        for number in sorted(self.unanswered):
            batch, given, rollout, turn = self.unanswered[number]
            results = owner.acknowledge(number, self.id)
            del self.unanswered[number]
            generation = batch.rows[-1].generation
            kept += self._answered(results[-1], rollout, generation, given, turn)
        return kept

    def _answered(
        self, result: Result, rollout: str, generation: int, given: dict[str, Any], turn: Turn | None
    ) -> list[Acknowledged]:
        if result.outcome == Outcome.LACKING:
            assert turn is not None
            self.lacked += 1
            self.book.lacking(rollout, generation, turn.conversation)
            self.say(rollout, given, generation, whole=True)
            return []
        assert result.outcome in (Outcome.APPLIED, Outcome.DUPLICATE, Outcome.FENCED), result
        return [] if result.outcome == Outcome.FENCED else [Acknowledged(rollout, result.generation, given)]


def fresh(batch: Batch) -> Batch:
    """The batch as it would arrive: rows that no owner has completed."""
    copy = Batch()
    copy.body = batch.body
    for row in batch.rows:
        if isinstance(row, HistoryRow):
            copied = HistoryRow(row.rollout, row.history, row.first, row.digests, row.parts, row.generation)
            copied.source, copied.source_digest, copied.ranges = row.source, row.source_digest, row.ranges
            copy.rows.append(copied)
        else:
            assert isinstance(row, CommitRow)
            copied_commit = CommitRow(row.rollout, row.claim, row.model_call_id, row.digest, row.parts, row.generation)
            copied_commit.history, copied_commit.messages = row.history, row.messages
            copy.rows.append(copied_commit)
    return copy
