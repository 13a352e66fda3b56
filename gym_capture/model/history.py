"""History once: a request as a skeleton that refers to messages which are stored once, and back to its exact bytes.

Pure. Which messages are stored already, and under which numbers, is the caller's to know (`client.history_book`); where
they lie, the reader's (`rollout_state.History`). `docs/decisions/0011-history-once.md` says why it is done so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gym_capture.errors import DamagedLog
from gym_capture.model.codec import checksum
from gym_capture.model.json_elements import find_elements

DIGEST_BYTES = 16

MIN_TEXT_BYTES = 256
"""Shorter requests are stored whole."""

MAX_NEW_MESSAGES = 1 << 14
"""No request adds more; the rest of it stays text. What names messages must fit into the head of a batch."""

SKELETON_SLACK_BYTES = 64
"""A skeleton is at most so much longer than the text that it stands for."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


class Woven(NamedTuple):
    """A request's text as a skeleton.

    Fields: the `skeleton`; the `messages` that are new, in the order of their numbers, with their `digests`; and how
    many messages of the history it `needs`, counted from the first.
    """

    skeleton: bytes
    messages: list[bytes]
    digests: list[bytes]
    needs: int


def digest_of(message: bytes) -> bytes:
    """What tells a message from all others."""
    return hashlib.sha256(message).digest()[:DIGEST_BYTES]


def weave(text: bytes, known: Mapping[bytes, int], first: int | None) -> Woven | None:
    """Turn a request's text into a skeleton.

    Args:
        text: any bytes.
        known: the number of each stored message, by digest.
        first: the number that the first new message gets; None: new messages stay text.

    Returns:
        None where nothing of the text can be referred to.
    """
    if len(text) < MIN_TEXT_BYTES:
        return None
    fresh: dict[bytes, int] = {}
    messages: list[bytes] = []
    needs = 0
    places: list[tuple[int, int, int]] = []
    for start, end, data in find_elements(text):
        digest = digest_of(data)
        number = known.get(digest)
        if number is None:
            number = fresh.get(digest)
        if number is None:
            if first is None or len(fresh) >= MAX_NEW_MESSAGES:
                continue
            number = fresh[digest] = first + len(fresh)
            messages.append(data)
        places.append((start, end, number))
        needs = max(needs, number + 1)
    if not places:
        return None
    return Woven(_skeleton(text, places), messages, list(fresh), needs)


def _skeleton(text: bytes, places: Iterable[tuple[int, int, int]]) -> bytes:
    operations: list[Any] = [checksum(text)]
    run: list[Any] = []
    after = at = 0
    for start, end, number in places:
        between = text[at:start]
        if run and number == after and (run[1] == 1 or run[2] == between):
            if run[1] == 1:
                run.append(between)
            run[1] += 1
        else:
            if between:
                operations.append(between)
            run = [number, 1]
            operations.append(run)
        after = number + 1
        at = end
    if at < len(text):
        operations.append(text[at:])
    return _encode(operations)


def resolve(skeleton: bytes, length: int, needs: int, message: Callable[[int], bytes]) -> bytes:
    """The text that a skeleton stands for.

    Args:
        length: bytes of the text, as its part says.
        needs: numbers of messages are below this.
        message: the message of a number.

    Raises:
        DamagedLog: the skeleton is none, or gives another text than it was made from. Also whatever `message` raises.
    """
    crc, operations = _parsed(skeleton)
    pieces: list[bytes] = []
    left = length
    for operation in operations:
        if isinstance(operation, bytes):
            pieces.append(operation)
            left -= len(operation)
        else:
            number, count, between = _run(operation, needs)
            for index in range(number, number + count):
                if index > number:
                    pieces.append(between)
                    left -= len(between)
                piece = message(index)
                pieces.append(piece)
                left -= len(piece)
                if left < 0:
                    break
        if left < 0:
            raise DamagedLog("a stored request's skeleton stands for more bytes than its part says")
    text = b"".join(pieces)
    if left or checksum(text) != crc:
        raise DamagedLog("a stored request's skeleton and messages do not give the text that was stored")
    return text


def references(skeleton: bytes, needs: int) -> set[int]:
    """The numbers of the messages that a skeleton refers to.

    Raises:
        DamagedLog: it is none.
    """
    found: set[int] = set()
    for operation in _parsed(skeleton)[1]:
        if not isinstance(operation, bytes):
            number, count, _ = _run(operation, needs)
            found.update(range(number, number + count))
    return found


def _parsed(skeleton: bytes) -> tuple[int, Sequence[Any]]:
    try:
        crc, *operations = _decode(skeleton)
    except (ValueError, RecursionError) as error:  # msgspec's own are ValueErrors
        raise DamagedLog(f"a stored request's skeleton cannot be decoded ({error})") from error
    if type(crc) is not int:
        raise DamagedLog("a stored request's skeleton has no checksum")
    return crc, operations


def _run(operation: Any, needs: int) -> tuple[int, int, bytes]:
    if type(operation) is list and 2 <= len(operation) <= 3:
        number, count = operation[:2]
        between = operation[2] if len(operation) == 3 else b""
        sane = type(number) is int and type(count) is int and type(between) is bytes
        if sane and 0 <= number < number + count <= needs:
            return number, count, between
    raise DamagedLog("a stored request's skeleton refers to messages that its history does not have")
