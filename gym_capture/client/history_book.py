"""What this client has stored of each rollout's conversation, so that it is sent once. Used in the client's loop only.

A message counts as stored from the moment its row is queued: rows arrive in the order in which they are queued, are
sent again in that order until they are answered, and what is answered is on disk. Should the owner lack something all
the same, it says so, and the rollout begins a new history.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from gym_capture.model.exchange import SealedExchange, SealedMessages, Snapshot, pack
from gym_capture.model.history import MIN_TEXT_BYTES, NO_STRETCHES, Stretch
from gym_capture.model.rows import HistoryRow

_NO_MESSAGES = SealedMessages([], [], [], 0)
_CONVERSATION_BYTES = 500
_MESSAGE_BYTES = 160
"""What each takes in memory, about."""

DEFAULT_CAPACITY_BYTES = 16 << 20
_FIRST_REQUESTS = 8
"""No first request that takes more than this part of the capacity is kept."""


_UNRELATED = 3
"""So many requests of a rollout are kept that repeat nothing of each other: several agents may talk in it in turn."""
_GLIMPSES = 32
"""Of so many before them a few bytes are: more agents than that hardly talk in turn."""
_GLIMPSE_BYTES = 200
"""What each takes in memory, about."""

_PROBE_BYTES = 64


class Glimpse(NamedTuple):
    """The bytes in the middle of a request that was sent whole and is no longer kept, and where they stood."""

    at: int
    probe: bytes

    def seen_in(self, text: bytes) -> bool:
        """Whether a request has the same bytes at the same place, as one has that goes on from it."""
        return text.startswith(self.probe, self.at)


class FirstRequest(NamedTuple):
    """An exchange that was sent whole and may begin a conversation: its model_call_id, digest, and request's text."""

    model_call_id: str
    digest: bytes
    text: bytes

    def repeated_in(self, text: bytes) -> bool:
        """Whether a request seems to repeat this one's. A guess, from a few bytes: it decides what work is worth while.

        A conversation that grew has the same bytes at the same place, or what stood behind them somewhere.
        """
        own = self.text
        if len(own) < MIN_TEXT_BYTES:
            return False  # its last bytes, `}]}`, are those of any
        at = min(len(own), len(text)) // 2
        if own[at : at + _PROBE_BYTES] == text[at : at + _PROBE_BYTES]:
            return True
        at = len(own) * 3 // 4
        return own[at : at + _PROBE_BYTES] in text

    @property
    def glimpse(self) -> Glimpse:
        """What is kept of it longer than its text."""
        at = len(self.text) // 2
        return Glimpse(at, self.text[at : at + _PROBE_BYTES])


class Unrelated(NamedTuple):
    """The last requests of a rollout that were sent whole and repeat nothing of each other, the newest last."""

    requests: tuple[FirstRequest, ...] = ()
    glimpses: tuple[Glimpse, ...] = ()

    def with_request(self, request: FirstRequest) -> Unrelated:
        """Those and another one; of the oldest little is kept, or nothing."""
        requests = (*self.requests, request)
        gone = tuple(each.glimpse for each in requests[:-_UNRELATED] if len(each.text) >= MIN_TEXT_BYTES)
        return Unrelated(requests[-_UNRELATED:], (*self.glimpses, *gone)[-_GLIMPSES:])

    @property
    def held_bytes(self) -> int:
        """About how much memory it takes."""
        return sum(len(each.text) for each in self.requests) + _GLIMPSE_BYTES * len(self.glimpses)


_NONE_YET = Unrelated()


class Conversation:
    """The messages of one history, by digest.

    Attributes:
        number: the history's number; it is never used again.
        known: message numbers by digest. May be read in other threads.
        next: the number of the next message.
        extending: an exchange that adds messages is being packed; others that come meanwhile add none.
        source: the first request, until its messages are the history's first ones.
        stretches: the lists of the last request that could add messages, by key. Replaced, never changed.
    """

    __slots__ = ("extending", "known", "next", "number", "source", "stretches")

    def __init__(self, number: int, source: FirstRequest | None) -> None:
        self.number = number
        self.source = source
        self.known: dict[bytes, int] = {}
        self.next = 0
        self.extending = False
        self.stretches: Mapping[str, Stretch] = NO_STRETCHES

    @property
    def held_bytes(self) -> int:
        """About how much memory it takes."""
        size = _MESSAGE_BYTES * len(self.known)
        if self.source is not None:
            size += len(self.source.text)
        return size + sum(stretch.held_bytes for stretch in self.stretches.values())


class Turn:
    """What one exchange may refer to, and whether it may add messages.

    Attributes:
        conversation: whose messages.
        first: the number of the first message that it adds; None: it adds none.
    """

    __slots__ = ("conversation", "first")

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.first = None if conversation.extending else conversation.next
        conversation.extending = True

    @property
    def earlier(self) -> bytes:
        """The request whose messages are to become the history's first ones; empty: there is none."""
        source = self.conversation.source
        return source.text if source is not None and self.first is not None else b""

    def pack(self, frozen: Snapshot) -> SealedExchange:
        """The exchange with its request referring to messages. May run in another thread."""
        conversation = self.conversation
        return pack(frozen, conversation.known, self.first, self.earlier, conversation.stretches)

    def rows(self, rollout: str, generation: int, sealed: SealedExchange) -> list[tuple[HistoryRow, SealedMessages]]:
        """The rows that bring the exchange's messages, each with what lies in its body; to be queued before its commit.

        From now on later exchanges may refer to these messages, so all of it has to happen in one step of the loop.
        """
        conversation = self.conversation
        rows: list[tuple[HistoryRow, SealedMessages]] = []
        source, found, new = conversation.source, sealed.found, sealed.new
        if source is not None and found is not None:
            row = self._row(rollout, generation, found.digests)
            row.source, row.source_digest, row.ranges = source.model_call_id, source.digest, found.ranges
            rows.append((row, _NO_MESSAGES))
        if new is not None:
            row = self._row(rollout, generation, new.digests)
            row.parts = new.parts
            rows.append((row, new))
        if rows:
            conversation.source = None
        if self.first is not None:
            conversation.stretches = {**conversation.stretches, **sealed.stretches}
        return rows

    def _row(self, rollout: str, generation: int, digests: list[bytes]) -> HistoryRow:
        conversation = self.conversation
        row = HistoryRow(rollout, conversation.number, conversation.next, b"".join(digests), [], generation)
        for digest in digests:
            conversation.known[digest] = conversation.next
            conversation.next += 1
        return row

    def end(self) -> None:
        """It is queued, or lost."""
        if self.first is not None:
            self.conversation.extending = False
            self.first = None


class HistoryBook:
    """The conversations of one client.

    Args:
        capacity_bytes: about how much memory they may take; the longest unused is forgotten first.
    """

    def __init__(self, capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        self._capacity_bytes = capacity_bytes
        self._held_bytes = 0
        self._conversations: OrderedDict[tuple[str, int], Conversation | Unrelated] = OrderedDict()
        self._charged: dict[tuple[str, int], int] = {}
        self._last = 0

    def turn(self, rollout: str, generation: int, text: bytes) -> Turn | None:
        """The turn of an exchange that is about to be packed; None where it is to be stored whole: it is the rollout's
        first, or repeats none of those before, as calls do that have nothing to do with each other.

        Args:
            generation: as its row will say it.
            text: its request.
        """
        key = (rollout, generation)
        found = self._conversations.get(key)
        if found is None:
            self._conversations[key] = _NONE_YET
            self._charge(key, 0)
            return None
        self._conversations.move_to_end(key)
        if not isinstance(found, Conversation):
            source = next((each for each in reversed(found.requests) if each.repeated_in(text)), None)
            if found.requests and source is None and not any(each.seen_in(text) for each in found.glimpses):
                return None
            self._last += 1
            found = self._conversations[key] = Conversation(self._last, source)
        self._charge(key, found.held_bytes)
        return Turn(found)

    def sent_whole(self, rollout: str, generation: int, request: FirstRequest) -> None:
        """An exchange that has no turn is queued: messages that come again can be referred to in it."""
        key = (rollout, generation)
        earlier = self._conversations.get(key)
        small = len(request.text) <= self._capacity_bytes // _FIRST_REQUESTS
        if small and isinstance(earlier, Unrelated):
            kept = self._conversations[key] = earlier.with_request(request)
            self._charge(key, kept.held_bytes)

    def lacking(self, rollout: str, generation: int, conversation: Conversation) -> None:
        """The owner lacks messages of that history: what follows begins another."""
        key = (rollout, generation)
        if self._conversations.get(key) is conversation:
            self._conversations[key] = _NONE_YET
            self._charge(key, 0)

    @property
    def held_bytes(self) -> int:
        """About how much memory the conversations take."""
        return self._held_bytes

    def _charge(self, key: tuple[str, int], size: int) -> None:
        size += _CONVERSATION_BYTES
        self._held_bytes += size - self._charged.get(key, 0)
        self._charged[key] = size
        while self._held_bytes > self._capacity_bytes and len(self._conversations) > 1:
            oldest, _ = self._conversations.popitem(last=False)
            self._held_bytes -= self._charged.pop(oldest)
