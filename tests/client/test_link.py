"""The link: batches, resending, epochs, leases."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from gym_capture.errors import HandshakeRefused, OwnerUnavailable, Superseded
from gym_capture.model.messages import Answers, decode_from_client
from gym_capture.model.rows import MarkRow
from tests.client.fake_owner import FakeOwner
from tests.client.harness import exchange, harness
from tests.client.virtual_time import run_virtual, settle


def test_rows_leave_at_once_and_form_batches_while_enough_is_under_way() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner, batches_under_way=2) as made:
            await made.client.record("r1", exchange("first"))
            owner.deaf_to_batches = True
            tasks = []
            for number in range(50):
                tasks.append(asyncio.create_task(made.client.record("r1", exchange(f"c{number}"))))
                await settle(3)
            assert [len(rows) for rows in owner.rows] == [1, 1, 1]
            owner.answer_held()
            await settle()
            assert [len(rows) for rows in owner.rows] == [1, 1, 1, 48]
            owner.deaf_to_batches = False
            owner.answer_held()
            assert await asyncio.gather(*tasks) == list(range(1, 51))

    run_virtual(scenario())


def test_a_burst_of_operations_is_one_batch_in_order() -> None:
    async def scenario() -> None:
        async with harness() as made:
            await made.client.record("r1", exchange("first"))
            indexes = await asyncio.gather(*[made.client.record("r1", exchange(f"c{n}")) for n in range(20)])
            assert indexes == list(range(1, 21))
            assert [len(rows) for rows in made.owner.rows] == [1, 20]
            assert [kept["model_call_id"] for kept in made.owner.exchanges("r1")][1:] == [f"c{n}" for n in range(20)]

    run_virtual(scenario())


def test_what_is_under_way_stays_within_the_owners_window() -> None:
    async def scenario() -> None:
        owner = FakeOwner(window=3000, max_batch=1500)
        owner.deaf_to_batches = True
        async with harness(owner, batches_under_way=100) as made:
            texts = [f"{n:04d}" * 200 for n in range(10)]
            tasks = [
                asyncio.create_task(made.client.record("r1", exchange(f"c{n}", request_raw=text.encode())))
                for n, text in enumerate(texts)
            ]
            seen = 0
            while seen < 10:
                await settle()
                sent = owner.batches[seen:]
                assert 0 < sum(map(len, sent)) <= 3000
                assert all(len(batch) <= 1500 for batch in sent)
                seen = len(owner.batches) if len(owner.sent_rows()) < 10 else 10
                owner.answer_held()
            owner.deaf_to_batches = False
            owner.answer_held()
            assert sorted(await asyncio.gather(*tasks)) == list(range(10))

    run_virtual(scenario())


def test_one_exchange_larger_than_window_and_batch_is_sent_alone() -> None:
    async def scenario() -> None:
        async with harness(FakeOwner(window=1000, max_batch=500)) as made:
            big = bytes(range(256)) * 40
            results = await asyncio.gather(
                made.client.record("r1", exchange("a")),
                made.client.record("r1", exchange("big", request_raw=big)),
                made.client.record("r1", exchange("b")),
            )
            assert list(results) == [0, 1, 2]
            assert len(made.owner.batches) == 3

    run_virtual(scenario())


def test_unanswered_batches_are_sent_again_unchanged_and_in_order() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            await made.client.record("r1", exchange("first"))
            owner.deaf_to_batches = True
            tasks = []
            for number in range(3):
                tasks.append(asyncio.create_task(made.client.record("r1", exchange(f"c{number}"))))
                await settle()
            sent = list(owner.batches[1:])
            assert len(sent) == 3
            owner.forget_held()
            owner.deaf_to_batches = False
            owner.cut()
            assert await asyncio.gather(*tasks) == [1, 2, 3]
            assert owner.batches[4:] == sent
            assert len(owner.exchanges("r1")) == 4
            assert owner.ledger.counts["repeated_batches"] == 3

    run_virtual(scenario())


def test_a_late_answer_of_a_broken_link_changes_nothing() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            await made.client.record("r1", exchange("first"))
            owner.deaf_to_batches = True
            task = asyncio.create_task(made.client.record("r1", exchange("a")))
            await settle()
            owner.deaf_to_batches = False
            owner.cut()
            assert await task == 1
            owner.answer_held()
            owner.link.say(Answers(2, owner.ledger.clients[owner.hellos[0].client].answers[2][1]))
            assert await made.client.record("r1", exchange("b")) == 2

    run_virtual(scenario())


def test_confirmations_follow_the_answers() -> None:
    async def scenario() -> None:
        async with harness() as made:
            for number in range(3):
                await made.client.record("r1", exchange(f"c{number}"))
            heads = [
                decode_from_client(data[8 : 8 + int.from_bytes(data[:4], "little")]) for data in made.owner.batches
            ]
            assert [(head.batch, head.confirmed) for head in heads] == [(1, 0), (2, 1), (3, 2)]  # type: ignore[union-attr]

    run_virtual(scenario())


def test_rows_whose_answers_are_gone_are_sent_anew_and_double_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            await made.client.record("r1", exchange("first"))
            owner.deaf_to_batches = True
            task = asyncio.create_task(made.client.record("r1", exchange("a")))
            claiming = asyncio.create_task(made.client.rollout("r1").claim(dialect="chat").__aenter__())
            await settle()
            owner.forget_held()
            owner.deaf_to_batches = False
            owner.link.say(Answers(2, None))
            assert await task == 1
            call = await claiming
            call.complete(request={}, response={})
            await call.__aexit__(None, None, None)
            assert call.call_index == 2
            assert owner.ledger.outstanding == 0
            assert owner.ledger.view("r1").reasons is None

    run_virtual(scenario())
    assert "has no answers for batch 2" in caplog.text


def test_a_mark_whose_answer_is_gone_is_not_counted_twice() -> None:
    async def scenario() -> None:
        owner = FakeOwner(max_exchange=2000)
        async with harness(owner) as made:
            await made.client.record("r1", exchange("first"))
            owner.deaf_to_batches = True
            task = asyncio.create_task(made.client.record("r1", exchange("big", text="y" * 3000)))
            await settle()
            assert isinstance(owner.sent_rows()[-1], MarkRow)
            owner.forget_held()
            owner.deaf_to_batches = False
            owner.link.say(Answers(2, None))
            with pytest.raises(Exception, match="max_exchange_bytes"):
                await task
            assert await made.client.close()
            assert owner.ledger.view("r1").reasons == {"refused": 1}

    run_virtual(scenario())


def test_hello_lists_the_claims_that_were_sent_and_not_seen_closed() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            rollout = made.client.rollout("r1")
            async with rollout.claim(dialect="chat") as first:
                first.complete(request={}, response={})
            async with rollout.claim(dialect="chat") as second, rollout.claim(dialect="chat") as third:
                owner.cut()
                await asyncio.sleep(1.0)
                assert [hello.open_claims for hello in owner.hellos] == [[], [2, 3]]
                second.complete(request={}, response={})
                third.complete(request={}, response={})
            assert owner.ledger.view("r1").reasons is None
            assert len(owner.exchanges("r1")) == 3

    run_virtual(scenario())


def test_answers_of_an_older_epoch_are_not_taken() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.epoch = 5
        async with harness(owner) as made:
            await made.client.record("r1", exchange("first"))
            owner.epoch = 4
            owner.cut()
            task = asyncio.create_task(made.client.record("r1", exchange("a")))
            await asyncio.sleep(5.0)
            assert not task.done()
            assert len(owner.batches) == 1
            assert isinstance(made.core.presence.trouble, Superseded)
            owner.epoch = 6
            assert await task == 1
            assert made.core.epoch == 6

    run_virtual(scenario())


def test_an_owner_whose_beat_shows_an_older_epoch_is_left() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.epoch = 5
        async with harness(owner) as made:
            await made.client.record("r1", exchange("first"))
            owner.epoch = 4
            await asyncio.sleep(3.0)
            assert owner.attempts > 1
            assert not made.core.presence.ready

    run_virtual(scenario())


def test_an_idle_client_beats_at_least_every_third_of_a_lease() -> None:
    async def scenario() -> None:
        async with harness(FakeOwner(lease_s=6.0)) as made:
            await made.client.record("r1", exchange("first"))
            await asyncio.sleep(60.0)
            beats = made.owner.beats
            assert len(beats) >= 30
            assert max(later - earlier for earlier, later in itertools.pairwise(beats)) <= 2.0
            assert len(made.owner.links) == 1

    run_virtual(scenario())


def test_an_owner_that_is_silent_for_a_lease_is_looked_up_again() -> None:
    async def scenario() -> None:
        owner = FakeOwner(lease_s=6.0)
        async with harness(owner) as made:
            await made.client.record("r1", exchange("first"))
            owner.mute = True
            task = asyncio.create_task(made.client.record("r1", exchange("a")))
            await asyncio.sleep(5.0)
            assert len(owner.links) == 1
            await asyncio.sleep(4.0)
            assert len(owner.links) == 2
            owner.mute = False
            owner.cut()
            assert await task == 1

    run_virtual(scenario())


def test_the_link_is_made_by_the_first_operation_only() -> None:
    async def scenario() -> None:
        async with harness() as made:
            made.client.rollout("r1").claim(dialect="chat")
            await asyncio.sleep(10.0)
            assert made.owner.attempts == 0
            await made.client.record("r1", exchange())
            assert made.owner.attempts == 1

    run_virtual(scenario())


def test_attempts_back_off_to_a_second() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.go_away()
        async with harness(owner) as made:
            task = asyncio.create_task(made.client.record("r1", exchange()))
            await asyncio.sleep(1.0)
            assert 3 <= owner.attempts <= 6
            before = owner.attempts
            await asyncio.sleep(30.0)
            assert 30 <= owner.attempts - before <= 60
            owner.come_back()
            assert await task == 0

    run_virtual(scenario())


def test_a_refused_hello_is_told_to_who_asks_and_calls_go_on_without_claims() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.refusal = HandshakeRefused("another token")
        async with harness(owner) as made:
            with pytest.raises(HandshakeRefused, match="another token"):
                await made.client.stats()
            async with made.client.rollout("r1").claim(dialect="chat") as call:
                call.complete(request={}, response={"kept": 1})
            assert call.outcome == "buffered"
            assert asyncio.get_running_loop().time() < 5.0
            owner.refusal = None
            await asyncio.sleep(6.0)
            assert await made.client.quiesce("r1", timeout_s=30.0) is True
            assert [kept["response"] for kept in owner.exchanges("r1")] == [{"kept": 1}]

    run_virtual(scenario())


def test_an_owner_that_is_not_ready_is_no_refusal() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.refusal = OwnerUnavailable("cannot write now")
        async with harness(owner) as made:
            task = asyncio.create_task(made.client.record("r1", exchange()))
            await asyncio.sleep(20.0)
            assert not task.done()
            owner.refusal = None
            assert await task == 0

    run_virtual(scenario())


def test_an_owner_of_another_run_ends_the_client_for_good() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            rollout = made.client.rollout("r1")
            async with rollout.claim(dialect="chat") as call:
                owner.run = "f" * 32
                owner.cut()
                call.complete(request={}, response={})
            assert call.outcome == "dropped"
            async with rollout.claim(dialect="chat") as later:
                later.complete(request={}, response={})
            assert later.outcome == "dropped"
            with pytest.raises(HandshakeRefused, match="serves run ffff"):
                await made.client.quiesce("r1")
            attempts = owner.attempts
            await asyncio.sleep(100.0)
            assert owner.attempts == attempts
            assert not owner.ledger.view("r1").entries

    run_virtual(scenario())


def test_garbage_from_the_owner_breaks_the_link_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            await made.client.record("r1", exchange("first"))
            owner.link._inbox.append((b"\xc1 no message", b""))
            owner.link._news.set()
            assert await made.client.record("r1", exchange("second")) == 1
            assert len(owner.links) == 2

    run_virtual(scenario())


def test_an_owner_that_speaks_before_its_welcome_is_left() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.mute = True
        async with harness(owner) as made:
            task = asyncio.create_task(made.client.record("r1", exchange()))
            await settle()
            owner.link.say(Answers(1, []))
            await settle()
            assert owner.links[0].broken
            owner.mute = False
            assert await task == 0

    run_virtual(scenario())


def test_closing_says_goodbye_and_answers_everybody() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            await made.client.record("r1", exchange())
            assert await made.client.close() is True
            assert owner.goodbyes == 1
            async with made.client.rollout("r1").claim(dialect="chat") as call:
                call.complete(request={}, response={})
            assert call.outcome == "dropped"

    run_virtual(scenario())
