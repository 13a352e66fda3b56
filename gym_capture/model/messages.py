"""What clients and the owner say to each other, and how a message is framed on a connection.

A message is a fixed prefix (two little-endian u32: bytes of the head, bytes of the body), a msgpack head (one of the
structs below, an array that begins with its tag) and a body (payload bytes of a batch's commits, or of a read).
`docs/format.md` describes the conversation.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from gym_capture.errors import ProtocolError
from gym_capture.model.rows import ClientRow, Part, Result

PROTOCOL_VERSION = 2

_PREFIX = struct.Struct("<II")
PREFIX_BYTES = _PREFIX.size

MAX_HEAD_BYTES = 1 << 26
MAX_BODY_BYTES = 1 << 30
MAX_HELLO_BYTES = 1 << 23
"""What a connection may send before it has shown the token."""


# -- client to owner ------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, array_like=True, tag=1):
    """The first message of a connection.

    Args:
        protocol, version: PROTOCOL_VERSION and the package's version.
        token: proves that the client may read the directory (or was told by the actor).
        run: the run's uuid (hex) that the client means, or empty.
        client: the client process's 16-byte id.
        open_claims: every claim number that it has sent and not seen closed.
        place: host and process, for people.
    """

    protocol: int
    version: str
    token: str
    run: str
    client: bytes
    open_claims: list[int]
    place: str


class Batch(msgspec.Struct, array_like=True, tag=2):
    """Numbered rows to apply once; the body holds the commits' parts. `confirmed`: answers received up to here."""

    batch: int
    confirmed: int
    rows: list[ClientRow]


class Quiesce(msgspec.Struct, array_like=True, tag=1):
    """Wait until the rollout (None: all that this owner has) has nothing outstanding. Answered by a bool.

    `standing`: answered by a `run_quiescence.Standing` in place of True.
    """

    rollout: str | None
    timeout_s: float
    standing: bool = False


class Merge(msgspec.Struct, array_like=True, tag=2):
    """The derived rows of a rollout, journaled as merged. Answered by a `MergeReply`."""

    rollout: str
    generation: int
    issued: int


class Stats(msgspec.Struct, array_like=True, tag=3):
    """Counters of the run and, with a rollout, of it. Answered by a mapping."""

    rollout: str | None


class Stop(msgspec.Struct, array_like=True, tag=4):
    """End the owner cleanly. Answered by True, then the owner leaves."""


class ReadParts(msgspec.Struct, array_like=True, tag=5):
    """All stored parts of a rollout's entries. Answered by a `PartsReply`, the stored bytes in the body.

    `have`: messages that the caller has from replies before: of each history, those below this number.
    """

    rollout: str
    generation: int
    call_indexes: list[int]
    have: dict[str, int] = {}


Request = Quiesce | Merge | Stats | Stop | ReadParts


class Call(msgspec.Struct, array_like=True, tag=3):
    """A request to be answered under `number`, in any order."""

    number: int
    request: Request


class Cancel(msgspec.Struct, array_like=True, tag=4):
    """Nobody waits for the answer to that call any more."""

    number: int


class Beat(msgspec.Struct, array_like=True, tag=5):
    """The client is alive. Answered by a `BeatReply`."""


class Goodbye(msgspec.Struct, array_like=True, tag=6):
    """The client ends; claims that it still holds are lost."""


FromClient = Hello | Batch | Call | Cancel | Beat | Goodbye


# -- owner to client ------------------------------------------------------------------------------------------------


class Welcome(msgspec.Struct, array_like=True, tag=1):
    """The connection is accepted.

    Args:
        run, epoch: whose answers these are; a client ignores answers of an epoch lower than it has seen.
        lease_s: say something at least every third of this many seconds.
        window_bytes: unanswered batch bytes (heads and bodies) that the client may have under way.
        max_exchange_bytes, max_batch_bytes: larger ones are refused.
    """

    protocol: int
    version: str
    run: str
    epoch: int
    lease_s: float
    window_bytes: int
    max_exchange_bytes: int
    max_batch_bytes: int


class Refused(msgspec.Struct, array_like=True, tag=2):
    """The connection is refused and will be closed; an error's class name and message."""

    code: str
    message: str


class Answers(msgspec.Struct, array_like=True, tag=3):
    """The batch is on disk; a result per row. None: it was confirmed before, and its answers are gone."""

    batch: int
    results: list[Result] | None


class Reply(msgspec.Struct, array_like=True, tag=4):
    """The answer to a call: a bool, a mapping, or a reply struct as a mapping of its fields."""

    number: int
    value: Any


class Failure(msgspec.Struct, array_like=True, tag=5):
    """The call failed; an error's class name and message."""

    number: int
    code: str
    message: str


class BeatReply(msgspec.Struct, array_like=True, tag=6):
    """The owner is alive and still the owner."""

    epoch: int


FromOwner = Welcome | Refused | Answers | Reply | Failure | BeatReply


class MergeReply(msgspec.Struct):
    """What a merge of one rollout found.

    Args:
        records: (call index, stored RECORD part as raw bytes: `exchange.decode_fields`) in call order.
        damaged: entries whose record cannot be read, holes included.
        reasons: incompleteness reasons with counts; None: complete.
        outstanding: claims that are still open.
    """

    rollout: str
    generation: int
    records: list[tuple[int, bytes]]
    damaged: int
    reasons: dict[str, int] | None
    outstanding: int


class StoredEntry(msgspec.Struct):
    """Parts of one entry, and which history its skeleton refers to ("": none), with the messages that it needs.

    Not `intact`: parts of it are damaged, and missing here.
    """

    call_index: int
    parts: list[Part]
    intact: bool = True
    history: str = ""
    messages: int = 0


class StoredMessages(msgspec.Struct):
    """Messages of a history, as one row brought them (`rollout_state.HistoryPiece`): numbers and parts.

    With `ranges`, they lie in the text of the one part, whose number is that of the first.
    """

    history: str
    messages: list[tuple[int, Part]]
    ranges: list[tuple[int, int]] = []


class PartsReply(msgspec.Struct):
    """The entries asked for, and the messages that they need, except those that the caller said it has.

    Parts have offsets into the body; damaged ones are left out.
    """

    entries: list[StoredEntry]
    histories: list[StoredMessages] = []


_encoder = msgspec.msgpack.Encoder()
_from_client = msgspec.msgpack.Decoder(FromClient)
_from_owner = msgspec.msgpack.Decoder(FromOwner)


def encode_message(
    message: FromClient | FromOwner, body: Sequence[bytes | memoryview] = ()
) -> list[bytes | memoryview]:
    """A message as buffers to send one after the other."""
    head = _encoder.encode(message)
    size = sum(map(len, body)) if body else 0
    return [_PREFIX.pack(len(head), size) + head, *body]


def decode_from_client(head: bytes | memoryview) -> FromClient:
    """A client's message head. Raises ProtocolError."""
    try:
        return _from_client.decode(head)
    except (ValueError, OverflowError, RecursionError) as error:  # msgspec's own are ValueErrors
        raise ProtocolError(f"the client sent something that is no message ({error})") from error


def decode_from_owner(head: bytes | memoryview) -> FromOwner:
    """An owner's message head. Raises ProtocolError."""
    try:
        return _from_owner.decode(head)
    except (ValueError, OverflowError, RecursionError) as error:  # msgspec's own are ValueErrors
        raise ProtocolError(f"the owner sent something that is no message ({error})") from error


def message_bytes(prefix: bytes | bytearray) -> int:
    """Bytes of the whole message that begins with `prefix` (`PREFIX_BYTES` of it are needed)."""
    head_bytes, body_bytes = _PREFIX.unpack_from(prefix)
    return int(PREFIX_BYTES + head_bytes + body_bytes)


class MessageSplitter:
    """Cuts a byte stream into messages, whatever the pieces it comes in.

    Args:
        max_bytes: the largest message that is accepted; may be raised once the sender is known.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Add bytes; returns the (head, body) of every message that is now complete.

        Raises:
            ProtocolError: a prefix announces more than `max_bytes`; nothing of the stream can be trusted after it.
        """
        buffer = self._buffer
        buffer += data
        messages: list[tuple[bytes, bytes]] = []
        start = 0
        available = len(buffer)
        while available - start >= PREFIX_BYTES:
            head_bytes, body_bytes = _PREFIX.unpack_from(buffer, start)
            if head_bytes > MAX_HEAD_BYTES or body_bytes > MAX_BODY_BYTES or head_bytes + body_bytes > self.max_bytes:
                raise ProtocolError(
                    f"a message of {head_bytes} + {body_bytes} bytes was announced; at most {self.max_bytes} are taken"
                )
            body_start = start + PREFIX_BYTES + head_bytes
            end = body_start + body_bytes
            if end > available:
                break
            with memoryview(buffer) as view:
                messages.append((bytes(view[start + PREFIX_BYTES : body_start]), bytes(view[body_start:end])))
            start = end
        if start:
            del buffer[:start]
        return messages

    @property
    def pending_bytes(self) -> int:
        """Bytes of a message that has not fully arrived."""
        return len(self._buffer)
