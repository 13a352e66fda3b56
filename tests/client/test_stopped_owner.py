"""The owner was stopped: what calls are told that come after it, and what a client says that ends with exchanges."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from gym_capture.client.client import CaptureClient
from gym_capture.client.core_thread import CoreThread
from gym_capture.client.host import CoreHost
from gym_capture.client.leftover import Leftover, warn_of_leftovers
from gym_capture.client.options import ClientOptions
from gym_capture.client.outcome import CallOutcome
from gym_capture.client.sharded_host import ShardedHost
from gym_capture.errors import GymCaptureError, HandshakeRefused, OwnerNotFound, OwnerUnavailable
from tests.client.fake_owner import FakeOwner
from tests.client.harness import Harness, exchange, harness
from tests.client.virtual_time import run_virtual
from tests.ray_cluster import ROOT


def stopped() -> OwnerNotFound:
    """What a client hears of an owner that ended cleanly."""
    return OwnerNotFound("the directory has no live owner (it was stopped)", stopped=True)


def absent() -> OwnerNotFound:
    """What it hears of one that is nowhere, and nobody knows why."""
    return OwnerNotFound("there is no live actor")


def leave(owner: FakeOwner, error: GymCaptureError) -> None:
    """The owner goes, for that reason."""
    owner.away = error
    owner.cut()


def leave_in_core(client: CaptureClient, owner: FakeOwner, error: GymCaptureError) -> None:
    """The same where the client has a thread."""
    owner.away = error
    host = client.host
    if isinstance(host, CoreHost) and owner.links:
        host.loop.call_soon_threadsafe(owner.cut)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said above INFO."""
    return [record.getMessage() for record in caplog.records if record.levelname not in ("DEBUG", "INFO")]


async def make_call(made: Harness, rollout_id: str = "r1") -> CallOutcome | None:
    """One call from claim to commit."""
    async with made.client.rollout(rollout_id).claim(dialect="chat") as call:
        call.complete(request={}, response={})
    return call.outcome


# -- at the call ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait_s", [0.0, 60.0])
def test_a_call_after_this_clients_own_stop_says_that_it_stopped_the_owner(
    caplog: pytest.LogCaptureFixture, wait_s: float
) -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            await made.client.stop()
            leave(owner, stopped())
            await asyncio.sleep(wait_s)
            assert warnings(caplog) == []
            assert await make_call(made) == "buffered"
            [said] = warnings(caplog)
            assert said.startswith("the capture owner was stopped by this process: exchanges of rollout r1 are kept")
            assert "until it is back" not in said

    run_virtual(scenario())


@pytest.mark.parametrize("wait_s", [0.0, 60.0])
def test_a_call_after_another_process_stopped_the_owner_says_so(
    caplog: pytest.LogCaptureFixture, wait_s: float
) -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            assert await make_call(made) == "durable"
            leave(owner, stopped())
            await asyncio.sleep(wait_s)
            assert await make_call(made) == "buffered"
            [said] = [line for line in warnings(caplog) if "rollout r1" in line]
            assert said.startswith("the capture owner was stopped: exchanges of rollout r1 are kept")
            assert not [line for line in warnings(caplog) if "patience_s" in line]

    run_virtual(scenario())


def test_a_call_that_nobody_will_serve_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        leave(owner, absent())
        async with harness(owner) as made:
            assert await make_call(made) == "buffered"
            [said] = [line for line in warnings(caplog) if "rollout r1" in line]
            assert said.startswith("no capture owner can be used (there is no live actor): exchanges of rollout r1")

    run_virtual(scenario())


def test_a_call_that_was_under_way_at_the_stop_says_so_too(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            async with made.client.rollout("r1").claim(dialect="chat") as call:
                await made.client.stop()
                leave(owner, stopped())
                await asyncio.sleep(60.0)
                call.complete(request={}, response={})
            assert call.outcome == "buffered"
            [said] = warnings(caplog)
            assert said.startswith("the capture owner was stopped by this process: exchanges of rollout r1")

    run_virtual(scenario())


def test_an_absence_is_said_to_later_calls_too_not_only_to_the_first(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.go_away()
        async with harness(owner, patience_s=10.0) as made:
            assert await make_call(made) == "buffered"
            await asyncio.sleep(100.0)
            assert await make_call(made, "r2") == "buffered"
            first, second = [line for line in warnings(caplog) if "longer than patience_s" in line]
            assert ("rollout r1" in first, "rollout r2" in second) == (True, True)

    run_virtual(scenario())


# -- nothing waits --------------------------------------------------------------------------------------------------


def test_a_clean_stop_is_no_news_to_a_client_with_nothing_open_and_nothing_unsent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            assert await make_call(made) == "durable"
            leave(owner, stopped())
            await asyncio.sleep(300.0)
            assert warnings(caplog) == []
            assert caplog.text.count("the capture owner has ended: ") in range(1, 7)

    run_virtual(scenario())


@pytest.mark.parametrize("waiting", ["claim", "exchange"])
def test_it_is_where_something_waits(caplog: pytest.LogCaptureFixture, waiting: str) -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            call = made.client.rollout("r1").claim(dialect="chat")
            task = None
            if waiting == "claim":
                await call.__aenter__()
            else:
                owner.deaf_to_batches = True
                task = asyncio.create_task(made.client.record("r1", exchange()))
                await asyncio.sleep(1.0)
            leave(owner, stopped())
            await asyncio.sleep(30.0)
            assert [line for line in warnings(caplog) if line.startswith("the capture owner cannot be used: ")]
            if task is not None:
                with pytest.raises(OwnerUnavailable):
                    await task

    run_virtual(scenario())


def test_an_owner_that_is_gone_without_having_been_stopped_is_news(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            assert await make_call(made) == "durable"
            leave(owner, absent())
            await asyncio.sleep(30.0)
            assert warnings(caplog) == ["the capture owner cannot be used: there is no live actor"]

    run_virtual(scenario())


def test_an_owner_of_another_run_is_news_and_what_is_lost_by_it_does_not_pass_for_flushed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner, patience_s=1.0) as made:
            assert await make_call(made) == "durable"
            owner.go_away()
            assert await make_call(made) == "buffered"
            owner.run = "0" * 31 + "2"
            owner.come_back()
            await asyncio.sleep(30.0)
            with pytest.raises(HandshakeRefused):
                await made.client.stats()
            assert await made.client.close() is False
            assert [line for line in warnings(caplog) if line.startswith("the capture owner cannot be used: ")]
            assert [line for line in warnings(caplog) if line.startswith(f"1 {LOST}")]

    run_virtual(scenario())


# -- the end --------------------------------------------------------------------------------------------------------

LOST = "exchange(s) were not acknowledged by a capture owner and are lost with this client: "


def test_closing_tells_once_how_much_is_lost_of_which_rollouts(caplog: pytest.LogCaptureFixture) -> None:
    owner = FakeOwner()
    client = CaptureClient(CoreHost(owner, ClientOptions(patience_s=0.2)))
    client.sync.stop()
    leave_in_core(client, owner, stopped())
    for rollout_id, calls in {"a": 3, "b": 1, "c": 2, "d": 1, "e": 1}.items():
        for _ in range(calls):
            with client.sync.rollout(rollout_id).claim(dialect="chat") as call:
                call.complete(request={}, response={})
            assert call.outcome == "buffered"
    assert client.sync.close(timeout_s=0.1) is False
    [said] = [line for line in warnings(caplog) if LOST in line]
    assert said.startswith(f"8 {LOST}3 of rollout a, 2 of rollout c, 1 of rollout b and 2 of 2 more rollouts. ")
    assert "Start an owner before calls are made and stop it after the last one" in said
    client.sync.close(timeout_s=0.1)
    assert len([line for line in warnings(caplog) if LOST in line]) == 1


async def test_leaving_an_async_client_tells_it_too(caplog: pytest.LogCaptureFixture) -> None:
    owner = FakeOwner()
    async with CaptureClient(CoreHost(owner, ClientOptions(patience_s=0.2, drain_timeout_s=0.1))) as client:
        leave_in_core(client, owner, stopped())
        async with client.rollout("r1").claim(dialect="chat") as call:
            call.complete(request={}, response={})
        assert call.outcome == "buffered"
    assert [line for line in warnings(caplog) if line.startswith(f"1 {LOST}1 of rollout r1. ")]


def test_a_client_of_several_shards_tells_it_once(caplog: pytest.LogCaptureFixture) -> None:
    owners, thread = [FakeOwner(), FakeOwner()], CoreThread()
    hosts = [CoreHost(owner, ClientOptions(patience_s=0.2), thread=thread) for owner in owners]
    client = CaptureClient(ShardedHost(hosts))
    for owner in owners:
        owner.away = stopped()
    for number in range(20):
        with client.sync.rollout(f"r{number}").claim(dialect="chat") as call:
            call.complete(request={}, response={})
    assert all(host.core_stats()["unanswered"] for host in hosts)
    assert client.sync.close(timeout_s=0.1) is False
    [said] = [line for line in warnings(caplog) if LOST in line]
    assert said.startswith(f"20 {LOST}")


def test_a_client_that_came_to_rest_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    client = CaptureClient(CoreHost(FakeOwner()))
    client.sync.record("r1", exchange())
    assert client.sync.close() is True
    assert warnings(caplog) == []


def test_what_had_been_sent_may_be_on_disk_and_what_is_no_exchange_is_told_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warn_of_leftovers([Leftover({"a": 2}, sent=1, others=1), Leftover({"b": 1}, sent=0, others=0)])
    warn_of_leftovers([Leftover({}, sent=0, others=2)])
    warn_of_leftovers([Leftover({}, sent=0, others=0)])
    exchanges, others = warnings(caplog)
    assert exchanges.startswith(
        f"3 {LOST}2 of rollout a, 1 of rollout b (1 of them had been sent and may be on disk). "
    )
    assert others.startswith("capture did not come to rest: 2 claim(s), release(s), mark(s) or clear(s)")


EXIT = """
import sys
sys.path.insert(0, {root!r})
from gym_capture.client import host
from gym_capture.client.client import CaptureClient
from gym_capture.client.host import CoreHost
from gym_capture.client.options import ClientOptions
from gym_capture.errors import OwnerNotFound
from tests.client.fake_owner import FakeOwner

host._EXIT_FLUSH_S = 0.2
owner = FakeOwner()
client = CaptureClient(CoreHost(owner, ClientOptions(patience_s=0.2)))
client.sync.stop()
owner.away = OwnerNotFound("it was stopped", stopped=True)
client.host.loop.call_soon_threadsafe(owner.cut)
with client.sync.rollout("r1").claim(dialect="chat") as call:
    call.complete(request={{}}, response={{}})
assert call.outcome == "buffered", call.outcome
"""


def test_a_process_that_ends_with_exchanges_says_so_without_any_logging_set_up() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXIT.format(root=str(ROOT))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    at_call, at_exit = done.stderr.splitlines()
    assert at_call.startswith("the capture owner was stopped by this process: ")
    assert at_exit.startswith(f"1 {LOST}1 of rollout r1. ")
