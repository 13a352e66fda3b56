"""Calls made inside a `verifier` block are the verifier's, and no others are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import gym_capture
from gym_capture.client.client import CaptureClient
from gym_capture.client.host import CoreHost
from gym_capture.client.verifier import current_verifier, verifier
from gym_capture.errors import InvalidExchange
from tests.client.fake_owner import FakeOwner
from tests.client.harness import exchange, harness
from tests.client.virtual_time import run_virtual


def declared(owner: FakeOwner, rollout: str = "r1") -> list[Any]:
    return [kept.get("verifier_invocation") for kept in owner.exchanges(rollout)]


async def one_call(client: CaptureClient, **fields: Any) -> None:
    async with client.rollout("r1").claim(dialect="chat", **fields) as call:
        call.complete(request={}, response={"usage": {"prompt_tokens": 3, "completion_tokens": 2}})


def test_its_claims_and_records_declare_it_and_a_merge_counts_them_apart() -> None:
    async def scenario() -> None:
        async with harness() as made:
            await one_call(made.client)
            with gym_capture.verifier("judge", "v1") as invocation:
                assert (invocation.name, invocation.invocation_id) == ("judge", "v1")
                assert gym_capture.current_verifier() is invocation
                await one_call(made.client)
                await made.client.record("r1", exchange("recorded"))
            assert current_verifier() is None
            await one_call(made.client)
            judge = {"invocation_id": "v1", "name": "judge"}
            assert declared(made.owner) == [None, judge, judge, None]
            merged = await made.client.merge({"_ng_rollout_id": "r1"})
            value = merged["ng_model_call_capture"]
            assert (len(value["calls"]), value["metrics"]["num_calls"], value["metrics"]["tokens_total"]) == (4, 2, 10)
            [summed] = value["verifiers"]
            assert (summed["invocation_id"], summed["name"], summed["metrics"]["num_calls"]) == ("v1", "judge", 2)
            assert summed["metrics"]["tokens_total"] == 5

    run_virtual(scenario())


def test_blocks_nest_and_a_declaration_of_the_calls_own_wins() -> None:
    async def scenario() -> None:
        own = {"invocation_id": "mine", "name": "own"}
        async with harness() as made:
            with verifier("outer", "o"):
                with verifier("inner", "i"):
                    await one_call(made.client)
                await one_call(made.client, verifier_invocation=own)
                await made.client.record("r1", exchange("a", verifier_invocation=own))
                await one_call(made.client)
            names = [each["name"] for each in declared(made.owner)]
            assert names == ["inner", "own", "own", "outer"]

    run_virtual(scenario())


def test_it_holds_for_its_task_and_those_begun_inside_and_no_other() -> None:
    async def scenario() -> None:
        async with harness() as made:
            inside, outside = asyncio.Event(), asyncio.Event()

            async def policy() -> None:
                await inside.wait()
                await one_call(made.client, model_call_id="policy")
                outside.set()

            async def judge() -> None:
                with verifier("judge", "v"):
                    inside.set()
                    await outside.wait()
                    await asyncio.create_task(one_call(made.client, model_call_id="judge"))

            await asyncio.gather(policy(), judge())
            kept = {each["model_call_id"]: each.get("verifier_invocation") for each in made.owner.exchanges("r1")}
            assert kept == {"policy": None, "judge": {"invocation_id": "v", "name": "judge"}}

    run_virtual(scenario())


def test_code_without_a_loop_declares_it_too() -> None:
    owner = FakeOwner()
    client = CaptureClient(CoreHost(owner))
    with verifier("judge") as invocation:
        with client.sync.rollout("r1").claim(dialect="chat") as call:
            call.complete(request={}, response={})
        client.sync.record("r1", exchange("a"))
    client.sync.close()
    assert declared(owner) == [{"invocation_id": invocation.invocation_id, "name": "judge"}] * 2


def test_each_block_is_an_invocation_of_its_own_unless_it_is_given_an_id() -> None:
    with verifier("judge") as first, verifier("judge") as second:
        assert first.invocation_id != second.invocation_id
    block = verifier("judge")
    with block, pytest.raises(RuntimeError, match="used once"):
        block.__enter__()


@pytest.mark.parametrize(("name", "invocation_id"), [("", None), (None, None), ("\ud800", None), ("n", ""), ("n", 7)])
def test_a_name_or_id_that_is_no_text_is_refused(name: Any, invocation_id: Any) -> None:
    with pytest.raises(InvalidExchange, match="non-empty text"):
        verifier(name, invocation_id)


def test_a_block_that_is_left_in_another_context_harms_nobody() -> None:
    async def scenario() -> None:
        async def judge() -> AsyncIterator[None]:
            with verifier("judge"):
                yield

        steps = judge()
        await asyncio.create_task(_next(steps))
        assert current_verifier() is None
        await asyncio.create_task(_next(steps))

    asyncio.run(scenario())


async def _next(steps: AsyncIterator[None]) -> None:
    async for _ in steps:
        return
