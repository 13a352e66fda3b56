"""A scripted owner in memory: a real ledger, and answers that can be held back, lost, late or wrong."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from gym_capture.client.transport import Message
from gym_capture.errors import GymCaptureError, OwnerUnavailable
from gym_capture.model.codec import FrameRef
from gym_capture.model.exchange import open_exchange, open_part, open_text
from gym_capture.model.history import MessageRun, run_of
from gym_capture.model.ledger import Ledger, Repeated
from gym_capture.model.messages import (
    PREFIX_BYTES,
    PROTOCOL_VERSION,
    Answers,
    Batch,
    Beat,
    BeatReply,
    Call,
    Cancel,
    Failure,
    FromOwner,
    Goodbye,
    Hello,
    Merge,
    PartsReply,
    Quiesce,
    ReadParts,
    Refused,
    Reply,
    Stats,
    Stop,
    StoredEntry,
    StoredMessages,
    Welcome,
    decode_from_client,
    encode_message,
)
from gym_capture.model.rollout_state import Entry
from gym_capture.model.rows import ClientRow, CommitRow, Part, PartKind, Row

RUN = "0" * 31 + "1"


class FakeLink:
    """One link to the fake owner."""

    def __init__(self, owner: FakeOwner) -> None:
        self.token = "token"
        self.run = ""
        self.owner = owner
        self.broken = False
        self._inbox: deque[Message] = deque()
        self._news = asyncio.Event()

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """The client says something."""
        if self.broken:
            return
        data = b"".join(buffers)
        head_bytes = int.from_bytes(data[:4], "little")
        self.owner.hear(self, data, data[PREFIX_BYTES : PREFIX_BYTES + head_bytes], data[PREFIX_BYTES + head_bytes :])

    async def receive(self) -> list[Message]:
        """What the owner said."""
        while not self._inbox:
            if self.broken:
                raise OwnerUnavailable("the fake link is broken")
            self._news.clear()
            await self._news.wait()
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    def close(self) -> None:
        """The client lets go."""
        self.broken = True
        self._news.set()

    def say(self, message: FromOwner, body: Sequence[bytes] = ()) -> None:
        """The owner says something."""
        if not self.broken:
            buffers = encode_message(message, body)
            self._inbox.append((bytes(buffers[0])[PREFIX_BYTES:], b"".join(buffers[1:])))
            self._news.set()


class FakeOwner:
    """A `Transport` and the owner at its end.

    Attributes:
        away: connecting fails with this error.
        refusal: a hello is answered by this error.
        mute: nothing is answered or applied.
        deaf_to_batches: batches are applied and not answered, until `answer_held`.
        batches: the bytes of every batch that came, with repetitions.
        on_batch: called in the client's loop once a batch was taken.
    """

    name = "fake"

    def __init__(self, **welcome: Any) -> None:
        self.ledger = Ledger()
        self.epoch = 1
        self.run = RUN
        self.away: GymCaptureError | None = None
        self.refusal: GymCaptureError | None = None
        self.mute = False
        self.deaf_to_batches = False
        self.links: list[FakeLink] = []
        self.hellos: list[Hello] = []
        self.batches: list[bytes] = []
        self.rows: list[list[ClientRow]] = []
        self.beats: list[float] = []
        self.cancelled: list[int] = []
        self.calls: list[Call] = []
        self.goodbyes = 0
        self.attempts = 0
        self.bodies: dict[int, bytes] = {}
        self.on_batch: Callable[[], object] = lambda: None
        self._welcome = {"lease_s": 6.0, "window": 1 << 23, "max_exchange": 1 << 26, "max_batch": 1 << 22, **welcome}
        self._held: list[Callable[[], None]] = []
        self._sequence = 0
        self._quiesces: dict[tuple[FakeLink, int], Quiesce] = {}

    # -- Transport ----------------------------------------------------------------------------------------------

    async def connect(self) -> FakeLink:
        """Open a link."""
        self.attempts += 1
        if self.away is not None:
            raise self.away
        link = FakeLink(self)
        self.links.append(link)
        return link

    # -- what a test does ---------------------------------------------------------------------------------------

    @property
    def link(self) -> FakeLink:
        """The newest link."""
        return self.links[-1]

    def go_away(self) -> None:
        """Break the links and take no new ones."""
        self.away = OwnerUnavailable("the fake owner is away")
        self.cut()

    def come_back(self) -> None:
        """Take links again."""
        self.away = None

    def cut(self) -> None:
        """Break every link."""
        for link in self.links:
            link.close()

    def answer_held(self) -> None:
        """Send the answers that were held back, on the links that their batches came by."""
        held, self._held = self._held, []
        for answer in held:
            answer()

    def forget_held(self) -> None:
        """The answers are lost."""
        self._held.clear()

    def expire(self) -> None:
        """Take the claims of clients that it did not hear for a lease for lost."""
        self.apply(self.ledger.expire(asyncio.get_running_loop().time()))

    def sent_rows(self) -> list[ClientRow]:
        """Every row of every batch that came."""
        return [row for rows in self.rows for row in rows]

    def exchanges(self, rollout: str) -> list[dict[str, Any]]:
        """What was committed, read back."""
        return [
            open_exchange(
                [
                    (part, open_text(part, self._stored(entry.ref, part), entry.messages, self._messages(entry)))
                    for part in entry.parts
                ]
            )
            for entry in self.ledger.view(rollout).entries
        ]

    def payload(self, entry: Entry, kind: PartKind) -> bytes:
        """One payload of an exchange, byte for byte."""
        [part] = [part for part in entry.parts if part.kind == kind]
        return open_text(part, self._stored(entry.ref, part), entry.messages, self._messages(entry))

    def _messages(self, entry: Entry) -> MessageRun:
        found: dict[int, bytes] = {}
        for piece in entry.history.pieces(entry.messages) if entry.history is not None else ():
            for number, part in enumerate(piece.parts, piece.first):
                data = open_part(part, self._stored(piece.ref, part))
                found.update(piece.within(data) if piece.ranges else [(number, data)])
        return run_of(found)

    # -- what it hears ------------------------------------------------------------------------------------------

    def hear(self, link: FakeLink, data: bytes, head: bytes, body: bytes) -> None:
        """One message of a client."""
        message = decode_from_client(head)
        now = asyncio.get_running_loop().time()
        if isinstance(message, Hello):
            self.hellos.append(message)
        if self.mute:
            return
        if isinstance(message, Hello):
            self._hello(link, message, now)
        elif isinstance(message, Batch):
            self.batches.append(data)
            self._batch(link, message, body, now)
        elif isinstance(message, Call):
            self.calls.append(message)
            self._call(link, message)
        elif isinstance(message, Cancel):
            self.cancelled.append(message.number)
            self._quiesces.pop((link, message.number), None)
        elif isinstance(message, Beat):
            self.beats.append(now)
            link.say(BeatReply(self.epoch))
        elif isinstance(message, Goodbye):
            self.goodbyes += 1

    def _hello(self, link: FakeLink, hello: Hello, now: float) -> None:
        if self.refusal is not None:
            link.say(Refused(type(self.refusal).__name__, str(self.refusal)))
            return
        self.apply(self.ledger.hello(hello.client, hello.open_claims, now))
        sizes = self._welcome
        link.say(
            Welcome(
                PROTOCOL_VERSION,
                "test",
                self.run,
                self.epoch,
                sizes["lease_s"],
                sizes["window"],
                sizes["max_exchange"],
                sizes["max_batch"],
            )
        )

    def apply(self, rows: Sequence[Row]) -> None:
        """Rows of the owner's own."""
        if rows:
            self._sequence += 1
            self.ledger.apply_owner_rows(rows, FrameRef(self._sequence, self.epoch))
            self.ledger.durable(self._sequence)

    def _batch(self, link: FakeLink, batch: Batch, body: bytes, now: float) -> None:
        self.rows.append(list(batch.rows))
        client = self.hellos[-1].client
        ref = FrameRef(self._sequence + 1, self.epoch)
        applied = self.ledger.apply_batch(client, batch.batch, batch.confirmed, batch.rows, ref, now, now)
        if not isinstance(applied, Repeated):
            self._sequence += 1
            self.bodies[self._sequence] = body
            self.ledger.durable(self._sequence)
        answers = Answers(batch.batch, applied.results)
        if self.deaf_to_batches:
            self._held.append(lambda: link.say(answers))
        else:
            link.say(answers)
        self.on_batch()
        self._look_at_quiesces()

    def _look_at_quiesces(self) -> None:
        for (link, number), quiesce in list(self._quiesces.items()):
            if not self._outstanding(quiesce):
                del self._quiesces[link, number]
                link.say(Reply(number, True))

    def _outstanding(self, quiesce: Quiesce) -> int:
        if quiesce.rollout is None:
            return self.ledger.outstanding
        return self.ledger.outstanding_of(quiesce.rollout)

    def _call(self, link: FakeLink, call: Call) -> None:
        request = call.request
        if isinstance(request, Quiesce):
            self._quiesces[link, call.number] = request
            self._look_at_quiesces()
            if (link, call.number) in self._quiesces:
                loop = asyncio.get_running_loop()
                loop.call_later(request.timeout_s, self._quiesce_over, link, call.number)
        elif isinstance(request, Merge):
            self._merge(link, call.number, request)
        elif isinstance(request, Stats):
            link.say(Reply(call.number, {"claims": self.ledger.counts["claims"]}))
        elif isinstance(request, ReadParts):
            self._read(link, call.number, request)
        elif isinstance(request, Stop):
            link.say(Reply(call.number, True))

    def _quiesce_over(self, link: FakeLink, number: int) -> None:
        if self._quiesces.pop((link, number), None) is not None:
            link.say(Reply(number, False))

    def _merge(self, link: FakeLink, number: int, merge: Merge) -> None:
        view = self.ledger.view(merge.rollout)
        if merge.generation not in (-1, view.generation):
            link.say(Failure(number, "Fenced", "that generation was cleared"))
            return
        self.apply([self.ledger.merge_row(merge.rollout, merge.issued)])
        view = self.ledger.view(merge.rollout)
        records = []
        for entry in view.entries:
            (record,) = [part for part in entry.parts if part.kind == PartKind.RECORD]
            records.append((entry.call_index, open_part(record, self._stored(entry.ref, record))))
        link.say(
            Reply(
                number,
                {
                    "rollout": merge.rollout,
                    "generation": view.generation,
                    "records": records,
                    "damaged": view.holes,
                    "reasons": view.reasons,
                    "outstanding": view.outstanding,
                },
            )
        )

    def _stored(self, ref: FrameRef, part: Part) -> bytes:
        return self.bodies[ref.sequence][part.offset : part.offset + part.length]

    def _read(self, link: FakeLink, number: int, request: ReadParts) -> None:
        body: list[bytes] = []
        offset = 0

        def moved(ref: FrameRef, part: Part) -> Part:
            nonlocal offset
            body.append(self._stored(ref, part))
            offset += part.length
            return Part(part.kind, part.flags, offset - part.length, part.length, part.raw, part.crc)

        reply = PartsReply([])
        for entry in self.ledger.view(request.rollout).entries:
            if entry.call_index not in request.call_indexes:
                continue
            parts = [moved(entry.ref, part) for part in entry.parts]
            name = entry.history.name if entry.history is not None else ""
            reply.entries.append(StoredEntry(entry.call_index, parts, True, name, entry.messages))
            for piece in entry.history.pieces(entry.messages) if entry.history is not None else ():
                messages = [(at, moved(piece.ref, part)) for at, part in enumerate(piece.parts, piece.first)]
                reply.histories.append(StoredMessages(name, messages, piece.ranges))
        link.say(Reply(number, reply), body)


def commits(rows: Sequence[ClientRow]) -> list[CommitRow]:
    """The commits among rows."""
    return [row for row in rows if isinstance(row, CommitRow)]
