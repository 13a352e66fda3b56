"""A claim whose answer comes so late that it may be lost by now: its caller is told only once it is open again."""

from __future__ import annotations

import asyncio

from gym_capture.client.contact import Contact
from gym_capture.model.messages import Answers
from gym_capture.model.rows import ClaimRow
from tests.client.fake_owner import FakeOwner
from tests.client.harness import exchange, harness, incompressible
from tests.client.virtual_time import run_virtual, settle

LEASE_S = 6.0


def claims(owner: FakeOwner) -> int:
    """How often a claim was asked for; a batch that is sent again counts."""
    return sum(isinstance(row, ClaimRow) for row in owner.sent_rows())


def test_an_answer_told_again_after_a_lease_is_asked_for_anew_and_the_loss_is_taken_back() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner, patience_s=120.0) as made:
            owner.deaf_to_batches = True
            claim = made.client.rollout("r1").claim(dialect="chat")
            entered = asyncio.create_task(claim.__aenter__())
            await settle()
            assert owner.ledger.outstanding_of("r1") == 1
            owner.go_away()
            await asyncio.sleep(LEASE_S + 0.1)
            owner.expire()
            assert (owner.ledger.outstanding_of("r1"), owner.ledger.view("r1").reasons) == (0, {"lost": 1})
            owner.forget_held()
            owner.deaf_to_batches = False
            owner.come_back()
            call = await entered
            # It was claimed, told again from what the owner remembered, and then claimed anew.
            assert claims(owner) == 3
            assert (owner.ledger.outstanding_of("r1"), owner.ledger.view("r1").reasons) == (1, None)
            call.complete(request={}, response={})
            await claim.__aexit__(None, None, None)
            assert call.outcome == "durable"
            assert (owner.ledger.outstanding_of("r1"), owner.ledger.view("r1").reasons) == (0, None)

    run_virtual(scenario())


def test_an_answer_that_was_on_its_way_for_a_lease_is_asked_for_anew() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner, patience_s=120.0) as made:
            assert await made.client.record("r1", {"dialect": "chat", "request": {}, "response": {}}) == 0
            owner.deaf_to_batches = True
            claim = made.client.rollout("r1").claim(dialect="chat")
            entered = asyncio.create_task(claim.__aenter__())
            await settle()
            owner.mute = True
            await asyncio.sleep(LEASE_S + 0.1)
            owner.expire()
            assert owner.ledger.outstanding_of("r1") == 0
            owner.mute = owner.deaf_to_batches = False
            owner.answer_held()  # by the same link: it was never broken
            call = await entered
            assert (len(owner.links), claims(owner)) == (1, 2)
            assert (owner.ledger.outstanding_of("r1"), owner.ledger.view("r1").reasons) == (1, None)
            call.complete(request={}, response={})
            await claim.__aexit__(None, None, None)
            assert call.outcome == "durable"

    run_virtual(scenario())


def test_a_slow_answer_of_an_owner_that_hears_its_client_all_the_while_is_taken_as_it_is() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner, patience_s=120.0) as made:
            owner.deaf_to_batches = True
            claim = made.client.rollout("r1").claim(dialect="chat")
            entered = asyncio.create_task(claim.__aenter__())
            await asyncio.sleep(5 * LEASE_S)
            owner.deaf_to_batches = False
            owner.answer_held()
            call = await entered
            assert claims(owner) == 1
            call.complete(request={}, response={})
            await claim.__aexit__(None, None, None)
            assert call.outcome == "durable"

    run_virtual(scenario())


def test_a_claim_that_was_cleared_before_its_caller_was_told_is_told_to_be_fenced() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner, patience_s=120.0) as made:
            generation = (await made.client.clear(["r1"]))["r1"]
            owner.deaf_to_batches = True
            claim = made.client.rollout("r1", generation).claim(dialect="chat")
            entered = asyncio.create_task(claim.__aenter__())
            await settle()
            owner.go_away()
            await asyncio.sleep(LEASE_S + 0.1)
            owner.forget_held()
            owner.deaf_to_batches = False
            owner.come_back()
            assert await made.client.clear(["r1"]) == {"r1": generation + 1}
            call = await entered
            call.complete(request={}, response={})
            await claim.__aexit__(None, None, None)
            assert call.outcome == "fenced"
            assert owner.exchanges("r1") == []

    run_virtual(scenario())


def test_a_claim_that_waits_to_be_sent_anew_is_closed_when_its_caller_leaves() -> None:
    async def scenario() -> None:
        owner = FakeOwner(max_batch=1000)
        async with harness(owner, batches_under_way=1) as made:
            owner.deaf_to_batches = True
            entered = asyncio.create_task(made.client.rollout("r1").claim(dialect="chat").__aenter__())
            await settle()
            large = asyncio.create_task(made.client.record("r2", exchange(text=incompressible(2000))))
            await settle()
            owner.forget_held()
            owner.link.say(Answers(1, None))  # so it is sent anew, once the batch before it is answered
            await settle()
            entered.cancel()
            await settle()
            owner.deaf_to_batches = False
            owner.answer_held()
            await large
            assert await made.client.quiesce("r1", timeout_s=1.0)
            assert (owner.ledger.outstanding_of("r1"), owner.ledger.view("r1").reasons) == (0, None)

    run_virtual(scenario())


def test_contact_is_unbroken_while_each_proof_follows_the_one_before_within_a_lease() -> None:
    contact = Contact()
    assert not contact.unbroken(0.0, 0.0, 6.0)
    for sent_at in (1.0, 6.0, 11.0):
        contact.proved(sent_at, 6.0)
    assert contact.unbroken(1.0, 16.9, 6.0)
    assert not contact.unbroken(1.0, 17.0, 6.0)  # the last lease may have ended
    assert not contact.unbroken(0.9, 12.0, 6.0)  # before the first proof anything may have been
    contact.proved(17.0, 6.0)
    assert not contact.unbroken(11.0, 18.0, 6.0)
    assert contact.unbroken(17.0, 18.0, 6.0)
    contact.proved(3.0, 6.0)  # an answer that comes late proves nothing new
    assert contact.unbroken(17.0, 22.9, 6.0)
