"""Leases: the silence of a holder ends its claims, the owner's own absence does not."""

from __future__ import annotations

import asyncio

import pytest

from gym_capture.errors import OwnerUnavailable, Superseded
from gym_capture.model.messages import PREFIX_BYTES, Batch, Quiesce, encode_message
from gym_capture.model.rows import ClaimRow, Outcome, Result
from gym_capture.service.serving_clock import ServingClock
from gym_capture.service.settings import OwnerSettings
from gym_capture.testing.faulty_files import FaultyDisk
from gym_capture.testing.manual_clock import ManualClock
from tests.service.harness import Bench, eventually, serving, turns

LEASE_TICKS = 12  # of 0.5 s


def reasons(bench: Bench, rollout: str = "r") -> dict[str, int] | None:
    return bench.service.ledger.view(rollout).reasons


async def test_a_silent_holder_loses_its_claims_one_tick_after_its_lease() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.claim("r")
        asked = client.call(Quiesce("r", 1000.0))
        await turns()
        bench.tick(LEASE_TICKS)
        assert bench.service.ledger.outstanding == 1
        bench.tick()
        assert (await asked)[0] is True
        assert reasons(bench) == {"lost": 1}
        assert bench.service.stats()["counts"]["expired_clients"] == 1


async def test_a_beat_renews_the_lease() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.claim("r")
        for _ in range(5):
            bench.tick(LEASE_TICKS - 2)
            await client.beat()
        assert bench.service.ledger.outstanding == 1
        assert reasons(bench) is None


async def test_a_frozen_owner_expires_nobody_for_the_time_it_was_away() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.claim("r")
        bench.tick(LEASE_TICKS - 4)
        bench.clock.advance(3600.0)
        bench.service.tick()
        assert bench.service.ledger.outstanding == 1
        bench.tick()
        assert bench.service.ledger.outstanding == 1
        await client.beat()
        bench.tick(LEASE_TICKS)
        assert reasons(bench) is None


async def test_an_owner_that_cannot_look_whether_it_still_is_the_owner_leaves_a_beat_unanswered_until_it_can() -> None:
    async with serving() as bench:
        client = await bench.client()
        looked, hanging = asyncio.Event(), asyncio.Event()
        check = bench.service.tenure.check

        async def hang() -> bool:
            looked.set()
            await hanging.wait()
            return await check()

        bench.service.tenure.check = hang  # type: ignore[method-assign]  # a disk that does not answer
        bench.clock.advance(bench.service.settings.lease_s / 3)
        await client.beat()
        assert not looked.is_set(), "it has looked a moment ago"
        bench.clock.advance(0.1)
        first, second = asyncio.ensure_future(client.beat()), asyncio.ensure_future(client.beat())
        await looked.wait()
        await turns()
        assert not first.done()
        assert not second.done()
        hanging.set()
        await asyncio.gather(first, second)
        await client.beat()
        assert bench.service.stats()["counts"].get("faults", 0) == 0


async def test_an_overtaken_owner_that_could_not_look_welcomes_nobody_and_leads_nobody_to_it() -> None:
    disk = FaultyDisk()
    async with serving(disk, settings=OwnerSettings(lease_s=0.06, tick_s=0.02)) as bench:
        await bench.service.be_sure()
        async with serving(disk, "actor-2", takeover=True):
            bench.clock.advance(bench.service.settings.lease_s)
            bench.executor.hold()
            coming = asyncio.ensure_future(bench.client("coming", steady=False))
            with pytest.raises(OwnerUnavailable, match="its disk does not answer"):
                await bench.service.be_sure()
            bench.executor.let_go()
            await eventually(lambda: bench.left == ["superseded"])
            assert not coming.done() or coming.exception() is not None
            with pytest.raises(Superseded):
                await bench.service.be_sure()
            coming.cancel()


async def test_what_was_seen_before_the_owner_slept_for_a_lease_is_looked_at_again() -> None:
    async with serving() as bench:
        client = await bench.client()
        looked: list[bool] = []
        check = bench.service.tenure.check

        async def slept() -> bool:
            looked.append(await check())
            if len(looked) == 1:
                bench.clock.advance(bench.service.settings.lease_s + 0.1)
            return looked[-1]

        bench.service.tenure.check = slept  # type: ignore[method-assign]  # frozen between the look and its use
        bench.clock.advance(bench.service.settings.lease_s / 3 + 0.1)
        await client.beat()
        assert looked == [True, True]


async def test_nobody_who_comes_again_is_expired_while_the_disk_does_not_answer_and_the_dead_are() -> None:
    async with serving() as bench:
        client, dead = await bench.client(), await bench.client("dead", steady=False)
        await client.claim("r")
        await dead.claim("d")
        bench.clock.advance(bench.service.settings.lease_s / 3 + 0.1)
        bench.executor.hold()
        await dead.close()
        assert client.link is not None
        client.link.close()  # nothing is heard any more: it comes again, and is not welcomed
        await turns()
        bench.tick(4 * LEASE_TICKS)
        bench.executor.let_go()
        await eventually(lambda: len(client.welcomes) == 2)
        assert (reasons(bench), bench.service.ledger.outstanding) == (None, 1)
        for _ in range(LEASE_TICKS + 2):
            await client.beat()
            bench.tick()
        assert (reasons(bench), reasons(bench, "d")) == (None, {"lost": 1})


async def test_what_had_arrived_before_the_lease_was_looked_at_counts() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.claim("r")
        bench.tick(LEASE_TICKS)  # the lease has ended, and is still to be looked at once more
        await client.beat()
        bench.tick(2)
        assert reasons(bench) is None


async def test_a_client_in_the_middle_of_a_long_message_is_alive() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.claim("r")
        session = bench.service.connections.sessions[client.id]
        for _ in range(3 * LEASE_TICKS):
            session.heard = True
            bench.tick()
        assert reasons(bench) is None


async def test_a_client_that_the_owner_does_not_read_is_not_silent() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.claim("r")
        bench.service.connections.sessions[client.id].paused = True
        bench.tick(3 * LEASE_TICKS)
        assert reasons(bench) is None


async def test_the_late_exchange_of_a_lost_claim_is_kept_and_retracts_the_loss() -> None:
    async with serving() as bench:
        client = await bench.client()
        claim = await client.claim("r")
        bench.tick(LEASE_TICKS + 1)
        await turns()
        assert reasons(bench) == {"lost": 1}
        assert await client.commit("r", "c1", claim) == [Result(Outcome.APPLIED, 0, 0)]
        assert reasons(bench) is None


async def test_a_client_that_comes_back_without_a_claim_has_lost_it() -> None:
    async with serving() as bench:
        client = await bench.client()
        kept = await client.claim("r")
        forgotten = await client.claim("r")
        client.open_claims.discard(forgotten)
        bench.transport.cut_all()
        await turns(50)
        assert len(client.welcomes) == 2
        assert reasons(bench) == {"lost": 1}
        assert [claim.number for claim in bench.service.ledger.open_claims()] == [kept]


async def test_a_goodbye_loses_what_is_still_held_and_a_cut_does_not() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.claim("r")
        bench.transport.cut_all()
        await turns(50)
        assert bench.service.ledger.outstanding == 1
        client.goodbye()
        await turns(50)
        assert bench.service.ledger.outstanding == 0
        assert reasons(bench) == {"lost": 1}
        assert bench.service.connections.sessions == {}


async def test_losses_are_in_the_log() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.claim("r")
        bench.tick(LEASE_TICKS + 1)
        await turns()
        await client.close()
        await bench.service.stop()
        async with serving(bench.disk) as second:
            assert reasons(second) == {"lost": 1}
            assert second.service.ledger.outstanding == 0


async def test_after_a_restart_everyone_has_two_leases() -> None:
    """A client waits one before it leaves an owner that has fallen silent, and has to find the successor after that."""
    async with serving() as bench:
        client = await bench.client()
        await client.claim("r")
        await client.close()
        await bench.service.stop()
        async with serving(bench.disk) as second:
            second.tick(2 * LEASE_TICKS)
            assert second.service.ledger.outstanding == 1
            second.tick()
            await turns()
            assert second.service.ledger.outstanding == 0
            assert reasons(second) == {"lost": 1}


async def test_unread_input_of_a_replaced_connection_is_void() -> None:
    async with serving() as bench:
        first = await bench.client("same", steady=False)
        earlier = bench.service.connections.sessions[first.id]
        second = await bench.client("same")
        assert earlier.ended
        head = bytes(encode_message(Batch(1, 0, [ClaimRow("r", 1)]))[0])[PREFIX_BYTES:]
        earlier.receive(head, b"")
        await second.beat()
        assert bench.service.ledger.counts["claims"] == 0
        assert bench.service.connections.counts["replaced_connections"] == 1
        assert bench.service.connections.sessions[second.id] is not earlier


def test_the_serving_clock_counts_two_ticks_at_most_for_any_absence() -> None:
    clock = ManualClock()
    serving_clock = ServingClock(clock, 0.5)
    clock.advance(0.5)
    assert serving_clock.tick() == 0.0
    clock.advance(100.0)
    assert serving_clock.now() == 1.5
    assert serving_clock.tick() == 0.5
    assert serving_clock.now() == 1.5
    clock.advance(0.25)
    assert serving_clock.now() == 1.75


async def test_the_connection_of_an_expired_client_is_closed_so_that_it_says_hello_again() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.claim("r")
        bench.tick(LEASE_TICKS + 1)
        await turns(50)
        assert len(client.welcomes) == 2
        assert bench.service.stats()["clients"] == {"known": 1, "live": 1, "connected": 1}


async def test_a_tick_that_fails_is_counted_and_the_next_one_comes() -> None:
    settings = OwnerSettings(tick_s=0.001)
    async with serving(settings=settings) as bench:
        ticks: list[int] = []
        twice = asyncio.Event()

        def stumble() -> None:
            ticks.append(1)
            if len(ticks) == 2:
                twice.set()
            raise ZeroDivisionError("planted")

        bench.service.tick = stumble  # type: ignore[method-assign]
        await twice.wait()
        assert bench.service.connections.counts["faults"] >= 1
