"""A write that failed: everything in memory is dropped, the next epoch taken, and the clients send again."""

from __future__ import annotations

import asyncio
import errno
from random import Random
from typing import Any

import pytest

from gym_capture.errors import OwnerUnavailable, Superseded
from gym_capture.model.messages import Hello, Quiesce, Refused, decode_from_owner, encode_message
from gym_capture.model.rows import Outcome, Result
from gym_capture.service.settings import OwnerSettings
from gym_capture.service.state import State
from gym_capture.testing import faulty_files
from gym_capture.testing.faulty_files import FaultyDisk
from gym_capture.testing.in_process import CUT, Way
from tests.service.harness import (
    assert_acknowledged_is_kept,
    calls_of,
    eventually,
    merged_calls,
    on_disk,
    serving,
    turns,
)

POINTS = ["before append", "after append", "before sync", "after sync", "before owner-check", "after owner-check"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("short_bytes", [0, 70])
async def test_a_failed_step_costs_an_epoch_and_no_exchange(point: str, short_bytes: int) -> None:
    disk = FaultyDisk()
    async with serving(disk) as bench:
        client = await bench.client()
        await client.commit("r", "before")
        bench.files.fail_at(point, short_bytes=short_bytes)
        answers = [client.commit("r", f"c{number}") for number in range(3)]
        results = [result for answer in await asyncio.gather(*answers) for result in answer or []]
        assert [result.call_index for result in results] == [1, 2, 3]
        assert all(result.outcome in (Outcome.APPLIED, Outcome.DUPLICATE) for result in results)
        assert [welcome.epoch for welcome in client.welcomes] == [1, 2]
        assert bench.service.tenure.reopened == 1
        assert "Input/output error" in (bench.service.stats()["last_failure"] or "")
        assert merged_calls(await bench.service.merge("r")) == ["before", "c0", "c1", "c2"]
    assert_acknowledged_is_kept(disk, {"r": ["before", "c0", "c1", "c2"]})


@pytest.mark.parametrize("point", ["before segment-create", "after segment-create", "before segment-directory-sync"])
async def test_a_segment_that_cannot_be_made_is_no_end(point: str) -> None:
    disk = FaultyDisk()
    async with serving(disk, settings=OwnerSettings(segment_bytes=1500, reopen_first_s=0.001)) as bench:
        client = await bench.client()
        bench.files.fail_at(point)
        expected = [f"c{number}" for number in range(10)]
        for call in expected:
            await client.commit("r", call)
        assert bench.service.tenure.reopened == 1
        assert merged_calls(await bench.service.merge("r")) == expected
    assert_acknowledged_is_kept(disk, {"r": expected})


async def test_a_file_that_cannot_be_closed_after_a_failed_sync_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        monkeypatch.undo()
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    disk = FaultyDisk()
    async with serving(disk) as bench:
        client = await bench.client()
        await client.commit("r", "c0")
        bench.files.fail_at("before sync")
        monkeypatch.setattr(faulty_files._FaultyAppendFile, "close", fails)
        assert await client.commit("r", "c1") == [Result(Outcome.APPLIED, 0, 1)]
        assert bench.service.tenure.reopened == 1
    assert_acknowledged_is_kept(disk, {"r": ["c0", "c1"]})


async def test_a_full_disk_refuses_until_there_is_space_again() -> None:
    disk = FaultyDisk()
    async with serving(disk) as bench:
        client = await bench.client()
        await client.commit("r", "c0")
        for point in ("before append", "before cut-append", "before epoch-write"):
            bench.files.fail_at(point, errno.ENOSPC, forever=True)
        answer = client.commit("r", "c1")
        await eventually(lambda: bench.service.state is State.REOPENING)
        await turns(50)
        assert not answer.done()
        stranger = await bench.transport.connect()
        stranger.send(encode_message(Hello(1, "test", stranger.token, "", b"s" * 16, [], "")))
        refusals = [decode_from_owner(head) for head, _ in await stranger.receive()]
        assert isinstance(refusals[0], Refused)
        assert refusals[0].code == "OwnerUnavailable"
        assert "No space left" in refusals[0].message
        bench.files.heal()
        assert await answer == [Result(Outcome.APPLIED, 0, 1)]
        assert bench.service.state is State.SERVING
        assert merged_calls(await bench.service.merge("r")) == ["c0", "c1"]
    assert_acknowledged_is_kept(disk, {"r": ["c0", "c1"]})


async def test_a_stop_while_the_directory_is_taken_anew_does_not_say_that_it_serves(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as bench:
        bench.service.tenure.fail(OSError(errno.EIO, "planted"))
        begun, taken = asyncio.Event(), asyncio.Event()
        take = bench.service._taking.take

        async def told(*arguments: Any) -> Any:
            begun.set()
            log = await take(*arguments)
            taken.set()
            return log

        monkeypatch.setattr(bench.service._taking, "take", told)
        await begun.wait()
        await bench.service.stop()
        assert bench.service.state is State.STOPPED
        assert taken.is_set(), "the epoch was on its way and is abandoned"
        assert bench.service.tenure.reopened == 0
        assert "serves again" not in caplog.text


async def test_direct_callers_wait_for_the_owner_and_give_up_at_a_bound() -> None:
    settings = OwnerSettings(reopen_wait_s=0.02, reopen_first_s=0.001, reopen_max_s=0.002)
    async with serving(settings=settings) as bench:
        client = await bench.client()
        await client.claim("r")
        waiting = asyncio.create_task(bench.service.quiesce("r", 1000.0))
        await turns()
        for point in ("before append", "before epoch-write"):
            bench.files.fail_at(point, forever=True)
        clearing = asyncio.create_task(bench.service.clear(["x"], "k"))
        with pytest.raises(OwnerUnavailable, match="takes the directory anew"):
            await bench.service.merge("r")
        with pytest.raises(OwnerUnavailable):
            await clearing
        bench.files.heal()
        await eventually(lambda: bench.service.state is State.SERVING)
        assert await bench.service.clear(["x"], "k") == [1]
        assert not waiting.done()
        await client.release("r", 1)
        assert await waiting is True


async def test_a_direct_merge_and_clear_survive_a_failed_group() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.commit("r", "c0")
        bench.files.fail_at("before sync")
        assert await bench.service.clear(["other"], "k") == [1]
        bench.files.fail_at("before sync")
        assert merged_calls(await bench.service.merge("r")) == ["c0"]
        assert bench.service.tenure.reopened == 2


async def test_claims_that_were_acknowledged_are_open_after_the_fail_over_and_end_as_ever() -> None:
    async with serving() as bench:
        client = await bench.client()
        claim = await client.claim("r")
        asked = client.call(Quiesce("r", 1000.0))
        bench.files.fail_at("before append")
        await client.commit("other", "c0")
        assert bench.service.ledger.outstanding_of("r") == 1
        assert not asked.done()
        await client.commit("r", "c1", claim)
        assert (await asked)[0] is True


async def test_a_quiescence_check_that_cannot_be_read_takes_the_directory_anew() -> None:
    async with serving() as bench:
        client = await bench.client()
        bench.files.fail_at("before owner-check")
        assert await bench.service.quiesce(None, 1000.0) is True
        assert bench.service.tenure.reopened == 1
        await client.commit("r", "c0")


async def test_an_owner_that_was_superseded_refuses_everything_and_leaves() -> None:
    disk = FaultyDisk()
    async with serving(disk) as old:
        client = await old.client(steady=False)
        await client.commit("r", "c0")
        async with serving(disk, "actor-2", takeover=True) as new:
            hanging = client.commit("r", "after")
            await eventually(lambda: bool(old.left))
            assert old.left == ["superseded"]
            assert not hanging.done()
            for refused in (old.service.merge("r"), old.service.clear(["r"], "k"), old.service.quiesce(None, 0.0)):
                with pytest.raises(Superseded):
                    await refused
            with pytest.raises(Superseded):
                await old.client("late", steady=False)
            assert merged_calls(await new.service.merge("r")) == ["c0"]
    assert_acknowledged_is_kept(disk, {"r": ["c0"]})


async def test_a_beat_finds_out_that_the_owner_was_superseded() -> None:
    disk = FaultyDisk()
    async with serving(disk) as old, serving(disk, "actor-2", takeover=True):
        assert await old.service.tenure.beat() is True
        assert old.left == ["superseded"]


async def test_an_owner_whose_write_failed_does_not_take_the_directory_from_another() -> None:
    disk = FaultyDisk()
    async with serving(disk, pid=1) as old:
        client = await old.client(steady=False)
        # The same actor, restarted in another process while this one was frozen.
        async with serving(disk, pid=2) as new:
            old.files.fail_at("before append")
            client.commit("r", "c0")
            await eventually(lambda: bool(old.left))
            assert old.left == ["superseded"]
            other = await new.client("other")
            assert await other.commit("r", "c1") == [Result(Outcome.APPLIED, 0, 0)]


async def test_a_stop_answers_what_was_received_and_seals_the_log() -> None:
    disk = FaultyDisk()
    async with serving(disk) as bench:
        client = await bench.client(steady=False)
        bench.executor.hold()
        answer = client.commit("r", "c0")
        await turns()
        stopping = asyncio.create_task(bench.service.stop())
        await turns()
        assert not stopping.done()
        bench.executor.let_go()
        await stopping
        await turns()
        assert await answer == [Result(Outcome.APPLIED, 0, 0)]
        assert bench.service.connections.sessions == {}
        for refused in (bench.service.merge("r"), bench.service.clear(["r"], "k"), bench.service.quiesce(None, 0.0)):
            with pytest.raises(OwnerUnavailable, match="stopped"):
                await refused
        with pytest.raises(OwnerUnavailable, match="stopped"):
            await bench.client("late", steady=False)
        assert bench.left == []
    assert disk.content("beat-00000001").startswith(b"stopped")
    assert calls_of(on_disk(disk), "r") == ["c0"]


async def test_a_stop_whose_last_group_fails_acknowledges_nothing_of_it() -> None:
    disk = FaultyDisk()
    async with serving(disk) as bench:
        client = await bench.client(steady=False)
        await client.commit("r", "c0")
        bench.executor.hold()
        answer = client.commit("r", "c1")
        await turns()
        bench.files.fail_at("before append", forever=True)
        stopping = asyncio.create_task(bench.service.stop())
        await turns()
        bench.executor.let_go()
        await stopping
        assert not answer.done()
        assert bench.service.state is State.STOPPED
    assert_acknowledged_is_kept(disk, {"r": ["c0"]})


@pytest.mark.parametrize("seed", range(12))
async def test_random_failures_and_cuts_lose_and_double_nothing(seed: int) -> None:
    rng = Random(seed)
    disk = FaultyDisk()
    acknowledged: dict[str, list[str]] = {}
    async with serving(disk, settings=OwnerSettings(segment_bytes=3000, reopen_first_s=0.0001)) as bench:

        def unsteady(way: Way, head: bytes, body: bytes) -> float:
            return CUT if rng.random() < 0.02 else 0.0

        bench.transport.policy = unsteady
        clients = [await bench.client(f"client-{number}") for number in range(3)]

        async def work(number: int) -> None:
            client = clients[number]
            for turn in range(15):
                rollout = f"r{rng.randrange(3)}"
                claim = await client.claim(rollout)
                call = f"{number}-{turn}"
                results = await client.commit(rollout, call, claim, text=call)
                assert results is None or results[0].outcome in (Outcome.APPLIED, Outcome.DUPLICATE)
                acknowledged.setdefault(rollout, []).append(call)
                if rng.random() < 0.15:
                    bench.files.fail_at(rng.choice(POINTS), rng.choice([errno.EIO, errno.ENOSPC]))

        await asyncio.gather(*(work(number) for number in range(3)))
        bench.transport.policy = lambda way, head, body: 0.0
        bench.files.heal()
        assert await bench.service.quiesce(None, 1000.0) is True
        for rollout, expected in acknowledged.items():
            reply = await bench.service.merge(rollout)
            assert sorted(merged_calls(reply)) == sorted(expected)
            assert [index for index, _ in reply.records] == list(range(len(expected)))
            assert reply.reasons is None
    assert_acknowledged_is_kept(disk, acknowledged)
