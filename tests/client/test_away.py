"""The owner is away: patience, the buffer, what is lost and how it is told."""

from __future__ import annotations

import asyncio

import pytest

from gym_capture.client.outcome import CallOutcome
from gym_capture.errors import DroppedExchange, OwnerNotFound, OwnerUnavailable
from gym_capture.model.rows import NO_CLAIM, ClaimRow, CommitRow, MarkRow, ReleaseRow
from tests.client.fake_owner import FakeOwner, commits
from tests.client.harness import Harness, exchange, harness, incompressible
from tests.client.virtual_time import run_virtual, settle


def now() -> float:
    """The loop's time."""
    return asyncio.get_running_loop().time()


async def make_call(made: Harness, rollout_id: str = "r1", text: str = "x") -> CallOutcome | None:
    """One call from claim to commit."""
    async with made.client.rollout(rollout_id).claim(dialect="chat") as call:
        call.complete(request={"text": text}, response={})
    return call.outcome


def test_calls_wait_for_an_owner_that_comes_back_in_time() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.go_away()
        async with harness(owner, patience_s=120.0) as made:
            task = asyncio.create_task(make_call(made))
            await asyncio.sleep(100.0)
            assert not task.done()
            owner.come_back()
            assert await task == "durable"
            assert [type(row) for row in owner.sent_rows()] == [ClaimRow, CommitRow]

    run_virtual(scenario())


def test_past_their_patience_calls_go_on_unclaimed_and_their_exchanges_are_kept() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.go_away()
        async with harness(owner, patience_s=120.0) as made:
            assert await make_call(made, text="first") == "buffered"
            assert now() == pytest.approx(120.0)
            # In all: the next call of the same absence does not wait again.
            assert await make_call(made, text="second") == "buffered"
            assert now() == pytest.approx(120.0)
            with pytest.raises(OwnerUnavailable, match="kept in this process"):
                await made.client.record("r1", exchange("third"))
            owner.come_back()
            assert await made.client.quiesce("r1", timeout_s=10.0)
            kept = owner.exchanges("r1")
            assert [one["request"].get("text") for one in kept] == ["first", "second", None]
            assert all(row.claim == NO_CLAIM for row in commits(owner.sent_rows()))
            assert owner.ledger.view("r1").reasons is None

    run_virtual(scenario())


def test_patience_is_whole_again_once_the_owner_worked() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner, patience_s=10.0) as made:
            for _ in range(2):
                assert await make_call(made) == "durable"
                owner.go_away()
                await settle()
                began = now()
                assert await make_call(made) == "buffered"
                assert now() - began == pytest.approx(10.0)
                owner.come_back()
                assert await made.client.quiesce(timeout_s=10.0)

    run_virtual(scenario())


def test_an_owner_that_greets_and_breaks_off_again_and_again_is_away() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner, patience_s=10.0) as made:
            assert await make_call(made) == "durable"
            owner.deaf_to_batches = True
            task = asyncio.create_task(make_call(made))
            await settle()
            while not task.done() and now() < 60.0:
                owner.cut()
                await asyncio.sleep(0.5)
            assert now() < 12.0
            assert await task == "buffered"

    run_virtual(scenario())


def test_an_owner_that_is_there_and_answers_nothing_is_waited_for_no_longer_than_one_that_is_away() -> None:
    """Its disk hangs, say: it beats, and no batch gets done."""

    async def scenario() -> None:
        owner = FakeOwner()
        owner.deaf_to_batches = True
        async with harness(owner, patience_s=120.0) as made:
            assert await make_call(made, text="first") == "buffered"
            assert now() == pytest.approx(120.0, abs=1.0)
            assert await make_call(made, text="second") == "buffered"
            assert now() == pytest.approx(120.0, abs=1.0)
            assert len(owner.links) == 1, "the link is alive: it is not looked up again"
            owner.deaf_to_batches = False
            owner.answer_held()
            assert await made.client.quiesce("r1", timeout_s=10.0)
            assert sorted(one["request"]["text"] for one in owner.exchanges("r1")) == ["first", "second"]
            before = now()
            assert await make_call(made, text="third") == "durable"
            assert now() == before
            # Patience is whole again, and counts from the batch that is not answered now.
            owner.deaf_to_batches = True
            assert await make_call(made, text="fourth") == "buffered"
            assert now() - before == pytest.approx(120.0, abs=1.0)

    run_virtual(scenario())


def test_an_owner_that_answers_slowly_is_waited_for() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.deaf_to_batches = True
        async with harness(owner, patience_s=120.0) as made:
            for _ in range(3):
                task = asyncio.create_task(make_call(made))
                for _ in range(2):
                    await asyncio.sleep(100.0)
                    assert not task.done()
                    owner.answer_held()
                assert await task == "durable"

    run_virtual(scenario())


def test_a_clear_and_a_merge_do_not_wait_for_ever_for_an_owner_whose_disk_hangs() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.deaf_to_batches = True
        async with harness(owner, patience_s=120.0) as made:
            with pytest.raises(OwnerUnavailable, match="clear"):
                await made.client.clear(["r1"], timeout_s=10.0)
            assert 120.0 <= now() <= 150.0

    run_virtual(scenario())


def test_a_claim_that_was_applied_and_never_acknowledged_is_used_by_its_commit() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner, patience_s=10.0) as made:
            assert await make_call(made) == "durable"
            owner.deaf_to_batches = True
            entered, leave = asyncio.Event(), asyncio.Event()

            async def worker() -> CallOutcome | None:
                async with made.client.rollout("r1").claim(dialect="chat") as call:
                    entered.set()
                    await leave.wait()
                    call.complete(request={"late": 1}, response={})
                return call.outcome

            task = asyncio.create_task(worker())
            await settle()
            assert owner.ledger.outstanding == 1
            owner.forget_held()
            owner.go_away()
            await entered.wait()
            assert now() == pytest.approx(10.0)
            owner.deaf_to_batches = False
            owner.come_back()
            await asyncio.sleep(2.0)
            # The call is under way and the owner knows it: quiescence waits for it.
            assert owner.ledger.outstanding == 1
            leave.set()
            assert await task == "durable"
            assert owner.ledger.outstanding == 0
            assert commits(owner.sent_rows())[-1].claim == 2
            assert len(owner.exchanges("r1")) == 2

    run_virtual(scenario())


def test_a_commit_waits_for_its_claims_answer_so_that_a_clear_between_fences_it() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner, patience_s=10.0) as made:
            await made.client.clear(["r1"])
            owner.deaf_to_batches = True
            task = asyncio.create_task(make_call(made))
            await settle()
            owner.forget_held()
            owner.go_away()
            assert await task == "buffered"
            owner.ledger.rollout("r1").begin(2, "")  # another client cleared it meanwhile
            owner.ledger.rollout("r1").open.clear()
            owner.deaf_to_batches = False
            owner.come_back()
            await made.client.quiesce("r1", timeout_s=10.0)
            assert commits(owner.sent_rows())[-1].generation == 1
            assert owner.ledger.view("r1").entries == []

    run_virtual(scenario())


def test_a_commit_under_way_when_the_owner_goes_is_buffered_past_patience_and_lands_once() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner, patience_s=10.0) as made:
            async with made.client.rollout("r1").claim(dialect="chat") as call:
                owner.go_away()
                call.complete(request={}, response={"kept": 1})
            assert call.outcome == "buffered"
            assert now() == pytest.approx(10.0, abs=0.1)
            assert owner.ledger.outstanding == 1
            owner.come_back()
            assert await made.client.quiesce("r1", timeout_s=10.0)
            assert [kept["response"] for kept in owner.exchanges("r1")] == [{"kept": 1}]

    run_virtual(scenario())


def test_a_cancelled_call_does_not_wait_for_an_owner_that_is_away() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner, patience_s=120.0) as made:
            entered = asyncio.Event()

            async def worker() -> None:
                async with made.client.rollout("r1").claim(dialect="chat"):
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(worker())
            await entered.wait()
            owner.go_away()
            await settle()
            began = now()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert now() - began < 0.01
            owner.come_back()
            assert await made.client.quiesce("r1", timeout_s=10.0)
            assert owner.exchanges("r1")[0]["error_category"] == "cancelled"

    run_virtual(scenario())


def test_a_full_buffer_drops_exchanges_and_tells_the_rollout_when_the_owner_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.go_away()
        async with harness(owner, patience_s=10.0, client_buffer_bytes=4000) as made:
            text = incompressible(3000)
            assert await make_call(made, text=text) == "buffered"
            assert await make_call(made, text=text) == "dropped"
            assert await make_call(made, text=text) == "dropped"
            assert await make_call(made, rollout_id="r2", text=text) == "dropped"
            with pytest.raises(DroppedExchange):
                await made.client.rollout("r2", generation=0).record(exchange("d", text=text))
            assert made.core.buffer.held < 4000
            assert made.host.core_stats()["dropped"] == 4
            owner.come_back()
            assert await made.client.quiesce(timeout_s=10.0)
            assert owner.ledger.view("r1").reasons == {"dropped": 2}
            assert owner.ledger.view("r2").reasons == {"dropped": 2}
            marks = [row for row in owner.sent_rows() if isinstance(row, MarkRow)]
            assert [(row.rollout, row.count) for row in marks] == [("r1", 2), ("r2", 1), ("r2", 1)]
            assert len(owner.exchanges("r1")) == 1
            assert made.core.buffer.held == 0

    run_virtual(scenario())
    assert caplog.text.count("is lost; it is counted") == 1


def test_a_dropped_exchange_closes_its_claim() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner, patience_s=10.0, client_buffer_bytes=4000) as made:
            text = incompressible(3000)
            rollout = made.client.rollout("r1")
            async with rollout.claim(dialect="chat") as first, rollout.claim(dialect="chat") as second:
                owner.go_away()
                first.complete(request={"text": text}, response={})
                second.complete(request={"text": text}, response={})
            # They are left in the order second, first.
            assert (second.outcome, first.outcome) == ("buffered", "dropped")
            owner.come_back()
            assert await made.client.quiesce("r1", timeout_s=10.0)
            view = owner.ledger.view("r1")
            assert (view.reasons, len(view.entries), view.outstanding) == ({"dropped": 1}, 1, 0)
            assert [row.reason for row in owner.sent_rows() if isinstance(row, ReleaseRow)] == ["dropped"]

    run_virtual(scenario())


def test_while_the_owner_is_there_a_full_buffer_makes_commits_wait() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.deaf_to_batches = True
        async with harness(owner, client_buffer_bytes=4000) as made:
            text = incompressible(2500)
            tasks = [
                asyncio.create_task(made.client.record("r1", exchange(f"c{n}", request_raw=text))) for n in range(5)
            ]
            await asyncio.sleep(60.0)
            assert len(owner.sent_rows()) == 1
            assert made.core.buffer.held <= 4000
            for _ in range(5):
                owner.answer_held()
                await settle()
            assert await asyncio.gather(*tasks) == [0, 1, 2, 3, 4]
            assert made.core.buffer.held == 0

    run_virtual(scenario())


def test_a_call_that_captured_nothing_while_the_owner_was_away_marks_its_rollout() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.go_away()
        async with harness(owner, patience_s=1.0) as made:
            for _ in range(3):
                async with made.client.rollout("r1").claim(dialect="chat"):
                    pass
            owner.come_back()
            assert await made.client.quiesce("r1", timeout_s=10.0)
            assert owner.ledger.view("r1").reasons == {"released": 3}

    run_virtual(scenario())


def test_clear_and_stats_say_that_the_owner_is_away() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.go_away()
        async with harness(owner) as made:
            with pytest.raises(OwnerUnavailable, match="could not be reached within 10 s"):
                await made.client.clear(["r1", "r2"])
            assert now() == pytest.approx(10.0)
            with pytest.raises(OwnerUnavailable):
                await made.client.stats(timeout_s=3.0)
            assert now() == pytest.approx(13.0)
            owner.come_back()
            # What was given up is not sent behind the caller's back.
            assert await made.client.clear(["r1"]) == {"r1": 1}
            assert "r2" not in owner.ledger.rollouts

    run_virtual(scenario())


def test_nobody_waits_for_an_owner_that_does_not_exist() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.away = OwnerNotFound("no live owner")
        async with harness(owner) as made:
            with pytest.raises(OwnerNotFound, match="no live owner"):
                await made.client.clear(["r1"])
            assert await make_call(made) == "buffered"
            assert now() < 1.0
            owner.come_back()
            await asyncio.sleep(10.0)
            assert len(owner.exchanges("r1")) == 1

    run_virtual(scenario())


def test_a_failing_transport_is_a_warning_not_an_end(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeOwner):
        async def connect(self) -> None:  # type: ignore[override]
            self.attempts += 1
            if self.attempts < 3:
                raise ZeroDivisionError("a fault of the transport")
            return await super().connect()  # type: ignore[return-value]

    async def scenario() -> None:
        async with harness(Broken()) as made:
            assert await make_call(made) == "durable"

    run_virtual(scenario())
    assert "a fault of the transport" in caplog.text
