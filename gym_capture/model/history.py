"""History once: a request as a skeleton that refers to messages which are stored once, and back to its exact bytes.

Pure. Which messages are stored already, and under which numbers, is the caller's to know (`client.history_book`); where
they lie, the reader's (`rollout_state.History`). `docs/decisions/0011-history-once.md` says why it is done so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from gym_capture.errors import DamagedLog
from gym_capture.model.codec import checksum
from gym_capture.model.json_elements import MIN_ELEMENT_BYTES, Known, Region, find_regions, last_list

DIGEST_BYTES = 16

MIN_TEXT_BYTES = 256
"""Shorter requests are stored whole."""

MAX_NEW_MESSAGES = 1 << 14
"""No request adds more; the rest of it stays text. What names messages must fit into the head of a batch."""

SKELETON_SLACK_BYTES = 64
"""A skeleton is at most so much longer than the text that it stands for."""

_STRETCH_BYTES = 400
_OPERATION_BYTES = 160
"""What they take in memory, about."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


MessageRun = Callable[[int, int], list[bytes]]
"""The messages from a number on, so many. Raises DamagedLog where one of them cannot be read."""


class Stretch(NamedTuple):
    """The elements that a list of an earlier request began with, so that a request that repeats them all is not cut
    there again.

    Fields: where they stood, their bytes and their number, a digest of the bytes, the skeleton's `operations` for
    them, and how many messages of the history these need.
    """

    at: int
    length: int
    listed: int
    digest: bytes
    operations: list[Any]
    needs: int

    @property
    def held_bytes(self) -> int:
        """About how much memory it takes."""
        return _STRETCH_BYTES + sum(
            _OPERATION_BYTES + (len(each) if type(each) is bytes else len(each[-1]) if len(each) > 2 else 0)
            for each in self.operations
        )


NO_STRETCHES: Mapping[str, Stretch] = MappingProxyType({})


class Woven(NamedTuple):
    """A request's text as a skeleton.

    Fields: the `skeleton`; the `messages` that are new, in the order of their numbers, with their `digests`; how
    many messages of the history it `needs`, counted from the first; and its lists, by key, for the next request.
    """

    skeleton: bytes
    messages: list[bytes]
    digests: list[bytes]
    needs: int
    stretches: dict[str, Stretch]


class Found(NamedTuple):
    """Messages that lie in a request which was stored whole: their digests, their places in it (offset, length), and
    its lists, by key.
    """

    digests: list[bytes]
    ranges: list[tuple[int, int]]
    stretches: dict[str, Stretch]


def digest_of(message: bytes) -> bytes:
    """What tells a message from all others."""
    return hashlib.sha256(message).digest()[:DIGEST_BYTES]


def find_messages(earlier: bytes, text: bytes, first: int) -> Found | None:
    """The messages of a request that was stored whole, as far as another one may refer to them.

    A list that the other repeats as it is becomes one message, whatever its length; of others, each element is one.

    Args:
        first: the number of the first message.

    Returns:
        None where there is none.
    """
    places: dict[bytes, tuple[int, int]] = {}
    stretches: dict[str, Stretch] = {}
    for region in find_regions(earlier):
        data = earlier[region.start : region.end] if region.key else b""
        if len(data) >= MIN_ELEMENT_BYTES and data in text:
            digest = hashlib.sha256(data).digest()
            places.setdefault(digest[:DIGEST_BYTES], (region.start, len(data)))
            number = first + list(places).index(digest[:DIGEST_BYTES])
            stretches[region.key] = Stretch(region.start, len(data), region.listed, digest, [[number, 1]], number + 1)
            continue
        for start, end, element in region.elements:
            if len(places) < MAX_NEW_MESSAGES:
                places.setdefault(digest_of(element), (start, end - start))
    return Found(list(places), list(places.values()), stretches) if places else None


def weave(
    text: bytes, known: Mapping[bytes, int], first: int | None, stretches: Mapping[str, Stretch] = NO_STRETCHES
) -> Woven | None:
    """Turn a request's text into a skeleton.

    Args:
        text: any bytes.
        known: the number of each stored message, by digest.
        first: the number that the first new message gets; None: new messages stay text.
        stretches: lists of an earlier request of the same history.

    Returns:
        None where nothing of the text can be referred to.
    """
    if len(text) < MIN_TEXT_BYTES:
        return None
    view = memoryview(text)
    numbers = _Numbers(known, first)
    operations: list[Any] = [checksum(text)]
    after: dict[str, Stretch] = {}
    needs = at = 0
    referred = False
    begun, digests = _repeated(text, view, stretches)
    for region in find_regions(text, begun):
        stretch = stretches[region.key] if region.known_bytes else None
        places, whole = numbers.places(region)
        if stretch is None and not places:
            continue
        referred = True
        if region.start > at:
            operations.append(text[at : region.start])
        cut = [] if stretch is None else list(stretch.operations)
        _extend(cut, text, region.start + region.known_bytes, places, region.end)
        operations += cut
        at = region.end
        below = max((number + 1 for _, _, number in places), default=0)
        if stretch is not None:
            below = max(below, stretch.needs)
        needs = max(needs, below)
        if region.key and whole and first is not None:
            digest = hashlib.sha256() if stretch is None else digests[region.key]
            digest.update(view[region.start + region.known_bytes : region.end])
            length = region.end - region.start
            after[region.key] = Stretch(region.start, length, region.listed, digest.digest(), cut, below)
    if not referred:
        return None
    if at < len(text):
        operations.append(text[at:])
    return Woven(_encode(operations), numbers.messages, list(numbers.fresh), needs, after)


def _repeated(
    text: bytes, view: memoryview, stretches: Mapping[str, Stretch]
) -> tuple[dict[str, Known], dict[str, Any]]:
    """Which lists of an earlier request the text has, where they stood or else under the last key that is theirs; and
    their digests.
    """
    known: dict[str, Known] = {}
    digests: dict[str, Any] = {}
    for key, stretch in stretches.items():
        at, length = stretch.at, stretch.length
        digest = hashlib.sha256(view[at : at + length])
        if digest.digest() != stretch.digest:
            at = last_list(text, key)
            if at in (-1, stretch.at):
                continue
            digest = hashlib.sha256(view[at : at + length])
            if digest.digest() != stretch.digest:
                continue
        known[key], digests[key] = Known(at, length, stretch.listed), digest
    return known, digests


class _Numbers:
    """The numbers of messages, those that are known and those that are given to new ones."""

    def __init__(self, known: Mapping[bytes, int], first: int | None) -> None:
        self._known = known
        self._first = first
        self.fresh: dict[bytes, int] = {}
        self.messages: list[bytes] = []

    def places(self, region: Region) -> tuple[list[tuple[int, int, int]], bool]:
        """Where messages lie in a region, with their numbers; and whether all its elements are among them."""
        known, fresh, first = self._known, self.fresh, self._first
        places: list[tuple[int, int, int]] = []
        for start, end, data in region.elements:
            digest = digest_of(data)
            number = known.get(digest)
            if number is None:
                number = fresh.get(digest)
            if number is None:
                if first is None or len(fresh) >= MAX_NEW_MESSAGES:
                    continue
                number = fresh[digest] = first + len(fresh)
                self.messages.append(data)
            places.append((start, end, number))
        return places, len(places) == len(region.elements)


def _extend(operations: list[Any], text: bytes, at: int, places: Iterable[tuple[int, int, int]], end: int) -> None:
    """Add what stands for the text from `at` to `end`, in which messages lie at the places; runs go on."""
    run: list[Any] = []
    after = -1
    if operations and type(operations[-1]) is list:
        # The operations before may be an earlier request's, so the run that goes on is another.
        run = operations[-1] = list(operations[-1])
        after = run[0] + run[1]
    for start, stop, number in places:
        between = text[at:start]
        if number == after and (run[1] == 1 or run[2] == between):
            if run[1] == 1:
                run.append(between)
            run[1] += 1
        else:
            if between:
                operations.append(between)
            run = [number, 1]
            operations.append(run)
        after = number + 1
        at = stop
    if at < end:
        operations.append(text[at:end])


def resolve(skeleton: bytes, length: int, needs: int, messages: MessageRun) -> bytes:
    """The text that a skeleton stands for.

    Args:
        length: bytes of the text, as its part says.
        needs: numbers of messages are below this.
        messages: gives the messages of a run of numbers.

    Raises:
        DamagedLog: the skeleton is none, or gives another text than it was made from. Also whatever `messages` raises.
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
            if count * MIN_ELEMENT_BYTES > left:
                raise _more_than_it_says()
            run = messages(number, count)
            left -= sum(map(len, run)) + (count - 1) * len(between)
            if between:
                # A long conversation is a run of hundreds: woven without a step of the interpreter for each.
                woven = [between] * (2 * count - 1)
                woven[::2] = run
                pieces += woven
            else:
                pieces += run
        if left < 0:
            raise _more_than_it_says()
    text = b"".join(pieces)
    if left or checksum(text) != crc:
        raise DamagedLog("a stored request's skeleton and messages do not give the text that was stored")
    return text


def run_of(found: Mapping[int, bytes]) -> MessageRun:
    """Runs of the messages that were found, by number."""

    def messages(first: int, count: int) -> list[bytes]:
        try:
            return [found[number] for number in range(first, first + count)]
        except KeyError as missing:
            raise DamagedLog(f"message {missing} of its history is damaged or missing") from None

    return messages


def references(skeleton: bytes, length: int, needs: int) -> set[int]:
    """The numbers of the messages that a skeleton refers to.

    Args:
        length, needs: see `resolve`.

    Raises:
        DamagedLog: it is none, or refers to more messages than the text has bytes.
    """
    found: set[int] = set()
    for operation in _parsed(skeleton)[1]:
        if not isinstance(operation, bytes):
            number, count, _ = _run(operation, needs)
            length -= count
            if length < 0:
                raise _more_than_it_says()
            found.update(range(number, number + count))
    return found


def _more_than_it_says() -> DamagedLog:
    return DamagedLog("a stored request's skeleton stands for more bytes than its part says")


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
