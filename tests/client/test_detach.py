"""Leaving a claim without waiting: from a cancelled task, a closing loop, another thread, a forked child."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from gym_capture.client.claim import ClaimHandle
from gym_capture.client.client import CaptureClient
from gym_capture.client.host import CoreHost
from gym_capture.client.options import ClientOptions
from gym_capture.client.outcome import CallOutcome
from tests.client.fake_owner import FakeOwner
from tests.client.harness import exchange, harness
from tests.client.virtual_time import run_virtual, settle
from tests.ray_cluster import ROOT


@pytest.fixture
def owner() -> FakeOwner:
    return FakeOwner()


@pytest.fixture
def client(owner: FakeOwner) -> Iterator[CaptureClient]:
    made = CaptureClient(CoreHost(owner, ClientOptions(drain_timeout_s=20.0)))
    yield made
    made.sync.close()


def test_what_was_noted_is_committed_as_a_failure_once_nobody_waits() -> None:
    async def scenario() -> None:
        async with harness() as made:
            rollout = made.client.rollout("r1")
            async with rollout.claim(dialect="chat", request={"n": 1}) as call:
                call.note(response={"partial": True}, status_code=200)
                made.owner.deaf_to_batches = True
                call.detach()
                await settle()
                assert not call.outcome
                assert made.owner.ledger.outstanding_of("r1") == 0, "the commit is applied; its answer is held"
                made.owner.deaf_to_batches = False
                made.owner.answer_held()
                await settle()
                assert (call.outcome, call.call_index, call.generation) == (CallOutcome.DURABLE, 0, 0)
                call.detach("connection")
            await settle()
            (kept,) = made.owner.exchanges("r1")
            assert (kept["request"], kept["response"], kept["status_code"]) == ({"n": 1}, {"partial": True}, 200)
            assert kept["error_category"] == "cancelled"
            assert made.owner.ledger.view("r1").reasons is None

    run_virtual(scenario())


@pytest.mark.parametrize(("noted", "category"), [({}, "stream_truncated"), ({"error_category": "timeout"}, "timeout")])
def test_without_any_payload_the_failure_is_committed(noted: dict[str, str], category: str) -> None:
    async def scenario() -> None:
        async with harness() as made:
            call = await made.client.rollout("r1").claim(dialect="chat").__aenter__()
            call.note(**noted)
            call.detach("stream_truncated")
            assert await made.client.quiesce("r1", timeout_s=1.0)
            (kept,) = made.owner.exchanges("r1")
            assert (kept["error_category"], kept["request"], kept["response"]) == (category, None, None)

    run_virtual(scenario())


def test_what_was_completed_or_released_before_wins() -> None:
    async def scenario() -> None:
        async with harness() as made:
            rollout = made.client.rollout("r1")
            done = await rollout.claim(dialect="chat").__aenter__()
            done.complete(request={"n": 1}, response={"whole": True})
            done.note(response={"whole": False})
            done.detach("exception")
            skipped = await rollout.claim(dialect="chat").__aenter__()
            skipped.release("skipped")
            skipped.detach()
            assert await made.client.quiesce("r1", timeout_s=1.0)
            (kept,) = made.owner.exchanges("r1")
            assert (kept["response"], kept["error_category"], kept["status_code"]) == ({"whole": True}, None, 200)
            assert made.owner.ledger.view("r1").reasons == {"skipped": 1}
            assert (done.outcome, skipped.outcome) == (CallOutcome.DURABLE, CallOutcome.RELEASED)

    run_virtual(scenario())


def test_a_claim_that_was_left_is_not_detached_any_more() -> None:
    async def scenario() -> None:
        async with harness() as made:
            async with made.client.rollout("r1").claim(dialect="chat") as call:
                call.complete(request={}, response={})
            call.detach()
            del call
            gc.collect()
            assert await made.client.quiesce("r1", timeout_s=1.0)
            (kept,) = made.owner.exchanges("r1")
            assert kept["error_category"] is None

    run_virtual(scenario())


def test_a_claim_is_detached_only_after_it_was_entered() -> None:
    async def scenario() -> None:
        async with harness() as made:
            call = made.client.rollout("r1").claim(dialect="chat")
            with pytest.raises(RuntimeError, match="after it was entered"):
                call.detach()
            async with call:
                call.complete(request={}, response={})
            assert call.outcome is CallOutcome.DURABLE

    run_virtual(scenario())


def test_a_cancelled_task_detaches_and_ends_at_once() -> None:
    async def scenario() -> None:
        async with harness() as made:
            entered = asyncio.Event()

            async def call() -> None:
                made_call = await made.client.rollout("r1").claim(dialect="chat", request={"n": 1}).__aenter__()
                entered.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    made_call.detach()
                    raise

            task = asyncio.create_task(call())
            await entered.wait()
            made.owner.deaf_to_batches = True
            task.cancel()
            await settle()
            assert task.cancelled(), "it did not wait for the owner's answer"
            assert not await made.client.quiesce("r1", timeout_s=1.0), "quiescence does"
            made.owner.deaf_to_batches = False
            made.owner.answer_held()
            assert await made.client.quiesce("r1", timeout_s=1.0)
            (kept,) = made.owner.exchanges("r1")
            assert (kept["error_category"], kept["request"]) == ("cancelled", {"n": 1})

    run_virtual(scenario())


def test_while_the_owner_is_away_it_is_buffered_and_written_when_it_is_back() -> None:
    async def scenario() -> None:
        async with harness() as made:
            call = await made.client.rollout("r1").claim(dialect="chat", request={"n": 1}).__aenter__()
            made.owner.go_away()
            await settle()
            call.detach()
            await asyncio.sleep(3.0)
            assert call.outcome in (None, CallOutcome.BUFFERED)
            assert made.owner.exchanges("r1") == []
            made.owner.come_back()
            await asyncio.sleep(3.0)
            assert [kept["error_category"] for kept in made.owner.exchanges("r1")] == ["cancelled"]

    run_virtual(scenario())


def test_while_the_owner_is_away_and_the_buffer_full_it_is_dropped_and_counted() -> None:
    async def scenario() -> None:
        async with harness(client_buffer_bytes=1000) as made:
            rollout = made.client.rollout("r1")
            calls = [await rollout.claim(dialect="chat", request={"t": "x" * 800}).__aenter__() for _ in range(3)]
            made.owner.go_away()
            await settle()
            for call in calls:
                call.detach()
            await settle()
            assert [call.outcome for call in calls[1:]] == [CallOutcome.DROPPED, CallOutcome.DROPPED]
            made.owner.come_back()
            await asyncio.sleep(3.0)
            assert len(made.owner.exchanges("r1")) == 1
            assert made.owner.ledger.view("r1").reasons == {"dropped": 2}

    run_virtual(scenario())


def test_it_works_while_the_callers_loop_closes_and_after(owner: FakeOwner, client: CaptureClient) -> None:
    kept: list[ClaimHandle] = []

    async def claim() -> None:
        for number in range(2):
            kept.append(await client.rollout("r1").claim(dialect="chat", request={"n": number}).__aenter__())

    async def closing() -> None:
        try:
            yield_to = asyncio.get_running_loop().create_future()
            await yield_to
        finally:
            kept[0].detach()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(claim())
    left = loop.create_task(closing())
    loop.run_until_complete(asyncio.sleep(0))
    left.cancel()
    loop.run_until_complete(asyncio.gather(left, return_exceptions=True))
    loop.close()
    kept[1].detach("connection")
    assert client.sync.quiesce("r1", timeout_s=10.0)
    assert [one["error_category"] for one in owner.exchanges("r1")] == ["cancelled", "connection"]
    assert owner.ledger.view("r1").reasons is None


def test_it_works_from_another_thread_and_in_blocking_code(owner: FakeOwner, client: CaptureClient) -> None:
    with client.sync.rollout("r1").claim(dialect="chat", request={"n": 1}) as call:
        thread = threading.Thread(target=call.detach)
        thread.start()
        thread.join(10.0)
    assert client.sync.quiesce("r1", timeout_s=10.0)
    assert [one["error_category"] for one in owner.exchanges("r1")] == ["cancelled"]


def test_closing_the_client_waits_for_what_was_detached(owner: FakeOwner, client: CaptureClient) -> None:
    call = client.sync.rollout("r1").claim(dialect="chat", request={"n": 1}).__enter__()
    owner.deaf_to_batches = True
    came = threading.Event()
    owner.on_batch = came.set
    call.detach()
    assert came.wait(10.0)
    host = client.host
    assert isinstance(host, CoreHost)
    closed: list[bool] = []
    closing = threading.Thread(target=lambda: closed.append(client.sync.close(timeout_s=10.0)))
    closing.start()
    assert closed == []
    host.loop.call_soon_threadsafe(owner.answer_held)
    closing.join(10.0)
    assert closed == [True]
    assert call.outcome is CallOutcome.DURABLE
    # On a client that is closed it is lost, and does not raise.
    late = client.sync.rollout("r1").claim(dialect="chat")
    late.__enter__()
    late.detach()


def test_what_was_detached_in_a_run_that_captures_nothing_is_nothing() -> None:
    from gym_capture.reach.disabled import disabled_client

    with disabled_client().sync.rollout("r1").claim(dialect="chat") as call:
        call.detach()
    assert call.outcome is None


FORK = """
import os, sys
sys.path.insert(0, {root!r})
from gym_capture.client.client import CaptureClient
from gym_capture.client.host import CoreHost
from tests.client.fake_owner import FakeOwner

owner = FakeOwner()
client = CaptureClient(CoreHost(owner))
with client.sync.rollout("r1").claim(dialect="chat", request={{"n": 1}}) as call:
    pid = os.fork()
    if pid == 0:
        client.sync.stats()
        call.detach()
        assert call.outcome == "released", call.outcome
        assert client.sync.close() is True
        assert owner.ledger.outstanding_of("r1") == 1, "the parent's claim is as it was"
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    call.detach()
assert client.sync.quiesce("r1", timeout_s=10.0)
assert [one["request"] for one in owner.exchanges("r1")] == [{{"n": 1}}]
assert client.sync.close() is True
print("fine")
"""


def test_in_a_forked_child_the_claim_stays_the_parents() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORK.format(root=str(ROOT))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "fine", "")


def test_records_go_on_beside_it() -> None:
    async def scenario() -> None:
        async with harness() as made:
            rollout = made.client.rollout("r1")
            call = await rollout.claim(dialect="chat", model_call_id="a").__aenter__()
            call.detach()
            assert await rollout.record(exchange("b")) == 1
            assert [kept["model_call_id"] for kept in made.owner.exchanges("r1")] == ["a", "b"]

    run_virtual(scenario())
