"""What every transport must show, as a pytest suite.

Subclass `TransportConformance` in a test module (its name beginning with `Test`) and give it an `owner` fixture::

    class TestMyTransport(TransportConformance):
        @pytest.fixture
        def owner(self, tmp_path):
            ...
            yield my_owner          # an `OwnerUnderTest` that is started
            ...

An owner that is costly to start may serve all tests: clear `ROLLOUTS` before each.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, runtime_checkable

import pytest

from gym_capture.client.client import CaptureClient
from gym_capture.client.options import ClientOptions
from gym_capture.client.rollout import RolloutHandle
from gym_capture.client.sharded_host import host_over
from gym_capture.client.transport import Transport
from gym_capture.errors import Fenced

ROLLOUTS = tuple(f"r{number}" for number in range(40))
"""All that the suite captures. An owner that several tests share has to have them cleared before each."""

CALLS = 400
WAITERS = 2000
BIG_BYTES = 6 << 20
AT_ONCE_S = 5.0
"""Less than a lease, and all the time that a busy machine may take for what has no need to wait for one's end."""

DEADLINE_S = 60.0


class OwnerUnderTest(Protocol):
    """A real owner of a directory of its own, and ways to trouble it. Called from the test's thread.

    Its leases last for longer than `AT_ONCE_S`. An attribute `history` that is false makes the suite's clients store
    every request whole.
    """

    def transport(self) -> Transport:
        """A new transport to it."""

    def cut(self) -> None:
        """Break every link; the owner lives."""

    def cut_soon(self, chance: random.Random) -> None:
        """Break the links at a place that `chance` picks, a little further on in what they carry."""

    def kill(self) -> None:
        """End the owner as a crash does."""

    def start(self) -> None:
        """Start it again on the same directory."""


@runtime_checkable
class ShardedOwnersUnderTest(Protocol):
    """The owners of a run with several shards, as an `OwnerUnderTest`: what is done is done to all of them."""

    def transports(self) -> Sequence[Transport]:
        """New transports, one to each shard's owner, in order; taken in place of `transport`."""


def some_exchange(call_id: str, text: str = "hello") -> dict[str, Any]:
    """A small chat exchange."""
    return {
        "model_call_id": call_id,
        "dialect": "chat",
        "model_ref": {"type": "model", "name": "m"},
        "request": {"model": "m", "messages": [{"role": "user", "content": text}]},
        "response": {"id": call_id, "choices": [{"message": {"role": "assistant", "content": text[::-1]}}]},
        "status_code": 200,
    }


@asynccontextmanager
async def client_of(owner: OwnerUnderTest, **options: Any) -> AsyncIterator[CaptureClient]:
    """A client in a thread of its own; closed at the end."""
    options = {"drain_timeout_s": DEADLINE_S, "history": getattr(owner, "history", True), **options}
    transports = owner.transports() if isinstance(owner, ShardedOwnersUnderTest) else [owner.transport()]
    client = CaptureClient(host_over(transports, ClientOptions(**options)))
    try:
        yield client
    finally:
        await client.close(DEADLINE_S)


async def make_call(rollout: RolloutHandle, call_id: str) -> int | None:
    """One call from claim to commit; its index."""
    async with rollout.claim(dialect="chat", model_call_id=call_id) as call:
        call.complete(request={"id": call_id}, response={"id": call_id})
    assert call.outcome == "durable" or call.outcome == "duplicate", call.outcome
    return call.call_index


async def captured(client: CaptureClient, rollout_id: str, **merge: Any) -> dict[str, Any]:
    """What a merge attaches for a rollout."""
    merged = await client.merge({"_ng_rollout_id": rollout_id}, **merge)
    value: dict[str, Any] = merged["ng_model_call_capture"]
    return value


class TransportConformance:
    """The suite. Every test is a plain function with a loop of its own."""

    @pytest.fixture
    def owner(self) -> Iterator[OwnerUnderTest]:
        """To be given by the subclass."""
        raise NotImplementedError

    def test_claim_commit_quiesce_merge(self, owner: OwnerUnderTest) -> None:
        async def scenario() -> None:
            async with client_of(owner) as client:
                token = (await client.clear(["r1"]))["r1"]
                rollout = client.rollout("r1", token)
                async with rollout.claim(dialect="chat") as call:
                    assert not await client.quiesce("r1", timeout_s=0.05)
                    assert await client.quiesce("r2")
                    call.complete(request={"q": 1}, response={"a": 2}, status_code=429)
                assert (call.outcome, call.call_index, call.generation) == ("durable", 0, token)
                async with rollout.claim(dialect="chat"):
                    pass
                assert await client.quiesce("r1")
                assert await client.quiesce()
                value = await captured(client, "r1", include_payloads=True, generation=token, issued=rollout.issued)
                (shown,) = value["calls"]
                assert (shown["request"], shown["response"]) == ({"q": 1}, {"a": 2})
                assert shown["error_category"] == "rate_limit"
                assert value["gaps"] == [{"code": "model_call_capture_incomplete", "detail": "released=1"}]
                stats = await client.stats("r1")
                assert stats["client"]["connected"] is True

        asyncio.run(scenario())

    def test_one_clients_writes_keep_their_order(self, owner: OwnerUnderTest) -> None:
        async def scenario() -> None:
            async with client_of(owner) as client:
                rollout = client.rollout("r1")
                names = [f"c{number:04d}" for number in range(300)]
                indexes = await asyncio.gather(*[rollout.record(some_exchange(name)) for name in names])
                assert indexes == list(range(300))
                value = await captured(client, "r1")
                assert [call["model_call_id"] for call in value["calls"]] == names

        asyncio.run(scenario())

    def test_many_are_recorded_merged_and_cleared_in_one_call_each(self, owner: OwnerUnderTest) -> None:
        async def scenario() -> None:
            async with client_of(owner) as client:
                names = list(ROLLOUTS)
                tokens = await client.clear(names)
                handles = {name: client.rollout(name, tokens[name]) for name in names}
                texts = ["x", "y" * 40_000, "z" * 400_000]  # of which the large ones are packed aside
                pairs = [(handles[name], some_exchange(f"c{turn}", texts[turn])) for turn in range(3) for name in names]
                assert await client.record_many(pairs) == [turn for turn in range(3) for _ in names]
                records = [{"_ng_rollout_id": name} for name in names]
                issued = dict.fromkeys(names, 3) | {"r7": 5}
                merged = await client.merge_many(records, True, issued=issued, generations=tokens)
                assert [id(record) for record in merged] == [id(record) for record in records]
                single = [
                    await client.merge({"_ng_rollout_id": name}, True, issued=issued[name], generation=tokens[name])
                    for name in names
                ]
                assert merged == single
                assert merged[7]["ng_model_call_capture"]["gaps"] == [
                    {"code": "model_call_capture_incomplete", "detail": "unaccounted=2"}
                ]
                assert await client.clear(names) == {name: token + 1 for name, token in tokens.items()}
                with pytest.raises(ExceptionGroup, match=r"40 of 41 failed") as failed:
                    await client.merge_many([*records, {"no": "id"}], generations=tokens)
                assert {type(error) for error in failed.value.exceptions} == {Fenced}

        asyncio.run(scenario())

    def test_a_big_exchange_comes_back_as_it_was(self, owner: OwnerUnderTest) -> None:
        async def scenario() -> None:
            async with client_of(owner) as client:
                text = random.Random(1).randbytes(BIG_BYTES // 2).hex()
                rollout = client.rollout("r1")
                big, small = await asyncio.gather(
                    rollout.record(some_exchange("big", text)), rollout.record(some_exchange("small"))
                )
                assert {big, small} == {0, 1}
                value = await captured(client, "r1", include_payloads=True)
                shown = value["calls"][big]
                assert shown["request"]["messages"][0]["content"] == text
                assert shown["response"]["choices"][0]["message"]["content"] == text[::-1]

        asyncio.run(scenario())

    def test_cut_links_lose_nothing_and_double_nothing(self, owner: OwnerUnderTest) -> None:
        chance = random.Random(7)

        async def scenario() -> None:
            async with client_of(owner) as client:
                rollouts = [client.rollout(name) for name in ROLLOUTS[:8]]
                done = 0
                indexes: dict[str, set[int | None]] = {rollout.id: set() for rollout in rollouts}

                async def work(number: int) -> None:
                    nonlocal done
                    for turn in range(CALLS // 16):
                        rollout = rollouts[(number + turn) % 8]
                        indexes[rollout.id].add(await make_call(rollout, f"{number}-{turn}"))
                        done += 1
                        if done % 20 == 0:
                            await asyncio.to_thread(owner.cut_soon, chance)

                await asyncio.gather(*[work(number) for number in range(16)])
                assert await client.quiesce()
                total = 0
                for rollout in rollouts:
                    value = await captured(client, rollout.id, issued=rollout.issued)
                    shown = [call["model_call_id"] for call in value["calls"]]
                    assert len(shown) == len(set(shown)) == rollout.issued
                    assert indexes[rollout.id] == set(range(len(shown)))
                    assert "gaps" not in value
                    total += len(shown)
                assert total == 16 * (CALLS // 16)
                assert (await client.stats())["client"]["connects"] > 3

        asyncio.run(scenario())

    def test_what_was_acknowledged_outlives_the_owner(self, owner: OwnerUnderTest) -> None:
        async def scenario() -> None:
            async with client_of(owner) as client:
                rollout = client.rollout("r1", (await client.clear(["r1"]))["r1"])
                acknowledged: list[str] = []
                busy = asyncio.Event()

                async def work(number: int) -> None:
                    for turn in range(10):
                        call_id = f"{number}-{turn}"
                        await make_call(rollout, call_id)
                        acknowledged.append(call_id)
                        if len(acknowledged) == 20:
                            busy.set()

                tasks = [asyncio.create_task(work(number)) for number in range(16)]
                await busy.wait()
                async with rollout.claim(dialect="chat", model_call_id="over the crash") as call:
                    await asyncio.to_thread(owner.kill)
                    before = set(acknowledged)
                    await asyncio.to_thread(owner.start)
                    call.complete(request={}, response={})
                assert call.outcome == "durable"
                await asyncio.gather(*tasks)
                assert await client.quiesce("r1")
                value = await captured(client, "r1", issued=rollout.issued)
                shown = [one["model_call_id"] for one in value["calls"]]
                assert before <= set(shown)
                assert len(shown) == len(set(shown)) == 161
                assert "gaps" not in value

        asyncio.run(scenario())

    def test_work_of_an_earlier_generation_never_shows(self, owner: OwnerUnderTest) -> None:
        async def scenario() -> None:
            async with client_of(owner) as collector, client_of(owner) as worker:
                first = (await collector.clear(["r1"]))["r1"]
                old = worker.rollout("r1", first)
                async with old.claim(dialect="chat") as call:
                    second = (await collector.clear([{"_ng_rollout_id": "r1"}]))["r1"]
                    assert second == first + 1
                    call.complete(request={}, response={})
                assert call.outcome == "fenced"
                async with old.claim(dialect="chat") as late:
                    late.complete(request={}, response={})
                assert late.outcome == "fenced"
                with pytest.raises(Fenced):
                    await old.record(some_exchange("late"))
                assert await collector.quiesce("r1")
                assert (await captured(collector, "r1"))["calls"] == []
                assert await worker.rollout("r1", second).record(some_exchange("new")) == 0

        asyncio.run(scenario())

    def test_a_long_conversation_comes_back_whatever_happens_to_links_owners_and_clients(
        self, owner: OwnerUnderTest
    ) -> None:
        """Every request repeats the ones before it, from two clients by turns; what is merged is what was sent."""

        async def scenario() -> None:
            messages: list[dict[str, str]] = [{"role": "system", "content": "be brief. " * 40}]
            sent: list[dict[str, Any]] = []
            async with client_of(owner) as collector, client_of(owner) as first, client_of(owner) as second:
                for generation in range(2):
                    token = (await collector.clear(["r1"]))["r1"]
                    sent.clear()
                    for turn in range(12):
                        messages.append({"role": "user", "content": f"turn {turn} of {generation}: " + "ask " * 30})
                        request = {"model": "m", "messages": list(messages), "tools": [{"name": "t" * 40}]}
                        worker = second if turn % 5 == 3 else first
                        async with worker.rollout("r1", token).claim(dialect="chat") as call:
                            call.complete(request=request, response={"turn": turn})
                        assert call.outcome == "durable"
                        sent.append(request)
                        if turn == 4:
                            await asyncio.to_thread(owner.cut)
                        if turn == 7:
                            await asyncio.to_thread(owner.kill)
                            await asyncio.to_thread(owner.start)
                    value = await captured(collector, "r1", include_payloads=True)
                    assert [call["request"] for call in value["calls"]] == sent
                    assert "gaps" not in value

        asyncio.run(scenario())

    def test_thousands_of_waiters_do_not_keep_a_write_from_landing(self, owner: OwnerUnderTest) -> None:
        async def scenario() -> None:
            async with client_of(owner) as waiting, client_of(owner) as writing:
                rollout = writing.rollout("r1")
                async with rollout.claim(dialect="chat") as call:
                    waiters = [
                        asyncio.create_task(waiting.quiesce("r1" if number % 2 else None)) for number in range(WAITERS)
                    ]
                    await waiting.stats()  # answered after the waits were taken
                    assert await writing.rollout("r2").record(some_exchange("beside")) == 0
                    assert not any(waiter.done() for waiter in waiters)
                    call.complete(request={}, response={})
                assert await asyncio.gather(*waiters) == [True] * WAITERS

        asyncio.run(scenario())

    def test_cancelled_callers_leave_nothing_outstanding(self, owner: OwnerUnderTest) -> None:
        async def scenario() -> None:
            async with client_of(owner) as client:
                rollout = client.rollout("r1")
                entered: list[str] = []
                busy = asyncio.Event()

                async def work(call_id: str) -> None:
                    async with rollout.claim(dialect="chat", model_call_id=call_id):
                        entered.append(call_id)
                        if len(entered) == 50:
                            busy.set()
                        await asyncio.Event().wait()

                tasks = [asyncio.create_task(work(f"c{number}")) for number in range(100)]
                await busy.wait()
                tasks += [asyncio.create_task(work(f"d{number}")) for number in range(50)]
                tasks.append(asyncio.create_task(client.quiesce("r1")))  # type: ignore[arg-type]
                await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                assert all(task.cancelled() for task in tasks)
                assert await client.quiesce("r1")
                value = await captured(client, "r1", issued=rollout.issued)
                assert sorted(call["model_call_id"] for call in value["calls"]) == sorted(entered)
                assert {call["error_category"] for call in value["calls"]} == {"cancelled"}
                assert "gaps" not in value

        asyncio.run(scenario())

    def test_a_client_that_closes_over_an_open_claim_loses_it_at_once(self, owner: OwnerUnderTest) -> None:
        async def scenario() -> None:
            async with client_of(owner) as other:
                async with client_of(owner) as client:
                    call = client.rollout("r1").claim(dialect="chat")
                    await call.__aenter__()
                    assert not await other.quiesce("r1", timeout_s=0.05)
                assert await other.quiesce("r1", timeout_s=AT_ONCE_S)
                value = await captured(other, "r1")
                assert value["gaps"] == [{"code": "model_call_capture_incomplete", "detail": "lost=1"}]
                call.complete(request={}, response={})
                await call.__aexit__(None, None, None)
                assert call.outcome == "dropped"

        asyncio.run(scenario())

    def test_a_broken_link_is_mended_for_whoever_waits(self, owner: OwnerUnderTest) -> None:
        async def scenario() -> None:
            async with client_of(owner) as client, client_of(owner) as other:
                async with other.rollout("r1").claim(dialect="chat") as call:
                    waiter = asyncio.create_task(client.quiesce("r1"))
                    await client.stats()
                    await asyncio.to_thread(owner.cut)
                    await client.stats()
                    assert not waiter.done()
                    call.complete(request={}, response={})
                assert call.outcome == "durable"
                assert await waiter

        asyncio.run(scenario())
