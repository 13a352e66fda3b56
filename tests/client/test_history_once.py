"""A client sends each message of a conversation once, and everything again when the owner lacks some."""

from __future__ import annotations

import asyncio
import copy
import random
from typing import Any

import msgspec
import pytest

from gym_capture.client import history_book
from gym_capture.client.history_book import FirstRequest, HistoryBook
from gym_capture.model.exchange import pack, snapshot
from gym_capture.model.rows import ClearRow, HistoryRow, PartKind
from tests.client.fake_owner import FakeOwner, commits
from tests.client.harness import Harness, harness
from tests.client.virtual_time import settle


def text(seed: object, size: int = 2000) -> str:
    return random.Random(str(seed)).randbytes(size // 2).hex()


def growing(turns: int, size: int = 2000) -> list[dict[str, Any]]:
    """The requests of a conversation."""
    messages = [{"role": "user", "content": text(turn, size)} for turn in range(turns)]
    return [{"model": "m", "messages": messages[: turn + 1], "temperature": 1.0} for turn in range(turns)]


async def call(bench: Harness, request: Any, call_id: str, **claim: Any) -> str | None:
    async with bench.client.rollout("r").claim(dialect="chat", model_call_id=call_id, **claim) as made:
        made.complete(request=request, response={"id": call_id})
    return made.outcome


async def talk(bench: Harness, requests: list[Any], first: int = 0) -> None:
    for turn, request in enumerate(requests, first):
        assert await call(bench, request, f"c{turn}") == "durable"


def skeletons(owner: FakeOwner) -> list[bool]:
    """Of every commit that was sent, whether its request referred to messages."""
    return [row.messages > 0 for row in commits(owner.sent_rows())]


async def test_a_turn_sends_what_it_adds() -> None:
    async with harness() as bench:
        requests = growing(20)
        await talk(bench, requests)
        owner = bench.owner
        sizes = [len(batch) for batch, rows in zip(owner.batches, owner.rows, strict=True) if commits(rows)]
        assert max(sizes) < 2000 + 1300
        assert [exchange["request"] for exchange in owner.exchanges("r")] == requests
        assert skeletons(owner) == [False, *([True] * 19)]
        merged = await bench.client.merge({"_ng_rollout_id": "r"}, include_payloads=True)
        assert [each["request"] for each in merged["ng_model_call_capture"]["calls"]] == requests


async def test_requests_given_as_bytes_are_kept_byte_for_byte() -> None:
    bodies = [
        (
            b'{ "messages" : [ '
            + b" ,\n ".join(b'{"role":"user","content":"%b"}' % (b"%d" % n * 99) for n in range(turn))
        )
        + b' ] , "x" : NaN }'
        for turn in range(1, 6)
    ]
    async with harness() as bench:
        await talk(bench, bodies)
        owner = bench.owner
        for entry, body in zip(owner.ledger.view("r").entries, bodies, strict=True):
            assert owner.payload(entry, PartKind.REQUEST) == body


TURNS = ["first", "second", "third"]


@pytest.mark.parametrize(
    ("dialect", "keys", "blocks"),
    [("chat", "messages", False), ("responses", "input", False), ("messages", "messages", True)],
    ids=["chat", "responses", "messages"],
)
async def test_each_dialects_conversation_is_sent_once(dialect: str, keys: str, blocks: bool) -> None:
    def said(number: int) -> Any:
        content = text((dialect, number), 900)
        return {"role": "user", "content": [{"type": "text", "text": content}] if blocks else content}

    constant: dict[str, Any] = {"tools": [{"name": name, "description": text(name, 600)} for name in TURNS]}
    if dialect == "messages":
        constant["system"] = [{"type": "text", "text": text("system", 3000)}]
    if dialect == "responses":
        constant["instructions"] = text("instructions", 3000)
    async with harness() as bench:
        requests = [{"model": "m", **constant, keys: [said(n) for n in range(turn + 1)]} for turn in range(6)]
        for turn, request in enumerate(requests):
            async with bench.client.rollout("r").claim(dialect=dialect, model_call_id=f"c{turn}") as made:
                made.complete(request=request, response={"id": turn})
        owner = bench.owner
        assert [exchange["request"] for exchange in owner.exchanges("r")] == requests
        sizes = [len(batch) for batch, rows in zip(owner.batches, owner.rows, strict=True) if commits(rows)]
        assert sizes[0] > 2000
        assert max(sizes[1:]) < 900 + 800


async def test_without_history_every_request_is_sent_whole() -> None:
    async with harness(history=False) as bench:
        await talk(bench, growing(4))
        assert not any(isinstance(row, HistoryRow) for row in bench.owner.sent_rows())
        assert skeletons(bench.owner) == [False] * 4


async def test_what_the_owner_lacks_is_sent_whole_and_the_next_turn_refers_again() -> None:
    async with harness() as bench:
        requests = growing(6)
        await talk(bench, requests[:3])
        bench.owner.ledger.rollouts["r"].histories.clear()
        assert await call(bench, requests[3], "c3") == "durable"
        assert skeletons(bench.owner) == [False, True, True, True, False]
        assert bench.owner.ledger.outstanding == 0
        assert bench.owner.ledger.counts["lacking"] == 1
        await talk(bench, requests[4:], 4)
        assert skeletons(bench.owner)[5:] == [True, True]
        assert bench.owner.ledger.view("r").reasons is None
        assert [exchange["request"] for exchange in bench.owner.exchanges("r")] == requests
        assert bench.core.buffer.held == 0


async def test_several_turns_under_way_are_each_sent_whole_once() -> None:
    async with harness() as bench:
        requests = growing(8)
        await talk(bench, requests[:2])
        claims = [bench.client.rollout("r").claim(dialect="chat", model_call_id=f"c{turn}") for turn in range(2, 8)]
        for claim in claims:
            await claim.__aenter__()
        bench.owner.ledger.rollouts["r"].histories.clear()
        bench.owner.deaf_to_batches = True
        for claim, request in zip(claims, requests[2:], strict=True):
            claim.complete(request=request, response={})
            claim.detach()
        await settle()
        bench.owner.deaf_to_batches = False
        bench.owner.answer_held()
        assert await bench.client.quiesce("r")
        assert sorted(len(each["request"]["messages"]) for each in bench.owner.exchanges("r")) == list(range(1, 9))
        assert bench.owner.ledger.view("r").reasons is None
        assert bench.core.buffer.held == 0


async def test_an_exchange_that_there_was_no_room_to_keep_is_lost_and_counted() -> None:
    async with harness(client_buffer_bytes=5000) as bench:
        requests = growing(3, 1500)
        await talk(bench, requests[:2])
        bench.owner.ledger.rollouts["r"].histories.clear()
        assert await call(bench, requests[2], "c2") == "dropped"
        assert await bench.client.quiesce("r")
        assert bench.owner.ledger.view("r").reasons == {"dropped": 1}
        assert bench.core.book.dropped == 1


async def test_a_cleared_rollout_begins_anew() -> None:
    async with harness() as bench:
        requests = growing(5)
        tokens = await bench.client.clear(["r"])
        rollout = bench.client.rollout("r", tokens["r"])
        for number, request in enumerate(requests[:3]):
            assert (
                await rollout.record({"dialect": "chat", "model_call_id": f"c{number}", "request": request}) == number
            )
        tokens = await bench.client.clear(["r"])
        rollout = bench.client.rollout("r", tokens["r"])
        for number, request in enumerate(requests[3:]):
            assert (
                await rollout.record({"dialect": "chat", "model_call_id": f"d{number}", "request": request}) == number
            )
        assert skeletons(bench.owner) == [False, True, True, False, True]
        assert [exchange["request"] for exchange in bench.owner.exchanges("r")] == requests[3:]


async def test_a_record_without_a_token_after_a_clear_that_nobody_told_of_is_sent_whole() -> None:
    async with harness() as bench:
        requests = growing(5)
        rollout = bench.client.rollout("r")
        for number, request in enumerate(requests[:3]):
            await rollout.record({"dialect": "chat", "model_call_id": f"c{number}", "request": request})
        bench.owner.apply([ClearRow("r", "somebody else")])
        for number, request in enumerate(requests[3:]):
            await rollout.record({"dialect": "chat", "model_call_id": f"d{number}", "request": request})
        assert bench.owner.ledger.counts["lacking"] == 1
        assert [exchange["request"] for exchange in bench.owner.exchanges("r")] == requests[3:]


async def test_large_turns_that_are_packed_at_once_do_not_wait_for_each_other_and_lose_nothing() -> None:
    async with harness(pack_inline_bytes=100) as bench:
        requests = growing(6)
        await talk(bench, requests[:2])
        claims = [bench.client.rollout("r").claim(dialect="chat", model_call_id=f"c{turn}") for turn in range(2, 5)]
        for claim in claims:
            await claim.__aenter__()
        bench.executor.held = True
        for claim, request in zip(claims, requests[2:5], strict=True):
            claim.complete(request=request, response={})
            claim.detach()
        await settle()
        assert len(bench.executor.waiting) == 3
        bench.executor.waiting.reverse()
        bench.executor.run_held()
        bench.executor.held = False
        assert await bench.client.quiesce("r")
        await talk(bench, requests[5:], 5)
        assert bench.owner.ledger.counts["lacking"] == 0
        # The one that came first adds its message; the other two keep theirs as text.
        new = [row.count for row in bench.owner.sent_rows() if isinstance(row, HistoryRow)]
        assert new == [1, 1, 1, 3]
        found = sorted(len(each["request"]["messages"]) for each in bench.owner.exchanges("r"))
        assert found == [1, 2, 3, 4, 5, 6]


async def test_an_exchange_that_cannot_be_packed_does_not_keep_the_next_from_adding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with harness() as bench:
        requests = growing(4)
        await talk(bench, requests[:2])

        def fails(*_: Any) -> None:
            raise MemoryError

        with monkeypatch.context() as broken:
            broken.setattr(history_book, "pack", fails)
            assert await call(bench, requests[2], "lost") == "dropped"
        await talk(bench, requests[3:], 3)
        new = [row.count for row in bench.owner.sent_rows() if isinstance(row, HistoryRow)]
        assert new == [1, 1, 2]


async def test_batches_that_are_sent_again_carry_the_same_messages() -> None:
    async with harness() as bench:
        requests = growing(6)
        await talk(bench, requests[:3])
        bench.owner.deaf_to_batches = True
        claim = bench.client.rollout("r").claim(dialect="chat", model_call_id="c3")
        bench.owner.deaf_to_batches = False
        await claim.__aenter__()
        bench.owner.deaf_to_batches = True
        claim.complete(request=requests[3], response={})
        claim.detach()
        await settle()
        bench.owner.forget_held()
        bench.owner.deaf_to_batches = False
        bench.owner.cut()
        assert await bench.client.quiesce("r")
        await talk(bench, requests[4:], 4)
        assert bench.owner.ledger.counts["lacking"] == 0
        assert [len(each["request"]["messages"]) for each in bench.owner.exchanges("r")] == [1, 2, 3, 4, 5, 6]


async def test_nothing_refers_to_an_exchange_that_waits_for_its_claims_answer() -> None:
    async with harness(patience_s=10.0) as bench:
        requests = growing(5)
        owner = bench.owner
        rollout = bench.client.rollout("r", (await bench.client.clear(["r"]))["r"])
        for turn, request in enumerate(requests):
            if turn == 1:
                owner.deaf_to_batches = True
            claim = rollout.claim(dialect="chat", model_call_id=f"c{turn}")
            entered = asyncio.create_task(claim.__aenter__())
            await settle()
            if turn == 1:
                owner.go_away()
            await entered
            claim.complete(request=request, response={})
            claim.detach()
            await settle()
        owner.forget_held()
        owner.deaf_to_batches = False
        owner.come_back()
        assert await bench.client.quiesce("r")
        assert owner.ledger.counts["lacking"] == 0
        # The second one's row came last, once its claim was answered.
        assert [len(each["request"]["messages"]) for each in owner.exchanges("r")] == [1, 3, 4, 5, 2]
        assert owner.ledger.view("r").reasons is None


def test_the_book_forgets_the_longest_unused_when_it_is_full() -> None:
    book = HistoryBook(10_000)
    for number in range(100):
        assert book.turn(f"r{number}", 0, b"x" * 1000) is None
        book.sent_whole(f"r{number}", 0, FirstRequest("c", b"d" * 16, b"x" * 1000))
    assert book.held_bytes <= 10_000
    assert book.turn("r0", 0, b"x" * 1000) is None
    again = book.turn("r99", 0, b"x" * 1000)
    assert again is not None
    assert again.earlier == b"x" * 1000


def turn_through(book: HistoryBook, rollout: str, messages: int, size: int = 100) -> None:
    """A turn of a conversation whose requests have so many messages of about so many bytes."""
    request = {"messages": [{"role": "user", "content": f"{rollout}{n} " + "y" * size} for n in range(messages)]}
    frozen = snapshot({"dialect": "chat", "model_call_id": f"{rollout}-{messages}", "request": request})
    turn = book.turn(rollout, 0, frozen.texts[PartKind.REQUEST].data)
    if turn is None:
        sealed = pack(frozen)
        book.sent_whole(rollout, 0, FirstRequest("c", sealed.digest, frozen.texts[PartKind.REQUEST].data))
    else:
        turn.rows(rollout, 0, turn.pack(frozen))
        turn.end()


def test_what_the_book_holds_grows_with_the_messages_and_stays_within_its_capacity() -> None:
    book = HistoryBook(100_000)
    held = []
    for messages in range(1, 100):
        turn_through(book, "a", messages)
        held.append(book.held_bytes)
    assert 90 * 160 < held[-1] < 99 * 160 + 3000
    for number in range(200):
        for messages in (3, 60):
            turn_through(book, f"r{number}", messages)
        assert book.held_bytes <= 100_000
    assert book.turn("a", 0, b"") is None
    assert book.turn("r199", 0, b"") is not None


def test_many_short_messages_between_long_ones_are_counted() -> None:
    """What stands between messages is kept as text, for the next request that repeats it."""
    book = HistoryBook(1 << 20)
    for turns in range(1, 51):
        items: list[Any] = []
        for number in range(turns):
            items += [{"role": "user", "content": f"{number} " + "y" * 100}, number]
        frozen = snapshot({"dialect": "chat", "model_call_id": f"c{turns}", "request": {"messages": items}})
        turn = book.turn("r", 0, frozen.texts[PartKind.REQUEST].data)
        if turn is not None:
            turn.rows("r", 0, turn.pack(frozen))
            turn.end()
    assert book.turn("r", 0, b"") is not None
    assert book.held_bytes > 50 * (160 + 160 + 160)


def test_a_first_request_that_is_large_is_not_kept() -> None:
    book = HistoryBook(10_000)
    assert book.turn("r", 0, b"x" * 2000) is None
    book.sent_whole("r", 0, FirstRequest("c", b"d" * 16, b"x" * 2000))
    turn = book.turn("r", 0, b"x" * 2000)
    assert turn is not None
    assert (turn.earlier, turn.first) == (b"", 0)


def test_histories_are_never_numbered_twice() -> None:
    book = HistoryBook(1)
    numbers = []
    for _ in range(3):
        for rollout in ("a", "b"):
            book.turn(rollout, 0, b"")
            turn = book.turn(rollout, 0, b"")
            assert turn is not None
            numbers.append(turn.conversation.number)
            book.lacking(rollout, 0, turn.conversation)
    assert len(set(numbers)) == len(numbers)


def first_request(text: bytes) -> FirstRequest:
    return FirstRequest("c", b"d" * 16, text)


def talk_of(agent: str, turns: int) -> bytes:
    """The request of an agent's turn, which repeats those before."""
    messages = [
        {"role": "user", "content": f"{agent} says {number} " + text((agent, number), 300)} for number in range(turns)
    ]
    return msgspec.json.encode({"model": "m", "messages": messages})


def test_calls_that_have_nothing_to_do_with_each_other_have_no_turn() -> None:
    book = HistoryBook()
    for number in range(10):
        request = talk_of(f"judge {number}", 1)
        assert book.turn("r", 0, request) is None
        book.sent_whole("r", 0, first_request(request))


@pytest.mark.parametrize("agents", [1, 2, 3])
def test_agents_that_talk_in_turn_begin_a_conversation_with_their_second_requests(agents: int) -> None:
    book = HistoryBook()
    for turns in (1, 2):
        for agent in range(agents):
            request = talk_of(f"agent {agent}", turns)
            turn = book.turn("r", 0, request)
            if turns == 1:
                assert turn is None
                book.sent_whole("r", 0, first_request(request))
            else:
                assert turn is not None
                assert turn.earlier == (talk_of("agent 0", 1) if agent == 0 else b"")
                turn.conversation.source = None
                turn.end()


@pytest.mark.parametrize("agents", [4, 30])
def test_of_many_agents_that_talk_in_turn_what_the_later_ones_said_is_found_again(agents: int) -> None:
    """The first one's text is gone by then: its messages are sent once more, and its turns have a conversation."""
    book = HistoryBook()
    for agent in range(agents):
        request = talk_of(f"agent {agent}", 1)
        assert book.turn("r", 0, request) is None
        book.sent_whole("r", 0, first_request(request))
    assert book.turn("r", 0, talk_of("another", 1)) is None
    turn = book.turn("r", 0, talk_of("agent 0", 2))
    assert turn is not None
    assert (turn.earlier, turn.first) == (b"", 0)


@pytest.mark.parametrize("tiny", [b"", b"{}", b'{"messages":[]}'])
def test_a_request_of_a_few_bytes_is_taken_for_nobodys_beginning(tiny: bytes) -> None:
    book = HistoryBook()
    for request in (talk_of("agent", 1), tiny, *(talk_of(f"judge {number}", 1) for number in range(3))):
        assert book.turn("r", 0, request) is None
        book.sent_whole("r", 0, first_request(request))
        if request == tiny:
            turn = copy.deepcopy(book).turn("r", 0, talk_of("agent", 2))
            assert turn is not None
            assert turn.earlier == talk_of("agent", 1)
    assert book.turn("r", 0, talk_of("another", 1)) is None


def test_a_conversation_is_found_behind_what_differs_in_every_request() -> None:
    """A field before the messages, as some harnesses write one, moves all that is repeated."""
    book = HistoryBook()
    one = b'{"seed": 1, ' + talk_of("agent", 1)[1:]
    assert book.turn("r", 0, one) is None
    book.sent_whole("r", 0, first_request(one))
    turn = book.turn("r", 0, b'{"seed": 22222, ' + talk_of("agent", 2)[1:])
    assert turn is not None
    assert turn.earlier == one


def test_requests_that_are_kept_for_a_conversation_are_few_and_counted() -> None:
    book = HistoryBook()
    for number in range(100):
        request = talk_of(f"judge {number}", 10)
        book.turn("r", 0, request)
        book.sent_whole("r", 0, first_request(request))
    assert 2 * len(request) < book.held_bytes < 4 * len(request) + 32 * 250
