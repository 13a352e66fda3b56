"""Messages and references as a client may send them that follows no rules: it costs that client's exchange only."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gym_capture.client.payload_reader import KnownMessages, open_entries
from gym_capture.model.codec import checksum
from gym_capture.model.exchange import pack, snapshot
from gym_capture.model.history import digest_of
from gym_capture.model.rows import CommitRow, HistoryRow, Outcome, Part, PartFlag, PartKind
from gym_capture.service.settings import OwnerSettings
from gym_capture.testing.faulty_files import FaultyDisk
from tests.service.harness import Bench, serving
from tests.service.raw_client import RawClient, commit_row

MESSAGES = [json.dumps({"role": "user", "content": f"{number} " + "m" * 300}).encode() for number in range(3)]
TEXT = b'{"messages":[' + b",".join(MESSAGES) + b"]}"
FIRST = {"dialect": "chat", "model_call_id": "first", "request": TEXT}
REFERRED = (int(Outcome.APPLIED), int(Outcome.APPLIED))
LACKING = (int(Outcome.LACKING), int(Outcome.LACKING))


def messages_row(history: int = 1, first: int = 0, messages: list[bytes] = MESSAGES) -> tuple[HistoryRow, bytes]:
    """A row that brings messages, which lie at the beginning of the body."""
    parts, at = [], 0
    for data in messages:
        parts.append(Part(PartKind.MESSAGE, 0, at, len(data), len(data), checksum(data)))
        at += len(data)
    return HistoryRow("r", history, first, b"".join(map(digest_of, messages)), parts), b"".join(messages)


def referring(
    call: str, at: int, operations: list[Any], needs: int, history: int = 1, length: int = len(TEXT), text: bytes = TEXT
) -> tuple[CommitRow, bytes]:
    """A commit whose request is a skeleton; its parts lie at `at` of the body."""
    sealed = pack(snapshot({"dialect": "chat", "model_call_id": call, "request": b"{}"}))
    skeleton = msgspec.msgpack.encode([checksum(text), *operations])
    row = commit_row("r", sealed, at=at)
    end = sum(part.length for part in row.parts)
    row.parts = [part for part in row.parts if part.kind != PartKind.REQUEST]
    row.parts.append(
        Part(PartKind.REQUEST, PartFlag.HISTORY, at + end, len(skeleton), length, checksum(skeleton)),
    )
    row.history, row.messages = history, needs
    return row, b"".join(sealed.body) + skeleton


WHOLE: list[Any] = [b'{"messages":[', [0, 3, b","], b"]}"]


async def say(client: RawClient, messages: HistoryRow | None, body: bytes, call: str, **commit: Any) -> tuple[int, ...]:
    """Send messages and what refers to them in one batch; returns the outcomes."""
    row, more = referring(call, len(body), **{"operations": WHOLE, "needs": 3, **commit})
    results = await client.batch([row] if messages is None else [messages, row], body + more)
    assert results is not None
    return tuple(result.outcome for result in results)


async def read(bench: Bench, *indexes: int) -> dict[int, Any]:
    listed, body = await bench.service.read_parts("r", 0, list(indexes))
    found = open_entries(listed, b"".join(body), KnownMessages())
    return {index: each["request"] for index, each in found.items()}


async def test_what_is_sent_by_the_rules_comes_back() -> None:
    async with serving(FaultyDisk()) as bench:
        client = await bench.client()
        assert await say(client, *messages_row(), "c0") == REFERRED
        assert await say(client, None, b"", "c1") == REFERRED[:1]
        assert await read(bench, 0, 1) == dict.fromkeys((0, 1), json.loads(TEXT))


async def test_messages_are_only_those_of_the_client_that_sent_them() -> None:
    async with serving(FaultyDisk()) as bench:
        one, other = await bench.client("one"), await bench.client("other")
        assert await say(one, *messages_row(), "c0") == REFERRED
        assert await say(other, None, b"", "c1") == LACKING[:1]
        foreign, body = messages_row(messages=[data.replace(b"m", b"x") for data in MESSAGES])
        assert await say(other, foreign, body, "c2", text=TEXT.replace(b"m" * 300, b"x" * 300)) == REFERRED
        assert await read(bench, 0) == {0: json.loads(TEXT)}


async def test_a_digest_that_was_never_sent_is_worth_nothing() -> None:
    """References are by number, in what arrived; a digest is only noted."""
    async with serving(FaultyDisk()) as bench:
        client = await bench.client()
        row, body = messages_row()
        row.digests = digest_of(b"a secret") * 3
        assert await say(client, row, body, "c0") == REFERRED
        assert await read(bench, 0) == {0: json.loads(TEXT)}
        row, _ = messages_row(2)
        row.parts = []
        assert await say(client, row, b"", "c1", history=2) == (Outcome.INVALID, Outcome.LACKING)


def claims_more(row: HistoryRow) -> None:
    row.digests += digest_of(b"never sent")


def claims_a_later_number(row: HistoryRow) -> None:
    row.first = 4


def names_no_part(row: HistoryRow) -> None:
    row.parts = row.parts[:-1]


def names_a_part_outside(row: HistoryRow) -> None:
    row.parts[2] = msgspec.structs.replace(row.parts[2], offset=1 << 40)


def names_another_kind(row: HistoryRow) -> None:
    row.parts[0] = msgspec.structs.replace(row.parts[0], kind=PartKind.REQUEST)


def mixes_both_ways(row: HistoryRow) -> None:
    row.ranges = [(0, 1)]


def has_no_history(row: HistoryRow) -> None:
    row.history = 0


@pytest.mark.parametrize(
    ("spoil", "outcome"),
    [
        (claims_more, Outcome.INVALID),
        (claims_a_later_number, Outcome.LACKING),
        (names_no_part, Outcome.INVALID),
        (names_a_part_outside, Outcome.INVALID),
        (names_another_kind, Outcome.INVALID),
        (mixes_both_ways, Outcome.INVALID),
        (has_no_history, Outcome.INVALID),
    ],
)
async def test_messages_that_are_not_as_they_must_be_are_not_kept(
    spoil: Callable[[HistoryRow], None], outcome: Outcome
) -> None:
    async with serving(FaultyDisk()) as bench:
        client = await bench.client()
        row, body = messages_row()
        spoil(row)
        assert await say(client, row, body, "c0") == (outcome, Outcome.LACKING)
        assert bench.service.ledger.counts["messages"] == 0
        assert await say(client, *messages_row(), "c0") == REFERRED
        assert await read(bench, 0) == {0: json.loads(TEXT)}


async def test_a_number_that_is_taken_keeps_its_message() -> None:
    async with serving(FaultyDisk()) as bench:
        client = await bench.client()
        assert await say(client, *messages_row(), "c0") == REFERRED
        for first, count in ((1, 2), (0, 2), (2, 1)):
            row, body = messages_row(1, first, [b"x" * 40] * count)
            assert (await client.batch([row], body))[0].outcome == Outcome.LACKING  # type: ignore[index]
        row, body = messages_row(1, 0, [b"x" * 40] * 3)
        assert (await client.batch([row], body))[0].outcome == Outcome.DUPLICATE  # type: ignore[index]
        assert await read(bench, 0) == {0: json.loads(TEXT)}


def source_row(**fields: Any) -> HistoryRow:
    places = [(TEXT.index(data), len(data)) for data in MESSAGES]
    row = HistoryRow("r", 1, 0, b"".join(map(digest_of, MESSAGES)), [])
    row.source, row.source_digest, row.ranges = "first", pack(snapshot(FIRST)).digest, places
    return msgspec.structs.replace(row, **fields)


async def begun(bench: Bench) -> RawClient:
    """A client whose first request is stored whole."""
    client = await bench.client()
    sealed = pack(snapshot(FIRST))
    await client.batch([commit_row("r", sealed)], b"".join(sealed.body))
    return client


async def test_messages_in_an_earlier_request_are_read_from_there() -> None:
    async with serving(FaultyDisk()) as bench:
        client = await begun(bench)
        assert await say(client, source_row(), b"", "c1") == REFERRED
        assert await read(bench, 1) == {1: json.loads(TEXT)}


@pytest.mark.parametrize(
    "fields",
    [
        {"source": "another"},
        {"source_digest": b"d" * 16},
        {"ranges": [(0, 5), (5, 5), (0, len(TEXT) + 1)]},
        {"ranges": [(0, 5), (5, 5), (2**62, 2**62)]},
        {"rollout": "s"},
    ],
    ids=["another exchange", "another text", "behind its end", "far behind its end", "another rollout"],
)
async def test_what_does_not_lie_in_the_request_that_is_named_is_not_there(fields: dict[str, Any]) -> None:
    async with serving(FaultyDisk()) as bench:
        client = await begun(bench)
        assert await say(client, source_row(**fields), b"", "c1") == LACKING
        assert await say(client, source_row(), b"", "c1") == REFERRED


async def test_a_request_that_refers_to_messages_is_no_source_of_messages() -> None:
    """So nothing can refer to itself, and no text is longer than its own skeleton says."""
    async with serving(FaultyDisk()) as bench:
        client = await bench.client()
        assert await say(client, *messages_row(), "c0") == REFERRED
        entry = bench.service.ledger.view("r").entries[0]
        itself = source_row(history=2, source="c0", source_digest=entry.digest)
        assert await say(client, itself, b"", "c1", history=2) == LACKING
        both = source_row(history=3, source="c2", source_digest=entry.digest)
        assert await say(client, both, b"", "c2", history=3) == LACKING


async def test_a_text_that_would_be_longer_than_an_exchange_may_be_is_refused_and_marks_its_rollout() -> None:
    async with serving(FaultyDisk(), settings=OwnerSettings(max_exchange_bytes=4000)) as bench:
        client = await bench.client()
        repeated = [[0, 3, b","]] * 1000
        outcomes = await say(client, *messages_row(), "c0", operations=repeated, length=1000 * len(TEXT))
        assert outcomes == (Outcome.APPLIED, Outcome.TOO_LARGE)
        assert bench.service.ledger.view("r").reasons == {"refused": 1}


@pytest.mark.parametrize(
    "operations",
    [
        [[0, 3, b","]] * 1000,
        [[0, 4, b","]],
        [[3, 1]],
        [[-1, 2]],
        [b"another text"],
        [[0, 1, b"", 5]],
        ["x"],
        [[[0, 1]]],
    ],
    ids=str,
)
async def test_a_skeleton_that_says_something_else_costs_its_exchange_and_no_other(operations: list[Any]) -> None:
    disk = FaultyDisk()
    async with serving(disk) as bench:
        client = await bench.client()
        assert await say(client, *messages_row(), "c0") == REFERRED
        assert await say(client, None, b"", "bad", operations=operations) == REFERRED[:1]
        assert await say(client, None, b"", "c2") == REFERRED[:1]
        assert await read(bench, 0, 1, 2) == dict.fromkeys((0, 2), json.loads(TEXT))
        await bench.service.stop()
    async with serving(disk) as second:
        assert await read(second, 0, 1, 2) == dict.fromkeys((0, 2), json.loads(TEXT))
