"""Acknowledged means: appended, synced, and still the owner after that. In this order, and never before."""

from __future__ import annotations

import asyncio

from gym_capture.model.messages import Answers, Batch, decode_from_client, decode_from_owner, encode_message
from gym_capture.model.rows import ClaimRow, Outcome, Result
from gym_capture.service.settings import OwnerSettings
from gym_capture.testing.faulty_files import FaultyDisk
from gym_capture.testing.in_process import CUT, Way
from tests.service.harness import assert_acknowledged_is_kept, calls_of, on_disk, serving, turns
from tests.service.raw_client import RawClient, commit_row, sealed


async def test_the_answer_follows_append_then_sync_then_owner_check() -> None:
    async with serving() as bench:
        client = await bench.client()
        points = bench.files.points

        def note_answers(way: Way, head: bytes, body: bytes) -> float:
            if way is Way.TO_CLIENT and isinstance(decode_from_owner(head), Answers):
                points.append("answer")
            return 0.0

        bench.transport.policy = note_answers
        del points[:]
        await client.claim("r")
        await client.commit("r", "c1", 1)
        steps = [point for point in points if point.startswith("after") or point == "answer"]
        once = ["after append", "after sync", "after owner-check", "answer"]
        assert steps == once + once


async def test_nothing_is_answered_while_the_group_is_under_way() -> None:
    async with serving() as bench:
        client = await bench.client()
        bench.executor.hold()
        answer = client.commit("r", "c1")
        await turns()
        assert not answer.done()
        assert bench.service.ledger.outstanding == 1
        assert bench.service.connections.buffered > 0
        bench.executor.let_go()
        assert await answer == [Result(Outcome.APPLIED, 0, 0)]
        assert bench.service.connections.buffered == 0
        assert bench.service.ledger.outstanding == 0


async def test_all_that_queued_up_during_a_sync_becomes_one_group() -> None:
    async with serving() as bench:
        client = await bench.client()
        counters = bench.service.tenure.counters
        bench.executor.hold()
        answers = [client.commit("r", "first")]
        await turns()
        answers += [client.commit("r", f"c{number}") for number in range(50)]
        await turns(100)
        bench.executor.let_go()
        await asyncio.gather(*answers)
        assert (counters.groups, counters.frames) == (2, 51)


async def test_a_group_has_a_bound_and_one_frame_always_fits() -> None:
    async with serving(settings=OwnerSettings(group_bytes=1)) as bench:
        client = await bench.client()
        answers = [client.commit("r", f"c{number}") for number in range(5)]
        await asyncio.gather(*answers)
        assert bench.service.tenure.counters.groups == 5


async def test_a_batch_sent_again_is_answered_as_the_first_time_and_no_sooner_than_that_is_durable() -> None:
    async with serving() as bench:
        client = await bench.client()
        bench.executor.hold()
        exchange = sealed("c1")
        row, body = commit_row("r", exchange), b"".join(exchange.body)
        answer = client.batch([row], body)
        await turns()
        for link in list(bench.transport.links):
            link.cut()
        await turns(50)
        assert bench.service.ledger.counts["repeated_batches"] == 1
        assert not answer.done()
        bench.executor.let_go()
        assert await answer == [Result(Outcome.APPLIED, 0, 0)]
        assert calls_of(bench.service.ledger, "r") == ["c1"]


async def test_an_answer_that_was_lost_on_the_way_is_told_again() -> None:
    async with serving() as bench:
        client = await bench.client()
        cuts: list[int] = []

        def lose_first_answer(way: Way, head: bytes, body: bytes) -> float:
            if way is Way.TO_CLIENT and not cuts and isinstance(decode_from_owner(head), Answers):
                cuts.append(1)
                return CUT
            return 0.0

        bench.transport.policy = lose_first_answer
        assert await client.commit("r", "c1") == [Result(Outcome.APPLIED, 0, 0)]
        assert cuts == [1]
        assert bench.service.ledger.counts["commits"] == 1
        assert bench.service.ledger.counts["repeated_batches"] == 1


async def test_a_confirmed_batch_that_comes_again_has_no_answers_left() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.commit("r", "c1")
        await client.commit("r", "c2")
        link = client.link
        assert link is not None
        link.send(encode_message(Batch(1, 0, [ClaimRow("r", 7)])))
        await client.beat()
        assert client.answers_seen[-1] == Answers(1, None)
        assert bench.service.ledger.outstanding == 0


async def test_the_same_exchange_in_two_batches_is_one_call_with_one_index() -> None:
    async with serving() as bench:
        client = await bench.client()
        assert await client.commit("r", "c1", text="a") == [Result(Outcome.APPLIED, 0, 0)]
        assert await client.commit("r", "c2", text="b") == [Result(Outcome.APPLIED, 0, 1)]
        assert await client.commit("r", "c1", text="a") == [Result(Outcome.DUPLICATE, 0, 0)]
        assert await client.commit("r", "c1", text="other") == [Result(Outcome.CONFLICT, 0, -1)]
        assert bench.service.stats("r")["rollout"]["reasons"] == {"refused": 1}


async def test_answers_survive_a_restart_of_the_owner() -> None:
    disk = FaultyDisk()
    async with serving(disk) as first:
        client = await first.client()
        await client.commit("r", "c1")
    async with serving(disk) as second:
        again = RawClient(second.transport, client.id)
        exchange = sealed("c1")
        second.clients.append(await again.start())
        answer = again.batch([commit_row("r", exchange)], b"".join(exchange.body))
        assert await answer == [Result(Outcome.APPLIED, 0, 0)]
        assert second.service.ledger.counts["repeated_batches"] == 1
        assert again.welcomes[0].epoch == client.welcomes[0].epoch + 1


async def test_what_was_acknowledged_outlives_the_host() -> None:
    disk = FaultyDisk()
    acknowledged: dict[str, list[str]] = {}
    async with serving(disk) as bench:
        clients = [await bench.client(f"client-{number}") for number in range(4)]
        for turn in range(10):
            names = [(client, f"r{turn % 3}", f"{turn}-{index}") for index, client in enumerate(clients)]
            await asyncio.gather(*(client.commit(rollout, call) for client, rollout, call in names))
            for _, rollout, call in names:
                acknowledged.setdefault(rollout, []).append(call)
        for client in clients:
            await client.close()
    assert_acknowledged_is_kept(disk, acknowledged)


async def test_what_was_acknowledged_outlives_the_host_that_fails_in_the_middle() -> None:
    disk = FaultyDisk()
    async with serving(disk) as bench:
        client = await bench.client()
        await client.commit("r", "kept")
        bench.executor.hold()
        hanging = client.commit("r", "under way")
        await turns()
        assert not hanging.done()
        assert_acknowledged_is_kept(disk, {"r": ["kept"]})
        assert calls_of(on_disk(disk), "r") == ["kept"]


async def test_a_batch_holds_what_the_client_sent_and_its_body_as_it_was() -> None:
    async with serving() as bench:
        client = await bench.client()
        seen: list[tuple[Batch, bytes]] = []

        def keep(way: Way, head: bytes, body: bytes) -> float:
            if way is Way.TO_OWNER:
                message = decode_from_client(head)
                if isinstance(message, Batch):
                    seen.append((message, body))
            return 0.0

        bench.transport.policy = keep
        await client.commit("r", "c1", text="the very bytes")
        entry = bench.service.ledger.view("r").entries[0]
        log = bench.disk.content(f"segment-{entry.ref.epoch:08d}-{entry.ref.segment:08d}.log")
        body = seen[0][1]
        assert log[entry.ref.body_offset : entry.ref.body_offset + len(body)] == body
