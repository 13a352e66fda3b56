"""Many rollouts and exchanges in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gym_capture.client.bulk import AT_ONCE, perform_all
from gym_capture.client.client import CaptureClient
from gym_capture.client.host import CoreHost
from gym_capture.client.options import ClientOptions
from gym_capture.errors import Fenced, InvalidRolloutId
from gym_capture.testing.threaded_owner import ThreadedOwner
from tests.client.harness import exchange, harness
from tests.client.virtual_time import run_virtual, settle


@pytest.fixture
def blocking(tmp_path: Path) -> Iterator[CaptureClient]:
    """A client of a real owner in this process, for code without a loop."""
    owner = ThreadedOwner(tmp_path / "captures")
    owner.start()
    client = CaptureClient(CoreHost(owner.in_process_transport(), ClientOptions()))
    yield client
    client.sync.close()
    owner.close()


def test_no_more_calls_than_that_are_under_way_and_none_is_drawn_before() -> None:
    async def scenario() -> None:
        drawn = under_way = most = 0
        gate = asyncio.Event()

        async def one(number: int) -> int:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await gate.wait()
            under_way -= 1
            return number * number

        def calls() -> Iterator[Any]:
            nonlocal drawn
            for number in range(1000):
                drawn += 1
                yield partial(one, number)

        made = asyncio.create_task(perform_all(calls(), "squares"))
        await settle()
        assert (drawn, under_way) == (AT_ONCE, AT_ONCE)
        gate.set()
        assert await made == [number * number for number in range(1000)]
        assert most == AT_ONCE

    run_virtual(scenario())


def test_every_call_is_made_and_all_failures_are_told() -> None:
    async def scenario() -> None:
        made: list[int] = []

        async def one(number: int) -> int:
            made.append(number)
            if number % 3 == 0:
                raise ValueError(number)
            return number

        with pytest.raises(ExceptionGroup, match=r"334 of 1000 failed \(numbers\)") as failed:
            await perform_all((partial(one, number) for number in range(1000)), "numbers")
        assert sorted(error.args[0] for error in failed.value.exceptions) == list(range(0, 1000, 3))
        assert sorted(made) == list(range(1000))
        assert await perform_all([], "nothing") == []

    run_virtual(scenario())


def test_exchanges_that_fail_leave_the_others_written() -> None:
    async def scenario() -> None:
        async with harness() as made:
            old = made.client.rollout("r1", (await made.client.clear(["r1"]))["r1"])
            await made.client.clear(["r1"])
            given: list[Any] = [
                ("r2", exchange("a")),
                (old, exchange("b")),
                ("no/id", exchange("c")),
                ("r2", exchange("d")),
            ]
            with pytest.raises(ExceptionGroup) as failed:
                await made.client.record_many([*given, ("r2", exchange("d"))])
            assert {type(error) for error in failed.value.exceptions} == {Fenced, InvalidRolloutId}
            assert await made.client.record_many([("r2", exchange("d")), ("r2", exchange("e"))]) == [1, 2]

    run_virtual(scenario())


def test_code_without_a_loop_records_and_merges_more_than_it_holds_at_once(blocking: CaptureClient) -> None:
    sync = blocking.sync
    tokens = sync.clear([f"r{number}" for number in range(1500)])
    rollout = sync.rollout("r0", tokens["r0"])
    given = ((rollout if name == "r0" else name, exchange("only")) for name in tokens)
    assert sync.record_many(given) == [0] * 1500
    records = sync.merge_many([{"_ng_rollout_id": name} for name in tokens], generations=tokens)
    assert [len(record["ng_model_call_capture"]["calls"]) for record in records] == [1] * 1500
    with pytest.raises(ExceptionGroup, match="2 exchanges were not written"):
        sync.record_many([("", exchange("x")), *[("r1", exchange("only"))] * 1200, ("..", exchange("x"))])
