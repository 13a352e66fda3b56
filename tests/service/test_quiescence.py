"""Waiting for quiescence: true only when it is true, by events, for thousands at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gym_capture.errors import GymCaptureError, InvalidRolloutId, OwnerUnavailable
from gym_capture.model.ledger import Settled
from gym_capture.model.messages import Quiesce
from gym_capture.service.waiters import Waiters
from gym_capture.testing.faulty_files import FaultyDisk
from tests.service.harness import serving, turns


class Rig:
    """Waiters over made-up numbers, with a check that a test answers."""

    def __init__(self) -> None:
        self.outstanding: dict[str | None, int] = {}
        self.groups = 0
        self.checks: list[asyncio.Future[bool]] = []
        self.told: list[tuple[str | None, bool | GymCaptureError]] = []
        self.waiters = Waiters(lambda key: self.outstanding.get(key, 0), self.check, lambda: self.groups)

    async def check(self) -> bool:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.checks.append(future)
        return await future

    def add(self, key: str | None, timeout_s: float = 1000.0) -> Any:
        return self.waiters.add(key, timeout_s, lambda result: self.told.append((key, result)))


async def test_a_waiter_for_something_quiescent_is_answered_after_a_check_that_began_after_it_asked() -> None:
    rig = Rig()
    rig.add("a")
    await turns()
    rig.add("b")
    rig.checks[0].set_result(True)
    await turns()
    assert rig.told == [("a", True)]
    rig.checks[1].set_result(True)
    await turns()
    assert rig.told == [("a", True), ("b", True)]
    assert len(rig.checks) == 2


async def test_many_who_ask_at_once_share_one_check() -> None:
    rig = Rig()
    for number in range(10_000):
        rig.add(f"r{number % 100}")
    await turns()
    assert len(rig.checks) == 1
    rig.checks[0].set_result(True)
    await turns(100)
    assert len(rig.told) == 10_000
    assert rig.waiters.count == 0


async def test_a_claim_that_is_made_during_the_check_keeps_the_waiter_waiting() -> None:
    rig = Rig()
    rig.add("a")
    await turns()
    rig.outstanding["a"] = 1
    rig.checks[0].set_result(True)
    await turns()
    assert rig.told == []
    rig.outstanding["a"] = 0
    rig.groups = 1
    rig.waiters.settled(Settled(["a"], False), 1)
    assert rig.told == [("a", True)]


async def test_a_group_answers_only_those_who_asked_before_it_was_handed_over() -> None:
    rig = Rig()
    rig.outstanding["a"] = 1
    rig.add("a")
    rig.groups = 1
    rig.add("a")
    rig.outstanding["a"] = 0
    rig.waiters.settled(Settled(["a"], False), 1)
    assert len(rig.told) == 1
    await turns()
    rig.checks[0].set_result(True)
    await turns()
    assert len(rig.told) == 2


async def test_one_who_is_woken_while_a_new_claim_was_applied_goes_on_waiting() -> None:
    rig = Rig()
    rig.outstanding["a"] = 1
    rig.add("a")
    rig.waiters.settled(Settled(["a"], False), 1)
    assert rig.told == []
    assert rig.waiters.count == 1


async def test_the_run_has_waiters_of_its_own() -> None:
    rig = Rig()
    rig.outstanding = {None: 2, "a": 1}
    rig.add(None)
    rig.add("a")
    rig.outstanding = {None: 1, "a": 0}
    rig.waiters.settled(Settled(["a"], False), 1)
    assert rig.told == [("a", True)]
    rig.outstanding = {}
    rig.waiters.settled(Settled(["b"], True), 2)
    assert rig.told == [("a", True), (None, True)]


async def test_without_time_to_wait_the_answer_is_what_is_so_now() -> None:
    rig = Rig()
    rig.outstanding["busy"] = 1
    rig.add("busy", 0.0)
    assert rig.told == [("busy", False)]
    rig.add("idle", 0.0)
    await turns()
    rig.checks[0].set_result(True)
    await turns()
    assert rig.told[1:] == [("idle", True)]


async def test_deadlines_end_waiting_in_their_order_with_one_timer() -> None:
    rig = Rig()
    rig.outstanding["a"] = 1
    rig.add("a", 0.02)
    rig.add("a", 0.01)
    rig.add("a", float("inf"))
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    rig.waiters.add("a", 0.03, lambda result: done.set_result(None))
    await done
    assert rig.told == [("a", False), ("a", False)]
    assert rig.waiters.count == 1


async def test_who_cancels_is_told_nothing_and_leaves_nothing_behind() -> None:
    rig = Rig()
    rig.outstanding["a"] = 1
    waiters = [rig.add("a") for _ in range(5000)]
    for waiter in waiters:
        rig.waiters.cancel(waiter)
    assert rig.waiters.count == 0
    rig.add("b", 500.0)
    assert len(rig.waiters._heap) < 2000
    rig.outstanding["a"] = 0
    rig.waiters.settled(Settled(["a"], False), 1)
    assert rig.told == []


async def test_a_failed_check_leaves_everyone_waiting_until_the_state_is_rebuilt() -> None:
    rig = Rig()
    rig.add("a")
    await turns()
    rig.outstanding["a"] = 1  # as while the directory is taken anew
    rig.checks[0].set_result(False)
    await turns()
    assert rig.told == []
    rig.outstanding["a"] = 0
    rig.waiters.recheck()
    await turns()
    rig.checks[1].set_result(True)
    await turns()
    assert rig.told == [("a", True)]


async def test_abandoned_waiters_are_told_the_error_also_those_in_a_check() -> None:
    rig = Rig()
    rig.outstanding["a"] = 1
    rig.add("a")
    rig.add("b")
    await turns()
    error = OwnerUnavailable("gone")
    rig.outstanding["b"] = 1
    rig.waiters.abandon(error)
    rig.checks[0].set_result(False)
    await turns()
    assert rig.told == [("a", error), ("b", error)]


async def test_quiescence_waits_for_the_closing_to_be_durable() -> None:
    async with serving() as bench:
        client = await bench.client()
        claim = await client.claim("r")
        asked = client.call(Quiesce("r", 1000.0))
        bench.executor.hold()
        answer = client.commit("r", "c1", claim)
        await turns(50)
        assert not asked.done()
        assert bench.service.ledger.outstanding_of("r") == 1
        bench.executor.let_go()
        assert (await asked)[0] is True
        assert answer.done()


async def test_a_claim_in_the_same_group_as_the_last_closing_is_not_overlooked() -> None:
    async with serving() as bench:
        client = await bench.client()
        claim = await client.claim("r")
        asked = client.call(Quiesce("r", 1000.0))
        bench.executor.hold()
        closing = client.commit("r", "c1", claim)
        row = client.claim_row("r")
        opening = client.batch([row])
        await turns(50)
        bench.executor.let_go()
        await asyncio.gather(closing, opening)
        await turns(50)
        assert not asked.done()
        await client.release("r", row.claim)
        assert (await asked)[0] is True


async def test_thousands_wait_and_a_write_passes_them() -> None:
    async with serving() as bench:
        client = await bench.client()
        claim = await client.claim("r")
        calls = [client.call(Quiesce("r" if number % 2 else None, 1000.0)) for number in range(5000)]
        await client.beat()
        assert bench.service.waiters.count == 5000
        assert (await client.commit("other", "c0")) is not None
        assert not any(call.done() for call in calls)
        await client.commit("r", "c1", claim)
        assert all(value is True for value, _ in await asyncio.gather(*calls))
        assert bench.service.waiters.count == 0


async def test_a_lost_connection_takes_its_waiters_along() -> None:
    async with serving() as bench:
        client = await bench.client(steady=False)
        await client.claim("r")
        for _ in range(10):
            client.call(Quiesce("r", 1000.0))
        await client.beat()
        assert bench.service.waiters.count == 10
        bench.transport.cut_all()
        await turns()
        assert bench.service.waiters.count == 0


async def test_a_cancelled_call_is_not_answered() -> None:
    async with serving() as bench:
        client = await bench.client()
        claim = await client.claim("r")
        client.call(Quiesce("r", 1000.0))
        client.cancel(1)
        await client.beat()
        assert bench.service.waiters.count == 0
        await client.commit("r", "c1", claim)
        await client.beat()
        assert client.calls == {}


async def test_direct_callers_ask_without_a_connection() -> None:
    async with serving() as bench:
        client = await bench.client()
        service = bench.service
        assert await service.quiesce(None, 0.0) is True
        claim = await client.claim("r")
        assert await service.quiesce("r", 0.0) is False
        assert await service.quiesce("other", 0.0) is True
        asked = asyncio.create_task(service.quiesce(None, 1000.0))
        await turns()
        await client.release("r", claim)
        assert await asked is True
        with pytest.raises(InvalidRolloutId):
            await service.quiesce("no/id", 0.0)


async def test_a_cancelled_direct_caller_leaves_nothing_behind() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.claim("r")
        asked = asyncio.create_task(bench.service.quiesce("r", 1000.0))
        await turns()
        asked.cancel()
        await turns()
        assert bench.service.waiters.count == 0


async def test_an_owner_that_was_superseded_says_nothing_of_quiescence() -> None:
    disk = FaultyDisk()
    async with serving(disk) as old, serving(disk, "actor-2", takeover=True):
        with pytest.raises(GymCaptureError, match="superseded"):
            await old.service.quiesce(None, 0.0)
        assert old.left == ["superseded"]
