"""Clear, quiesce, merge, stats and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gym_capture.client.client import CaptureClient
from gym_capture.errors import InvalidRolloutId, OwnerNotFound, OwnerUnavailable
from gym_capture.model.evidence import gather_evidence
from gym_capture.model.merge import RolloutEvidence
from gym_capture.model.messages import Merge, Quiesce, ReadParts
from gym_capture.model.rows import ClearRow
from tests.client.fake_owner import FakeOwner
from tests.client.harness import exchange, harness
from tests.client.virtual_time import run_virtual, settle


def test_clear_takes_records_and_ids_and_gives_tokens() -> None:
    async def scenario() -> None:
        async with harness() as made:
            records: list[Any] = [
                {"_ng_task_index": 3, "_ng_rollout_index": 1},
                "plain-id",
                {"no": "id"},
                {"_ng_rollout_id": "plain-id"},
                {"_ng_rollout_id": "x", "_ng_attempt_index": 2},
            ]
            assert await made.client.clear(records) == {"3-1": 1, "plain-id": 1, "x-a2": 1}
            assert await made.client.clear(["plain-id"]) == {"plain-id": 2}
            assert await made.client.clear([]) == {}
            with pytest.raises(InvalidRolloutId):
                await made.client.clear(["fine", "not/fine"])
            assert len(made.owner.sent_rows()) == 4

    run_virtual(scenario())


def test_a_large_clear_goes_in_pieces_under_one_request() -> None:
    async def scenario() -> None:
        async with harness() as made:
            ids = [f"r{number}" for number in range(2500)]
            assert await made.client.clear(ids) == dict.fromkeys(ids, 1)
            rows = made.owner.sent_rows()
            assert len({row.request for row in rows if isinstance(row, ClearRow)}) == 1
            assert len(made.owner.batches) == 3

    run_virtual(scenario())


def test_a_clear_whose_answer_was_lost_clears_once() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.deaf_to_batches = True
        async with harness(owner) as made:
            task = asyncio.create_task(made.client.clear(["r1"]))
            await settle()
            owner.forget_held()
            owner.deaf_to_batches = False
            owner.cut()
            assert await task == {"r1": 1}

    run_virtual(scenario())


def test_quiesce_waits_for_the_owners_word() -> None:
    async def scenario() -> None:
        async with harness() as made:
            rollout = made.client.rollout("r1")
            async with rollout.claim(dialect="chat") as call:
                one = asyncio.create_task(rollout.quiesce(timeout_s=100.0))
                whole = asyncio.create_task(made.client.quiesce(timeout_s=100.0))
                other = await made.client.quiesce("r2", timeout_s=100.0)
                await asyncio.sleep(50.0)
                assert (one.done(), whole.done(), other) == (False, False, True)
                call.complete(request={}, response={})
            assert (await one, await whole) == (True, True)

    run_virtual(scenario())


def test_quiesce_is_false_at_its_time_and_the_owner_is_told() -> None:
    async def scenario() -> None:
        async with harness() as made, made.client.rollout("r1").claim(dialect="chat") as call:
            began = asyncio.get_running_loop().time()
            assert await made.client.quiesce("r1", timeout_s=3.0) is False
            assert asyncio.get_running_loop().time() - began == pytest.approx(3.0, abs=0.01)
            assert await made.client.quiesce("r1", timeout_s=0.0) is False
            waiting = asyncio.create_task(made.client.quiesce("r1", timeout_s=100.0))
            await settle()
            waiting.cancel()
            await settle()
            assert made.owner.cancelled == [made.owner.calls[-1].number]
            call.complete(request={}, response={})

    run_virtual(scenario())


def test_quiesce_is_false_while_the_owner_is_away() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.go_away()
        async with harness(owner) as made:
            assert await made.client.quiesce("r1", timeout_s=4.0) is False
            assert asyncio.get_running_loop().time() == pytest.approx(4.0)

    run_virtual(scenario())


def test_quiesce_begins_with_what_this_process_has_not_sent() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner, batches_under_way=1) as made:
            await made.client.record("r1", exchange("first"))
            owner.deaf_to_batches = True
            writes = [asyncio.create_task(made.client.record(r, exchange(r))) for r in ("r1", "r2", "r3")]
            await settle()
            waiting = asyncio.create_task(made.client.quiesce("r3", timeout_s=60.0))
            await settle()
            assert owner.calls == []
            assert await made.client.quiesce("r4", timeout_s=60.0) is True
            owner.deaf_to_batches = False
            owner.answer_held()
            assert await waiting is True
            await asyncio.gather(*writes)

    run_virtual(scenario())


def test_a_request_survives_a_broken_link_with_the_time_that_is_left() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            async with made.client.rollout("r1").claim(dialect="chat") as call:
                waiting = asyncio.create_task(made.client.quiesce("r1", timeout_s=30.0))
                await asyncio.sleep(10.0)
                owner.cut()
                await asyncio.sleep(10.0)
                assert not waiting.done()
                asked = [one.request for one in owner.calls if isinstance(one.request, Quiesce)]
                assert asked[0].timeout_s == pytest.approx(30.0)
                assert asked[1].timeout_s == pytest.approx(20.0, abs=0.2)
                call.complete(request={}, response={})
            assert await waiting is True

    run_virtual(scenario())


def test_merge_attaches_what_was_captured() -> None:
    async def scenario() -> None:
        async with harness() as made:
            token = (await made.client.clear(["r1"]))["r1"]
            rollout = made.client.rollout("r1", token)
            await rollout.record(exchange("a", text="one"))
            await rollout.record(exchange("b", text="two", verifier_invocation={"invocation_id": "v", "name": "judge"}))
            record: dict[str, Any] = {"_ng_rollout_id": "r1", "reward": 1.0}
            merged = await made.client.merge(record, issued=rollout.issued + 2, generation=token)
            assert merged is record
            capture = merged["ng_model_call_capture"]
            assert [call["model_call_id"] for call in capture["calls"]] == ["a", "b"]
            assert "request" not in capture["calls"][0]
            assert capture["metrics"]["num_calls"] == 1
            assert capture["verifiers"][0]["name"] == "judge"
            assert capture["gaps"] == [{"code": "model_call_capture_incomplete", "detail": "unaccounted=2"}]
            assert [call.request for call in made.owner.calls if isinstance(call.request, Merge)] == [
                Merge("r1", token, 4)
            ]

    run_virtual(scenario())


def test_merge_returns_a_record_without_an_id_unchanged() -> None:
    async def scenario() -> None:
        async with harness() as made:
            record = {"reward": 0.5}
            assert await made.client.merge(record) is record
            assert record == {"reward": 0.5}
            assert made.owner.attempts == 0

    run_virtual(scenario())


def test_merge_reads_payloads_through_the_owner_some_at_a_time() -> None:
    async def scenario() -> None:
        async with harness() as made:
            for number in range(30):
                await made.client.record("r1", exchange(f"c{number}", text=f"text {number}"))
            merged = await made.client.merge({"_ng_rollout_id": "r1"}, include_payloads=True)
            calls = merged["ng_model_call_capture"]["calls"]
            assert [call["request"]["messages"][0]["content"] for call in calls] == [f"text {n}" for n in range(30)]
            reads = [one.request.call_indexes for one in made.owner.calls if isinstance(one.request, ReadParts)]
            assert [len(indexes) for indexes in reads] == [8, 16, 6]

    run_virtual(scenario())


class SomePayloads:
    """A reader that finds the payloads of even call indexes."""

    async def read(self, rollout_id: str, generation: int, call_indexes: Sequence[int]) -> dict[int, dict[str, Any]]:
        """What it finds."""
        return {index: {"request": {"from": "directory"}} for index in call_indexes if index % 2 == 0}


def test_an_injected_reader_is_asked_first_and_the_owner_for_the_rest() -> None:
    async def scenario() -> None:
        async with harness() as made:
            for number in range(4):
                await made.client.record("r1", exchange(f"c{number}"))
            client = CaptureClient(made.host, payload_reader=SomePayloads())
            merged = await client.merge({"_ng_rollout_id": "r1"}, include_payloads=True)
            shown = [call["request"] for call in merged["ng_model_call_capture"]["calls"]]
            assert shown[0] == shown[2] == {"from": "directory"}
            assert shown[1] == shown[3] == exchange()["request"]

    run_virtual(scenario())


def test_a_damaged_payload_costs_its_own_call_only() -> None:
    async def scenario() -> None:
        async with harness() as made:
            for number in range(3):
                await made.client.record("r1", exchange(f"c{number}"))
            body = made.owner.bodies[2]
            made.owner.bodies[2] = body[:-1] + bytes([body[-1] ^ 1])
            merged = await made.client.merge({"_ng_rollout_id": "r1"}, include_payloads=True)
            capture = merged["ng_model_call_capture"]
            assert [call["call_index"] for call in capture["calls"]] == [0, 2]
            assert capture["gaps"] == [{"code": "model_call_capture_records_unreadable", "detail": "count=1"}]

    run_virtual(scenario())


def test_merge_without_its_owner_is_a_gap_and_never_raises() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.go_away()
        async with harness(owner) as made:
            merged = await made.client.merge({"_ng_rollout_id": "r1"}, timeout_s=5.0)
            assert merged["ng_model_call_capture"] == {
                "rollout_id": "r1",
                "metrics": merged["ng_model_call_capture"]["metrics"],
                "calls": [],
                "gaps": [{"code": "model_call_capture_unreadable"}],
            }
            assert asyncio.get_running_loop().time() == pytest.approx(6.0)

    run_virtual(scenario())


class Directory:
    """A reader of the directory that knows one call."""

    def __init__(self, record: bytes) -> None:
        self.record = record
        self.asked: list[tuple[str, int | None, bool]] = []

    async def read_evidence(
        self, rollout_id: str, generation: int | None, include_payloads: bool
    ) -> RolloutEvidence | None:
        """What the directory holds."""
        self.asked.append((rollout_id, generation, include_payloads))
        return gather_evidence(rollout_id, [(0, self.record)])


def test_merge_without_its_owner_takes_what_the_directory_holds() -> None:
    async def scenario() -> None:
        from gym_capture.model.exchange import encode_fields
        from gym_capture.model.record import derive_fields

        owner = FakeOwner()
        owner.go_away()
        async with harness(owner) as made:
            directory = Directory(encode_fields(derive_fields(exchange("a"))))
            client = CaptureClient(made.host, evidence_reader=directory)
            merged = await client.merge({"_ng_rollout_id": "r1"}, timeout_s=1.0, generation=4)
            capture = merged["ng_model_call_capture"]
            assert [call["model_call_id"] for call in capture["calls"]] == ["a"]
            assert capture["gaps"] == [{"code": "model_call_capture_unreadable"}]
            assert directory.asked == [("r1", 4, False)]
            counted = await client.merge({"_ng_rollout_id": "r1"}, issued=4, timeout_s=1.0)
            assert counted["ng_model_call_capture"]["gaps"] == [
                {"code": "model_call_capture_unreadable"},
                {"code": "model_call_capture_incomplete", "detail": "unaccounted=3"},
            ]

    run_virtual(scenario())


@pytest.mark.parametrize("issued", [1.5, "a", True, float("nan"), -1, 2**70])
def test_a_count_that_is_none_is_the_callers_error_and_costs_nobody_else(issued: Any) -> None:
    async def scenario() -> None:
        async with harness() as made:
            with pytest.raises(ValueError, match="count of calls"):
                await made.client.merge({"_ng_rollout_id": "r1"}, issued=issued)
            assert await made.client.record("r1", exchange("a")) == 0
            assert made.client.host.core_stats()["connects"] == 1

    run_virtual(scenario())


@pytest.mark.parametrize("timeout_s", ["abc", -1, float("nan"), float("inf"), 10**400, True])
def test_a_time_that_is_none_is_the_callers_error(timeout_s: Any) -> None:
    async def scenario() -> None:
        async with harness() as made:
            with pytest.raises(ValueError, match="number of seconds"):
                await made.client.quiesce("r1", timeout_s=timeout_s)

    run_virtual(scenario())


def test_clear_refuses_a_single_id_for_its_letters_would_be_ids() -> None:
    async def scenario() -> None:
        async with harness() as made:
            for one in ("12", {"_ng_task_index": 1, "_ng_rollout_index": 2}):
                with pytest.raises(TypeError, match="give a list"):
                    await made.client.clear(one)

    run_virtual(scenario())


def test_outstanding_calls_are_pending_in_the_merge() -> None:
    async def scenario() -> None:
        async with harness() as made, made.client.rollout("r1").claim(dialect="chat") as call:
            merged = await made.client.merge({"_ng_rollout_id": "r1"}, timeout_s=1.0)
            gaps = [gap["code"] for gap in merged["ng_model_call_capture"]["gaps"]]
            assert gaps == ["model_call_capture_no_records", "model_call_capture_pending"]
            call.complete(request={}, response={})

    run_virtual(scenario())


def test_stats_hold_the_owners_counters_and_this_clients() -> None:
    async def scenario() -> None:
        async with harness() as made:
            await made.client.record("r1", exchange())
            stats = await made.client.stats("r1")
            assert stats["claims"] == 0
            assert (stats["client"]["transport"], stats["client"]["connected"]) == ("fake", True)
            assert made.client.transport_name == "fake"

    run_virtual(scenario())


def test_stop_is_answered() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            await made.client.stop()
            owner.go_away()
            with pytest.raises(OwnerUnavailable):
                await made.client.stop(timeout_s=1.0)

    run_virtual(scenario())


def test_that_an_owner_is_gone_is_no_news_to_the_process_that_stopped_it(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            await made.client.stop()
            owner.away = OwnerNotFound("there is no owner")
            owner.cut()
            await asyncio.sleep(60.0)
            assert not [record for record in caplog.records if "cannot be used" in record.message]
            # Another one comes, and goes without having been asked to.
            owner.come_back()
            await asyncio.sleep(60.0)
            owner.away = OwnerNotFound("there is no owner")
            owner.cut()
            await asyncio.sleep(60.0)
            assert [record for record in caplog.records if "cannot be used" in record.message]

    run_virtual(scenario())


@pytest.mark.parametrize("generation", [-1, True, "1", 2**63])
def test_a_generation_that_clear_cannot_have_given_is_refused(generation: Any) -> None:
    async def scenario() -> None:
        async with harness() as made:
            with pytest.raises(ValueError, match="the number that clear"):
                made.client.rollout("r1", generation)
            with pytest.raises(InvalidRolloutId):
                made.client.rollout("a/b")

    run_virtual(scenario())
