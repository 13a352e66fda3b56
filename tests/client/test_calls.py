"""Claims and commits as a caller sees them, with the owner there."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from gym_capture.client.outcome import CallOutcome
from gym_capture.errors import ConflictingExchange, DroppedExchange, ExchangeTooLarge, Fenced, InvalidExchange
from gym_capture.model.rows import ClaimRow, MarkRow, ReleaseRow
from tests.client.fake_owner import FakeOwner, commits
from tests.client.harness import exchange, harness
from tests.client.virtual_time import run_virtual, settle


def test_a_claim_is_acknowledged_before_the_body_and_the_commit_closes_it() -> None:
    async def scenario() -> None:
        async with harness() as made:
            rollout = made.client.rollout("r1")
            async with rollout.claim(dialect="chat", model_ref={"type": "model", "name": "m"}) as call:
                assert made.owner.ledger.outstanding_of("r1") == 1
                assert not call.outcome
                await asyncio.sleep(1.5)
                call.first_token()
                await asyncio.sleep(0.5)
                call.complete(request={"a": 1}, response={"id": "x"}, client_session_id="s")
            assert made.owner.ledger.outstanding == 0
            assert (call.outcome, call.call_index, call.generation) == (CallOutcome.DURABLE, 0, 0)
            (kept,) = made.owner.exchanges("r1")
            assert kept == {
                "model_call_id": call.model_call_id,
                "dialect": "chat",
                "model_ref": {"type": "model", "name": "m"},
                "started_at": 1_700_000_000.0,
                "completed_at": 1_700_000_002.0,
                "latency_ms": 2000.0,
                "latency_ttft_ms": 1500.0,
                "status_code": 200,
                "error_category": None,
                "request": {"a": 1},
                "response": {"id": "x"},
                "client_session_id": "s",
            }

    run_virtual(scenario())


def test_what_a_caller_gives_wins_over_what_the_handle_measured() -> None:
    async def scenario() -> None:
        async with harness() as made:
            async with made.client.rollout("r1").claim(dialect="chat", started_at=5.0) as call:
                call.complete(request={}, response={}, latency_ms=7.5, dialect="messages", model_call_id="other")
            (kept,) = made.owner.exchanges("r1")
            assert (kept["started_at"], kept["latency_ms"]) == (5.0, 7.5)
            assert (kept["dialect"], kept["model_call_id"]) == ("chat", call.model_call_id)

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("status", "category"), [(200, None), (429, "rate_limit"), (500, "upstream_error"), (418, "client_error")]
)
def test_a_failing_status_names_its_error_category(status: int, category: str | None) -> None:
    async def scenario() -> None:
        async with harness() as made:
            async with made.client.rollout("r1").claim(dialect="chat") as call:
                call.complete(request={}, response={}, status_code=status)
            assert made.owner.exchanges("r1")[0]["error_category"] == category

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("error", "category"),
    [(TimeoutError("t"), "timeout"), (ConnectionResetError(), "connection"), (ValueError("v"), "exception")],
)
def test_an_exception_commits_the_failure_with_what_is_known_and_goes_on(error: Exception, category: str) -> None:
    async def scenario() -> None:
        async with harness() as made:
            request = {"messages": ["first"]}
            rollout = made.client.rollout("r1")
            call = rollout.claim(dialect="chat", request=request)

            async def fail() -> None:
                async with call:
                    request["messages"].append("added later")
                    call.note(response={"partial": True})
                    raise error

            with pytest.raises(type(error)) as raised:
                await fail()
            assert raised.value is error
            assert call.outcome is CallOutcome.DURABLE
            (kept,) = made.owner.exchanges("r1")
            assert kept["error_category"] == category
            assert kept["request"] == {"messages": ["first"]}
            assert kept["response"] == {"partial": True}
            assert kept["status_code"] is None

    run_virtual(scenario())


def test_an_exception_after_complete_commits_the_completed_call() -> None:
    async def scenario() -> None:
        async with harness() as made:

            async def fail() -> None:
                async with made.client.rollout("r1").claim(dialect="chat") as call:
                    call.complete(request={}, response={"id": "whole"})
                    raise ValueError("mine")

            with pytest.raises(ValueError, match="mine"):
                await fail()
            (kept,) = made.owner.exchanges("r1")
            assert (kept["response"], kept["error_category"]) == ({"id": "whole"}, None)

    run_virtual(scenario())


def test_payloads_are_frozen_when_they_are_handed_in() -> None:
    async def scenario() -> None:
        async with harness() as made:
            messages = [{"role": "user", "content": "one"}]
            arguments = {"path": "a"}
            response = {"content": [{"type": "tool_use", "id": "t", "name": "read", "input": arguments}]}
            async with made.client.rollout("r1").claim(dialect="messages") as call:
                call.complete(request={"messages": messages}, response=response)
                messages.append({"role": "assistant", "content": "two"})
                arguments["path"] = "changed"
            (kept,) = made.owner.exchanges("r1")
            assert kept["request"] == {"messages": [{"role": "user", "content": "one"}]}
            merged = await made.client.merge({"_ng_rollout_id": "r1"})
            (shown,) = merged["ng_model_call_capture"]["calls"]
            assert shown["tool_calls"] == [{"call_id": "t", "name": "read", "arguments": {"path": "a"}}]

    run_virtual(scenario())


class _Unwritable:
    def __repr__(self) -> str:
        return "<no json>"


class _Hostile:
    def model_dump(self, mode: str) -> Any:
        raise AttributeError("model_dump is broken")

    def __repr__(self) -> str:
        raise RuntimeError("so is repr")


def test_values_without_a_json_form_are_kept_as_their_repr() -> None:
    async def scenario() -> None:
        async with harness() as made:
            rollout = made.client.rollout("r1")
            async with rollout.claim(dialect="chat", request=_Unwritable(), note=_Unwritable()) as call:
                call.complete(response={"fine": 1})
            async with rollout.claim(dialect="chat") as second:
                second.complete(request={"fine": 2}, response=_Hostile(), response_raw="given")
            assert (call.outcome, second.outcome) == ("durable", "durable")
            first_kept, second_kept = made.owner.exchanges("r1")
            assert (first_kept["request"], first_kept["request_raw"]) == (None, "<no json>")
            assert first_kept["note"] == "<no json>"
            assert first_kept["response"] == {"fine": 1}
            assert first_kept["error_category"] == "capture_parse_error"
            assert (second_kept["request"], second_kept["response"]) == ({"fine": 2}, None)
            assert second_kept["response_raw"] == "given"
            assert second_kept["error_category"] == "capture_parse_error"

    run_virtual(scenario())


def test_a_request_that_is_replaced_in_complete_leaves_no_trace_of_the_unwritable_one() -> None:
    async def scenario() -> None:
        async with harness() as made:
            async with made.client.rollout("r1").claim(dialect="chat", request=_Unwritable()) as call:
                call.complete(request={"good": 1}, response={})
            (kept,) = made.owner.exchanges("r1")
            assert (kept["request"], kept.get("request_raw"), kept["error_category"]) == ({"good": 1}, None, None)

    run_virtual(scenario())


def test_leaving_without_complete_releases_and_the_rollout_is_incomplete() -> None:
    async def scenario() -> None:
        async with harness() as made:
            rollout = made.client.rollout("r1")
            async with rollout.claim(dialect="chat") as call:
                pass
            async with rollout.claim(dialect="chat") as asked:
                asked.complete(request={}, response={})
                asked.release("skipped")
            async with rollout.claim(dialect="chat") as withdrawn:
                withdrawn.release("")
            assert (call.outcome, asked.outcome) == (CallOutcome.RELEASED, CallOutcome.RELEASED)
            view = made.owner.ledger.view("r1")
            assert (view.reasons, view.entries, view.outstanding) == ({"released": 1, "skipped": 1}, [], 0)

    run_virtual(scenario())


@pytest.mark.parametrize(
    "fields",
    [
        {"dialect": "smoke signals"},
        {"dialect": "chat", "model_call_id": ""},
        {"dialect": "chat", "model_call_id": 7},
        {"dialect": "chat", "model_call_id": "x" * 4097},
    ],
)
def test_bad_arguments_raise_where_the_claim_is_made(fields: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with harness() as made:
            with pytest.raises(InvalidExchange):
                made.client.rollout("r1").claim(**fields)
            assert made.owner.attempts == 0

    run_virtual(scenario())


def test_a_generation_given_to_a_claim_is_refused_for_it_would_fence_nothing() -> None:
    async def scenario() -> None:
        async with harness() as made:
            with pytest.raises(TypeError, match="give it to the handle"):
                made.client.rollout("r1").claim(dialect="chat", generation=3)

    run_virtual(scenario())


def test_a_reason_that_the_owner_would_refuse_is_the_callers_bug() -> None:
    async def scenario() -> None:
        async with harness() as made:
            async with made.client.rollout("r1").claim(dialect="chat") as call:
                for reason in ("no spaces, please", "lost", "damaged", "unaccounted"):
                    with pytest.raises(ValueError, match="reason"):
                        call.release(reason)
            assert made.owner.ledger.outstanding == 0

    run_virtual(scenario())


def test_a_claim_is_used_once() -> None:
    async def scenario() -> None:
        async with harness() as made:
            claim = made.client.rollout("r1").claim(dialect="chat")
            async with claim as call:
                call.complete(request={}, response={})
            with pytest.raises(RuntimeError, match="used once"):
                async with claim:
                    raise AssertionError("entered twice")

    run_virtual(scenario())


def test_the_same_exchange_again_is_a_duplicate_and_another_one_is_refused() -> None:
    async def scenario() -> None:
        async with harness() as made:
            rollout = made.client.rollout("r1")
            assert await rollout.record(exchange("a")) == 0
            assert await rollout.record(exchange("b")) == 1
            assert await rollout.record(exchange("a")) == 0
            with pytest.raises(ConflictingExchange) as raised:
                await rollout.record(exchange("a", text="another"))
            assert raised.value.fields == {"model_call_id": "a"}
            async with rollout.claim(dialect="chat", model_call_id="b") as call:
                call.complete(request={}, response={})
            assert call.outcome is CallOutcome.REFUSED
            assert call.call_index is None
            assert made.owner.ledger.view("r1").reasons == {"refused": 2}
            assert rollout.issued == 2

    run_virtual(scenario())


def test_work_of_a_cleared_generation_is_fenced() -> None:
    async def scenario() -> None:
        async with harness() as made:
            old = made.client.rollout("r1", (await made.client.clear(["r1"]))["r1"])
            async with old.claim(dialect="chat") as under_way:
                assert (await made.client.clear(["r1"]))["r1"] == 2
                under_way.complete(request={}, response={})
            assert under_way.outcome is CallOutcome.FENCED
            async with old.claim(dialect="chat") as late:
                assert late.outcome is CallOutcome.FENCED
                late.complete(request={}, response={})
            assert late.outcome is CallOutcome.FENCED
            with pytest.raises(Fenced) as raised:
                await old.record(exchange("x"))
            assert raised.value.fields == {"rollout_id": "r1", "generation": 1}
            with pytest.raises(Fenced):
                await made.client.merge({"_ng_rollout_id": "r1"}, generation=1)
            view = made.owner.ledger.view("r1")
            assert (view.generation, view.entries, view.reasons, view.outstanding) == (2, [], None, 0)
            # The claim that was refused carried no payload to the owner.
            assert len(commits(made.owner.sent_rows())) == 2

    run_virtual(scenario())


def test_an_exchange_over_the_limit_is_refused_and_its_claim_closed() -> None:
    async def scenario() -> None:
        async with harness(FakeOwner(max_exchange=2000)) as made:
            rollout = made.client.rollout("r1")
            async with rollout.claim(dialect="chat") as call:
                call.complete(request={"text": "x" * 3000}, response={})
            assert call.outcome is CallOutcome.REFUSED
            with pytest.raises(ExchangeTooLarge) as raised:
                await rollout.record(exchange("big", text="y" * 3000))
            assert raised.value.size_bytes > 6000
            await made.client.close()
            view = made.owner.ledger.view("r1")
            assert (view.reasons, view.outstanding) == ({"refused": 2}, 0)
            rows = made.owner.sent_rows()
            assert [type(row) for row in rows] == [ClaimRow, ReleaseRow, MarkRow]

    run_virtual(scenario())


def test_record_refuses_what_is_no_exchange() -> None:
    async def scenario() -> None:
        async with harness() as made:
            for bad in ({"dialect": "chat", "request": _Unwritable()}, {"dialect": "fax"}, {"model_call_id": "x"}):
                with pytest.raises(InvalidExchange):
                    await made.client.record("r1", bad)

    run_virtual(scenario())


def test_cancelled_before_the_acknowledgment_the_claim_is_withdrawn() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:
            await made.client.record("r1", exchange("first"))
            owner.deaf_to_batches = True
            rollout = made.client.rollout("r1")

            async def worker() -> None:
                async with rollout.claim(dialect="chat"):
                    raise AssertionError("the call was never made")

            task = asyncio.create_task(worker())
            await settle()
            assert owner.ledger.outstanding_of("r1") == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            owner.deaf_to_batches = False
            owner.answer_held()
            assert await made.client.quiesce("r1", timeout_s=5.0)
            view = owner.ledger.view("r1")
            assert (view.reasons, len(view.entries)) == (None, 1)
            assert rollout.issued == 0

    run_virtual(scenario())


def test_cancelled_before_its_row_left_a_claim_is_never_sent() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        owner.go_away()
        async with harness(owner) as made:

            async def worker() -> None:
                async with made.client.rollout("r1").claim(dialect="chat"):
                    raise AssertionError("the call was never made")

            task = asyncio.create_task(worker())
            await settle()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            owner.come_back()
            await made.client.record("r1", exchange("x"))
            assert len(owner.sent_rows()) == 1

    run_virtual(scenario())


def test_cancelled_inside_the_call_the_failure_lands() -> None:
    async def scenario() -> None:
        async with harness() as made:
            entered = asyncio.Event()

            async def worker() -> None:
                async with made.client.rollout("r1").claim(dialect="chat", request={"q": 1}):
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(worker())
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await made.client.quiesce("r1", timeout_s=5.0)
            (kept,) = made.owner.exchanges("r1")
            assert (kept["error_category"], kept["request"]) == ("cancelled", {"q": 1})

    run_virtual(scenario())


def test_cancelled_while_it_commits_the_exchange_lands_and_quiescence_waits_for_it() -> None:
    async def scenario() -> None:
        owner = FakeOwner()
        async with harness(owner) as made:

            async def worker() -> None:
                async with made.client.rollout("r1").claim(dialect="chat") as call:
                    owner.mute = True
                    call.complete(request={}, response={"kept": True})

            task = asyncio.create_task(worker())
            await settle()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert owner.ledger.outstanding_of("r1") == 1
            waiting = asyncio.create_task(made.client.quiesce("r1", timeout_s=20.0))
            await settle()
            assert not waiting.done()
            owner.mute = False
            owner.cut()
            assert await waiting
            assert [kept["response"] for kept in owner.exchanges("r1")] == [{"kept": True}]

    run_virtual(scenario())


def test_a_handle_that_is_garbage_collected_is_released() -> None:
    async def scenario() -> None:
        async with harness() as made:
            call = made.client.rollout("r1").claim(dialect="chat")
            await call.__aenter__()
            assert made.owner.ledger.outstanding_of("r1") == 1
            del call
            gc.collect()
            assert await made.client.quiesce("r1", timeout_s=5.0)
            assert made.owner.ledger.view("r1").reasons == {"released": 1}

    run_virtual(scenario())


def test_a_generator_that_is_closed_inside_its_call_releases_it_or_commits_what_it_noted() -> None:
    async def scenario() -> None:
        async with harness() as made:
            rollout = made.client.rollout("r1")

            async def stream(partial: dict[str, Any] | None) -> Any:
                async with rollout.claim(dialect="chat") as call:
                    if partial is not None:
                        call.note(response=partial)
                    yield 1
                    raise AssertionError("nobody asked for more")

            for partial in (None, {"so": "far"}):
                chunks = stream(partial)
                assert await anext(chunks) == 1
                await chunks.aclose()
            assert await made.client.quiesce("r1", timeout_s=5.0)
            assert made.owner.ledger.view("r1").reasons == {"released": 1}
            (kept,) = made.owner.exchanges("r1")
            assert (kept["response"], kept["error_category"]) == ({"so": "far"}, "cancelled")

    run_virtual(scenario())


def test_a_large_exchange_is_packed_elsewhere_and_its_claim_stays_open_meanwhile() -> None:
    async def scenario() -> None:
        async with harness(pack_inline_bytes=1000) as made:
            made.executor.held = True
            rollout = made.client.rollout("r1")

            async def worker() -> None:
                async with rollout.claim(dialect="chat") as call:
                    call.complete(request={"text": "x" * 2000}, response={})

            task = asyncio.create_task(worker())
            await settle()
            assert len(made.executor.waiting) == 1
            assert await rollout.record(exchange("small")) == 0
            assert not await made.client.quiesce("r1", timeout_s=1.0)
            made.executor.run_held()
            await task
            assert await made.client.quiesce("r1", timeout_s=1.0)
            assert [kept["request"].get("text") for kept in made.owner.exchanges("r1")] == [None, "x" * 2000]

    run_virtual(scenario())


def test_issued_counts_distinct_calls_of_a_handle() -> None:
    async def scenario() -> None:
        async with harness() as made:
            rollout = made.client.rollout("r1")
            for call_id in ("a", "b", "a"):
                async with rollout.claim(dialect="chat", model_call_id=call_id) as call:
                    call.complete(request={}, response={})
            await rollout.record(exchange("c"))
            assert rollout.issued == 3
            assert made.client.rollout("r1").issued == 0

    run_virtual(scenario())


def test_a_fault_of_the_client_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    async def scenario() -> None:
        async with harness() as made:
            rollout = made.client.rollout("r1")
            await rollout.record(exchange("first"))
            monkeypatch.setattr("gym_capture.client.claim_book.pack", fault)
            monkeypatch.setattr("gym_capture.client.history_book.Turn.pack", fault)
            async with rollout.claim(dialect="chat") as call:
                call.complete(request={}, response={})
            assert call.outcome == "dropped"
            with pytest.raises(DroppedExchange):
                await rollout.record(exchange("second"))
            assert await made.client.quiesce("r1", timeout_s=1.0)
            assert made.owner.ledger.view("r1").reasons == {"dropped": 2}
            monkeypatch.undo()
            monkeypatch.setattr("gym_capture.client.claim_book.ClaimRow", fault)
            async with rollout.claim(dialect="chat") as call:
                call.complete(request={}, response={})
            assert call.outcome == "durable"

    run_virtual(scenario())
    assert "a fault" in caplog.text
