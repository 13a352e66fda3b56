"""Breaks planted on purpose: the checks of the other tests see each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gym_capture.model.codec import PendingFrame
from gym_capture.model.ledger import Ledger
from gym_capture.model.messages import Answers, decode_from_owner
from gym_capture.model.rows import CommitRow, Outcome, Result
from gym_capture.service.group_commit import Done, GroupCommit
from gym_capture.service.owned_log import OwnedLog
from gym_capture.service.waiters import Waiters
from gym_capture.testing.faulty_files import FaultyDisk
from gym_capture.testing.in_process import CUT, Way
from tests.service.harness import Bench, assert_acknowledged_is_kept, eventually, serving, turns

LIFE = ["after append", "after sync", "after owner-check", "answer"]


async def life_of_a_commit(bench: Bench) -> list[str]:
    """The steps that one commit takes, its answer included."""
    client = await bench.client()
    points = bench.files.points

    def note_answers(way: Way, head: bytes, body: bytes) -> float:
        if way is Way.TO_CLIENT and isinstance(decode_from_owner(head), Answers):
            points.append("answer")
        return 0.0

    bench.transport.policy = note_answers
    del points[:]
    await client.commit("r", "c1")
    await turns()
    return [point for point in points if point in LIFE]


async def acknowledge_one(disk: FaultyDisk) -> None:
    async with serving(disk) as bench:
        client = await bench.client()
        await client.commit("r", "c1")
        await client.close()
        assert_acknowledged_is_kept(disk, {"r": ["c1"]})


async def test_unbroken_the_checks_pass() -> None:
    await acknowledge_one(FaultyDisk())
    async with serving() as bench:
        assert await life_of_a_commit(bench) == LIFE


async def test_without_the_sync_an_acknowledged_call_is_found_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(self: OwnedLog, frames: Sequence[PendingFrame]) -> None:
        self.writer.append(frames)
        self.ownership.check()

    monkeypatch.setattr(OwnedLog, "commit", commit)
    with pytest.raises(AssertionError, match="acknowledged and lost"):
        await acknowledge_one(FaultyDisk())


async def test_an_answer_before_the_sync_is_seen_by_order_and_by_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = GroupCommit.submit

    def early(self: GroupCommit, frame: PendingFrame, done: Done | None = None) -> None:
        if done is not None:
            done(True)
        submit(self, frame)

    monkeypatch.setattr(GroupCommit, "submit", early)
    async with serving() as bench:
        steps = await life_of_a_commit(bench)
        assert steps != LIFE
        assert steps.index("answer") < steps.index("after sync")
    disk = FaultyDisk()
    async with serving(disk) as bench:
        client = await bench.client()
        bench.executor.hold()
        assert await client.commit("r", "c1") == [Result(Outcome.APPLIED, 0, 0)]
        with pytest.raises(AssertionError, match="acknowledged and lost"):
            assert_acknowledged_is_kept(disk, {"r": ["c1"]})


async def resend_one(bench: Bench) -> list[Result] | None:
    """A batch whose first answer is lost, so that it is sent twice."""
    client = await bench.client()
    cuts: list[int] = []

    def lose_first_answer(way: Way, head: bytes, body: bytes) -> float:
        if way is Way.TO_CLIENT and not cuts and isinstance(decode_from_owner(head), Answers):
            cuts.append(1)
            return CUT
        return 0.0

    bench.transport.policy = lose_first_answer
    return await client.commit("r", "c1")


async def test_without_knowing_batches_again_the_answer_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as bench:
        assert await resend_one(bench) == [Result(Outcome.APPLIED, 0, 0)]
    apply_batch = Ledger.apply_batch

    def forgetful(self: Ledger, client_id: bytes, *rest: Any) -> Any:
        known = self.clients.get(client_id)
        if known is not None:
            known.answers.clear()
        return apply_batch(self, client_id, *rest)

    monkeypatch.setattr(Ledger, "apply_batch", forgetful)
    async with serving() as bench:
        assert await resend_one(bench) != [Result(Outcome.APPLIED, 0, 0)]


async def test_without_knowing_calls_again_one_is_found_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: Ledger, client: Any, rollout: Any, row: CommitRow) -> None:
        row.call_index = rollout.next_index
        rollout.calls.pop(row.model_call_id, None)

    monkeypatch.setattr(Ledger, "_decide_commit", careless)
    async with serving() as bench:
        client = await bench.client()
        await client.commit("r", "c1")
        await client.commit("r", "c1")
        found = [entry.model_call_id for entry in bench.service.ledger.view("r").entries]
        assert found == ["c1", "c1"], "the break is not planted"
        reply = await bench.service.merge("r")
        assert len(reply.records) != 1


async def two_owners(disk: FaultyDisk) -> None:
    """The first owner writes on after the second has taken the directory."""
    async with serving(disk) as old:
        client = await old.client(steady=False)
        acknowledged = ["c1"]
        await client.commit("r", "c1")
        async with serving(disk, "actor-2", takeover=True):
            answer = client.commit("r", "c2")
            await eventually(lambda: answer.done() or bool(old.left))
            if answer.done():
                acknowledged.append("c2")
        await client.close()
        assert_acknowledged_is_kept(disk, {"r": acknowledged})


async def test_without_the_owner_check_a_fenced_owner_acknowledges_what_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await two_owners(FaultyDisk())

    def commit(self: OwnedLog, frames: Sequence[PendingFrame]) -> None:
        self.writer.append(frames)
        self.writer.sync()

    monkeypatch.setattr(OwnedLog, "commit", commit)
    with pytest.raises(AssertionError, match="acknowledged and lost"):
        await two_owners(FaultyDisk())


async def quiesce_while_closing(bench: Bench) -> bool:
    """Whether the run is called quiescent while a closing is on its way to disk."""
    client = await bench.client()
    claim = await client.claim("r")
    told: list[object] = []
    bench.service.waiters.add("r", 1000.0, told.append)
    bench.executor.hold()
    client.commit("r", "c1", claim)
    await turns(50)
    bench.service.waiters.add("r", 1000.0, told.append)
    await turns(50)
    early = bool(told)
    bench.executor.let_go()
    await eventually(lambda: len(told) == 2)
    return early


async def test_a_closing_that_counts_before_it_is_durable_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as bench:
        assert await quiesce_while_closing(bench) is False

    def eager(self: Waiters, waiters: list[Any]) -> None:
        self._release(waiters)

    monkeypatch.setattr(Waiters, "_confirm", eager)
    monkeypatch.setattr(Ledger, "outstanding_of", lambda self, rollout: len(self.rollout(rollout).open))
    async with serving() as bench:
        assert await quiesce_while_closing(bench) is True


async def test_a_quiescence_that_is_not_checked_is_told_by_a_fenced_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fenced_answer() -> bool | str:
        disk = FaultyDisk()
        async with serving(disk) as old, serving(disk, "actor-2", takeover=True):
            try:
                return await old.service.quiesce(None, 0.0)
            except Exception as error:  # noqa: BLE001  # which one it is, is what is asked
                return type(error).__name__

    assert await fenced_answer() == "Superseded"

    def unchecked(self: Waiters, waiters: list[Any]) -> None:
        self._release(waiters)

    monkeypatch.setattr(Waiters, "_confirm", unchecked)
    assert await fenced_answer() is True
