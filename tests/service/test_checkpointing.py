"""An owner that writes checkpoints and lets finished rollouts leave its memory is the owner that does not."""

from __future__ import annotations

import asyncio
import errno
from random import Random

import pytest

from gym_capture.errors import Fenced
from gym_capture.model.rows import Outcome
from gym_capture.service import rollout_requests
from gym_capture.service.settings import OwnerSettings
from gym_capture.service.state import State
from gym_capture.storage import names
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import FaultyDisk
from tests.service.harness import Bench, eventually, merged_calls, serving, turns
from tests.service.raw_client import RawClient

SETTINGS = OwnerSettings(checkpoint_rows=4, segment_bytes=1 << 20, reopen_first_s=0.001, reopen_max_s=0.01)


async def archived(bench: Bench, rollout: str = "r", *, also: str = "other") -> RawClient:
    """A client of an owner that let a merged rollout with two exchanges leave its memory."""
    client = await bench.client()
    await client.commit(rollout, "c0")
    await client.commit(rollout, "c1")
    assert merged_calls(await bench.service.merge(rollout)) == ["c0", "c1"]
    for number in range(4):
        await client.commit(also, f"{also}{number}")
    await eventually(lambda: rollout in bench.service.ledger.archived, "the eviction")
    assert rollout not in bench.service.ledger.rollouts
    return client


async def test_a_late_commit_of_a_rollout_that_left_is_answered_and_merged_like_any_other() -> None:
    disk = FaultyDisk()
    async with serving(disk, settings=SETTINGS) as bench:
        client = await archived(bench)
        late = await client.commit("r", "c2")
        again = await client.commit("r", "c0")
        assert late is not None
        assert again is not None
        assert (late[0].outcome, late[0].call_index) == (Outcome.APPLIED, 2)
        assert (again[0].outcome, again[0].call_index) == (Outcome.DUPLICATE, 0)
        assert bench.service.stats()["late"] == 1
        assert merged_calls(await bench.service.merge("r")) == ["c0", "c1", "c2"]
    assert [each["model_call_id"] for each in CaptureStore(disk.view()).read("r")] == ["c0", "c1", "c2"]


async def test_merge_stats_read_and_clear_bring_a_rollout_back() -> None:
    for ask in ("merge", "stats", "read", "clear"):
        async with serving(settings=SETTINGS) as bench:
            await archived(bench)
            stats = bench.service.stats()
            assert (stats["rollouts"], stats["rollouts_in_memory"]) == (2, 1)
            if ask == "merge":
                assert merged_calls(await bench.service.merge("r")) == ["c0", "c1"]
            elif ask == "stats":
                assert (await bench.service.stats_of("r"))["rollout"]["calls"] == 2
            elif ask == "read":
                reply, _ = await bench.service.read_parts("r", 0, [0, 1])
                assert [entry.call_index for entry in reply.entries] == [0, 1]
            else:
                assert await bench.service.clear(["r"], "x") == [1]
                with pytest.raises(Fenced):
                    await bench.service.merge("r", 0)
            assert "r" in bench.service.ledger.rollouts


async def test_a_clear_of_many_that_left_is_one_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_requests, "_CLEARED_AT_ONCE", 2)
    disk = FaultyDisk()
    rollouts = [f"r{number}" for number in range(5)]
    async with serving(disk, settings=SETTINGS) as bench:
        client = await bench.client()
        for rollout in rollouts:
            await client.commit(rollout, "c0")
            await bench.service.merge(rollout)
        for number in range(4):
            await client.commit("other", f"c{number}")
        await eventually(lambda: all(rollout in bench.service.ledger.archived for rollout in rollouts))
        assert await bench.service.clear(rollouts, "x") == [1] * 5
        assert await bench.service.clear(rollouts, "x") == [1] * 5
        assert await bench.service.clear([], "y") == []
        assert await bench.service.clear(rollouts[:3], "z") == [2] * 3
    store = CaptureStore(disk.view())
    assert [store.generation(rollout) for rollout in rollouts] == [2, 2, 2, 1, 1]
    assert store.rollout_ids() == ["other"]


async def test_quiescence_of_a_rollout_that_left_needs_no_page() -> None:
    async with serving(settings=SETTINGS) as bench:
        await archived(bench)
        assert await bench.service.quiesce("r", 0.0)
        assert "r" in bench.service.ledger.archived


async def test_what_a_client_sends_behind_a_batch_that_waits_for_its_rollout_keeps_its_order() -> None:
    async with serving(settings=SETTINGS) as bench:
        client = await archived(bench)
        bench.executor.hold()
        answers = [
            client.commit("r", "c2"),
            client.commit("other", "late"),
            client.commit("r", "c3"),
            client.commit("new", "n0"),
        ]
        await turns()
        assert "new" not in bench.service.ledger.rollouts
        bench.executor.let_go()
        results = [result for answer in await asyncio.gather(*answers) for result in answer or []]
        assert [(each.outcome, each.call_index) for each in results] == [(0, 2), (0, 4), (0, 3), (0, 0)]
        batches = [answered.batch for answered in client.answers_seen]
        assert batches == sorted(batches)


async def test_a_client_that_goes_while_its_batch_waits_leaves_nothing_behind() -> None:
    async with serving(settings=SETTINGS) as bench:
        client = await archived(bench)
        bench.executor.hold()
        answer = client.commit("r", "c2")
        await turns()
        await client.close()
        bench.executor.let_go()
        await turns()
        answer.cancel()
        assert merged_calls(await bench.service.merge("r")) == ["c0", "c1"]


async def test_a_checkpoint_that_cannot_be_written_costs_nothing_and_the_next_holds_it_all() -> None:
    disk = FaultyDisk()
    async with serving(disk, settings=SETTINGS) as bench:
        bench.files.fail_at("before checkpoint-write", errno.ENOSPC)
        bench.files.fail_at("after checkpoint-link", errno.EIO)
        client = await bench.client()
        for number in range(16):
            await client.commit("r", f"c{number}")
        await bench.service.merge("r")
        counts = bench.service.stats()["checkpoints"]
        assert counts["failed_checkpoints"] == 2
        assert counts["checkpoints"] >= 1
        assert bench.service.tenure.reopened == 0
    store = CaptureStore(disk.view())
    assert store.report.checkpoint
    assert [each["model_call_id"] for each in store.read("r")] == [f"c{number}" for number in range(16)]


async def test_a_damaged_page_makes_the_owner_read_its_log_and_no_answer_differs() -> None:
    disk = FaultyDisk()
    async with serving(disk, settings=SETTINGS) as bench:
        client = await archived(bench)
        for name in names.checkpoints_in(disk.view().names()):
            for offset in range(40, 200, 8):
                disk.flip_bit(name.file, 8 * offset)
        late = await client.commit("r", "c2")
        assert late is not None
        assert (late[0].outcome, late[0].call_index) == (Outcome.APPLIED, 2)
        assert bench.service.tenure.reopened == 1
        assert bench.service.stats()["checkpoints"]["damaged_pages"] == 1
        assert bench.service.state is State.SERVING
        assert merged_calls(await bench.service.merge("r")) == ["c0", "c1", "c2"]


async def test_the_next_owner_opens_behind_the_last_checkpoint() -> None:
    disk = FaultyDisk()
    async with serving(disk, settings=SETTINGS) as bench:
        client = await archived(bench)
        claim = await client.claim("open")
    async with serving(disk, settings=SETTINGS, pid=2) as bench:
        assert bench.service.report is not None
        assert bench.service.report.checkpoint.startswith("index-00000001-")
        assert (bench.service.ledger.outstanding, claim) == (1, 1)
        assert "r" in bench.service.ledger.archived
        assert merged_calls(await bench.service.merge("r")) == ["c0", "c1"]
        assert merged_calls(await bench.service.merge("other")) == [f"other{number}" for number in range(4)]


async def test_a_long_log_without_checkpoints_gets_one_before_it_is_served() -> None:
    disk = FaultyDisk()
    async with serving(disk) as bench:
        client = await bench.client()
        for number in range(12):
            await client.commit(f"r{number % 5}", f"c{number}")
        assert names.checkpoints_in(disk.view().names()) == []
    async with serving(disk, settings=SETTINGS, pid=2) as bench:
        assert [name.file for name in names.checkpoints_in(disk.view().names())] == ["index-00000002-00000000"]
        assert bench.service.ledger.unsaved_rows == 0


async def test_a_stop_waits_for_the_checkpoint_that_is_being_written() -> None:
    disk = FaultyDisk()
    async with serving(disk, settings=SETTINGS) as bench:
        client = await bench.client()
        answers = [client.commit("r", f"c{number}") for number in range(4)]
        await asyncio.gather(*answers)
        await bench.service.stop()
        assert not [name for name in disk.view().names() if name.endswith(".tmp")]


@pytest.mark.parametrize("seed", range(4))
async def test_any_work_with_a_checkpoint_after_each_few_rows_ends_as_its_log_says(seed: int) -> None:
    random = Random(seed)
    disk = FaultyDisk()
    expected: dict[str, list[str]] = {}
    for pid in range(3):
        settings = OwnerSettings(checkpoint_rows=random.choice([1, 3, 7]), segment_bytes=random.choice([2000, 1 << 20]))
        async with serving(disk, settings=settings, pid=pid + 1) as bench:
            clients = [await bench.client(f"client{pid}{number}") for number in range(2)]
            for step in range(60):
                rollout = f"r{random.randrange(6)}"
                client = random.choice(clients)
                act = random.choice(["commit", "commit", "commit", "claim", "merge", "clear"])
                if act == "commit":
                    call = f"{pid}-{step}"
                    expected.setdefault(rollout, []).append(call)
                    await client.commit(rollout, call)
                elif act == "claim":
                    number = await client.claim(rollout)
                    call = f"{pid}-{step}"
                    expected.setdefault(rollout, []).append(call)
                    await client.commit(rollout, call, number)
                elif act == "merge":
                    assert merged_calls(await bench.service.merge(rollout)) == expected.get(rollout, [])
                elif random.random() < 0.3:
                    await bench.service.clear([rollout], f"{pid}{step}")
                    expected[rollout] = []
            assert bench.service.stats()["checkpoints"]["checkpoints"] > 3
            assert bench.service.stats()["checkpoints"].get("damaged_pages", 0) == 0
    store = CaptureStore(disk.view())
    assert store.report.checkpoint
    for rollout, calls in expected.items():
        assert [each["model_call_id"] for each in store.read(rollout)] == calls
    assert not store.report.damaged
