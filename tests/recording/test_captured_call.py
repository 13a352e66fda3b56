"""A call from its claim to its end, and capture's own troubles on the way."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_capture.client.client import CaptureClient
from gym_capture.client.host import CoreHost
from gym_capture.client.outcome import CallOutcome
from gym_capture.model.rows import ReleaseRow
from gym_capture.recording.background import answered_later
from gym_capture.recording.captured_call import CapturedCall
from gym_capture.recording.recorder import ExchangeRecorder, RecordingPolicy
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.threaded_owner import ThreadedOwner
from tests.client.harness import Harness, harness
from tests.client.virtual_time import run_virtual, settle
from tests.recording.exchanges import DONE, EVENT_STREAM, JSON, REASSEMBLED, REQUEST, RESPONSE, STREAM, delta

POLICY = RecordingPolicy(1 << 20)
MODEL = {"type": "model", "name": "m"}


def a_call(made: Harness, dialect: str | None = "chat", headers: Any = ()) -> CapturedCall:
    return CapturedCall(made.client.rollout("r1"), dialect, POLICY, headers, model_ref=MODEL)


def released(made: Harness) -> list[str]:
    return [row.reason for row in made.owner.sent_rows() if isinstance(row, ReleaseRow)]


def test_a_call_is_claimed_observed_and_committed() -> None:
    async def scenario() -> None:
        async with harness() as made:
            call = a_call(made, headers=[(b"x-client-session-id", b"s")])
            await call.begin()
            assert made.owner.ledger.outstanding_of("r1") == 1
            call.request_body(REQUEST)
            call.response_started(200, EVENT_STREAM)
            await asyncio.sleep(2.0)
            holds = [call.response_body(chunk) for chunk in STREAM]
            await asyncio.sleep(1.0)
            assert (holds, call.closed, call.outcome) == ([None, None, 0], False, None)
            await call.commit()
            assert (call.closed, call.outcome) == (True, CallOutcome.DURABLE)
            assert call.response_body(b"more") is None
            (kept,) = made.owner.exchanges("r1")
            del kept["model_call_id"]
            assert kept == {
                "dialect": "chat",
                "model_ref": MODEL,
                "started_at": 1_700_000_000.0,
                "completed_at": 1_700_000_003.0,
                "latency_ms": 3000.0,
                "latency_ttft_ms": 2000.0,
                "status_code": 200,
                "error_category": None,
                "request": {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "stream": True},
                "response": REASSEMBLED,
                "client_session_id": "s",
            }

    run_virtual(scenario())


LARGE = RecordingPolicy(8 << 20)
TEXT = "word \\n " * 100_000


async def large_call(client: CaptureClient) -> CapturedCall:
    call = CapturedCall(client.rollout("r1"), "chat", LARGE)
    await call.begin()
    call.request_body(REQUEST)
    call.response_started(200, JSON)
    call.response_body(b'{"text": "' + TEXT.encode() + b'"}')
    call.response_ended()
    return call


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[ThreadedOwner]:
    owner = ThreadedOwner(tmp_path / "d")
    owner.start()
    yield owner
    owner.close()


def exchanges(tmp_path: Path) -> list[dict[str, Any]]:
    return CaptureStore(tmp_path / "d").read_available("r1")[0]


class Gate:
    """Lets the recorder go on when it is told to, and says in which threads it worked."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()
        self.threads: list[bool] = []
        fields = ExchangeRecorder.exchange_fields

        def gated(recorder: ExchangeRecorder, cause: str | None = None) -> dict[str, Any]:
            aside = threading.current_thread() is not threading.main_thread()
            self.threads.append(aside)
            self.reached.set()
            if aside:
                assert self.open.wait(30)
            return fields(recorder, cause)

        patch.setattr(ExchangeRecorder, "exchange_fields", gated)

    async def at_work(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 30)


@pytest.mark.parametrize("end", ["commit", "detach", "cancelled"])
def test_a_large_exchange_is_looked_through_while_the_loop_serves_others(
    end: str, owner: ThreadedOwner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    client = CaptureClient(CoreHost(owner.stream_transport()))

    async def scenario() -> None:
        call = await large_call(client)
        leaving: asyncio.Future[None] | None = None
        if end == "detach":
            call.detach("cancelled")
        else:
            leaving = asyncio.ensure_future(call.commit())
        await gate.at_work()
        small = CapturedCall(client.rollout("r2"), "chat", LARGE)
        await small.begin()
        small.response_started(200, JSON)
        small.response_body(RESPONSE)
        small.response_ended()
        await small.commit()
        assert (small.outcome, gate.threads) == (CallOutcome.DURABLE, [True, False])
        assert (exchanges(tmp_path), call.outcome) == ([], None)
        if end == "cancelled" and leaving is not None:
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
        gate.open.set()
        if end == "commit" and leaving is not None:
            await leaving
            assert call.outcome is CallOutcome.DURABLE
        assert await client.quiesce("r1", timeout_s=30)
        (kept,) = exchanges(tmp_path)
        assert (kept["response"]["text"], kept["error_category"]) == (json.loads(f'"{TEXT}"'), None)
        assert await client.close()

    asyncio.run(scenario())


def test_a_loop_that_closes_loses_no_large_exchange_and_the_client_waits_for_it(
    owner: ThreadedOwner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    client = CaptureClient(CoreHost(owner.stream_transport()))

    async def leave() -> None:
        leaving = asyncio.ensure_future((await large_call(client)).commit())
        await gate.at_work()
        assert not leaving.done()

    async def close() -> bool:
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0)
        gate.open.set()
        return await closing

    asyncio.run(leave())
    assert asyncio.run(close())
    (kept,) = exchanges(tmp_path)
    assert kept["error_category"] is None


def test_a_small_body_that_decodes_to_much_is_a_large_exchange() -> None:
    def is_large(body: bytes, encoding: bytes) -> bool:
        recorder = ExchangeRecorder("chat", LARGE, [(b"content-encoding", encoding)])
        recorder.request_body(body)
        return recorder.is_large

    assert is_large(gzip.compress(bytes(1 << 20)), b"gzip")
    assert not is_large(gzip.compress(REQUEST), b"gzip")
    assert not is_large(gzip.compress(REQUEST), b"made-up")
    assert is_large(bytes(1 << 20), b"identity")


def test_a_body_has_no_first_token() -> None:
    async def scenario() -> None:
        async with harness() as made:
            call = a_call(made)
            await call.begin()
            call.response_started(200, JSON)
            call.response_body(RESPONSE)
            call.response_ended()
            await call.commit()
            assert made.owner.exchanges("r1")[0]["latency_ttft_ms"] is None

    run_virtual(scenario())


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_a_background_response_is_kept_and_marks_the_rollout_for_its_answer_comes_later(
    status: str, detached: bool
) -> None:
    async def scenario() -> None:
        async with harness() as made:
            rollout = made.client.rollout("r1")
            call = CapturedCall(rollout, "responses", POLICY)
            await call.begin()
            call.request_body(b'{"input": "2 + 2?", "background": true}')
            call.response_started(200, JSON)
            response = {"id": "resp_1", "object": "response", "status": status, "background": True, "output": []}
            call.response_body(json.dumps(response).encode())
            call.response_ended()
            if detached:
                call.detach("cancelled")
            else:
                await call.commit()
                assert call.outcome is CallOutcome.DURABLE
            assert await made.client.quiesce("r1")
            (kept,) = made.owner.exchanges("r1")
            assert (kept["response"], kept["error_category"]) == (response, None)
            view = made.owner.ledger.view("r1")
            assert (view.reasons, view.outstanding, rollout.issued) == ({"unobserved": 1}, 0, 1)

    run_virtual(scenario())


def test_a_mark_never_lets_quiescence_pass_between_an_exchange_and_itself() -> None:
    async def scenario() -> None:
        async with harness() as made:
            claim = made.client.rollout("r1").claim(dialect="chat")
            await claim.__aenter__()
            claim.complete(response={})
            claim.mark("unobserved")
            made.owner.deaf_to_batches = True
            leaving = asyncio.ensure_future(claim.__aexit__(None, None, None))
            await settle()
            while not leaving.done():
                assert made.owner.ledger.outstanding_of("r1") > 0
                made.owner.answer_held()
                await settle()
            assert len(made.owner.exchanges("r1")) == 1
            made.owner.answer_held()
            await settle()
            view = made.owner.ledger.view("r1")
            assert (view.reasons, view.outstanding) == ({"unobserved": 1}, 0)
            with pytest.raises(ValueError, match="give at most 64"):
                claim.mark("two words")

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("dialect", "response"),
    [
        ("responses", b'{"status": "completed", "metadata": {"status": "queued"}}'),
        ("responses", b'["queued"]'),
        ("responses", b"queued"),
        ("responses", None),
        ("chat", b'{"status": "queued"}'),
        ("responses", b'{"status": ' + b"[" * 100_000),
    ],
)
def test_no_other_response_is_taken_for_one_that_is_answered_later(dialect: str, response: bytes | None) -> None:
    assert not answered_later(dialect, {"response": response})


def test_a_call_that_was_never_made_is_not_counted_as_issued() -> None:
    async def scenario() -> None:
        async with harness() as made:
            rollout = made.client.rollout("r1")
            for end in ("release", "abandon"):
                call = CapturedCall(rollout, "chat", POLICY)
                await call.begin()
                assert rollout.issued == 1
                if end == "release":
                    await call.release("")
                else:
                    call.abandon("")
                assert rollout.issued == 0
            missing = CapturedCall(rollout, "chat", POLICY)
            await missing.begin()
            await missing.release("unobserved")
            assert rollout.issued == 1

    run_virtual(scenario())


def test_detached_it_commits_what_there_is_without_waiting() -> None:
    async def scenario() -> None:
        async with harness() as made:
            call = a_call(made)
            await call.begin()
            call.request_body(REQUEST)
            call.response_started(200, EVENT_STREAM)
            call.response_body(delta("hel"))
            call.detach("cancelled")
            call.detach("exception")
            await call.commit()
            await call.release("late")
            await settle()
            (kept,) = made.owner.exchanges("r1")
            assert (kept["error_category"], call.outcome) == ("cancelled", CallOutcome.DURABLE)
            assert kept["response"]["choices"][0]["message"]["content"] == "hel"
            assert (made.owner.ledger.outstanding, released(made)) == (0, [])

    run_virtual(scenario())


def test_a_call_of_no_dialect_is_claimed_and_can_only_be_released() -> None:
    async def scenario() -> None:
        async with harness() as made:
            first, second = a_call(made, None), a_call(made, None)
            await first.begin()
            await second.begin()
            assert made.owner.ledger.outstanding_of("r1") == 2
            first.request_body(REQUEST)
            first.response_started(200, JSON)
            assert first.response_body(RESPONSE) is None
            await first.release("unobserved")
            second.abandon("")
            await settle()
            assert released(made) == ["unobserved", ""]
            assert (made.owner.exchanges("r1"), made.owner.ledger.view("r1").reasons) == ([], {"unobserved": 1})

    run_virtual(scenario())


def test_cancelled_while_it_is_committed_it_is_still_written() -> None:
    async def scenario() -> None:
        async with harness() as made:
            call = a_call(made)
            await call.begin()
            call.response_started(200, JSON)
            call.response_body(RESPONSE)
            call.response_ended()
            made.owner.deaf_to_batches = True
            waiting = asyncio.ensure_future(call.commit())
            await settle()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            call.detach("cancelled")
            made.owner.answer_held()
            await settle()
            assert [kept["error_category"] for kept in made.owner.exchanges("r1")] == ["capture_parse_error"]
            assert made.owner.ledger.outstanding == 0

    run_virtual(scenario())


def test_cancelled_while_it_is_claimed_the_claim_is_withdrawn() -> None:
    async def scenario() -> None:
        async with harness() as made:
            made.owner.deaf_to_batches = True
            begun = asyncio.ensure_future(a_call(made).begin())
            await settle()
            assert not begun.done()
            begun.cancel()
            with pytest.raises(asyncio.CancelledError):
                await begun
            made.owner.answer_held()
            await settle()
            assert (released(made), made.owner.ledger.outstanding) == ([""], 0)
            assert made.owner.ledger.view("r1").reasons is None

    run_virtual(scenario())


@pytest.mark.parametrize("step", ["__init__", "request_body", "response_started", "response_body", "exchange_fields"])
@pytest.mark.parametrize("leave", ["commit", "detach"])
def test_a_fault_of_the_recorder_reaches_nobody_and_marks_the_rollout(
    step: str, leave: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*args: object) -> None:
        raise MemoryError("a planted fault")

    async def scenario() -> None:
        async with harness() as made:
            monkeypatch.setattr(ExchangeRecorder, step, fault)
            call = a_call(made)
            await call.begin()
            call.request_body(REQUEST)
            call.response_started(200, EVENT_STREAM)
            assert call.response_body(STREAM[0]) is None
            call.response_body(DONE)
            call.response_ended()
            if leave == "commit":
                await call.commit()
            else:
                call.detach("cancelled")
            await settle()
            assert (released(made), made.owner.ledger.outstanding) == (["recorder"], 0)
            assert made.owner.ledger.view("r1").reasons == {"recorder": 1}

    with caplog.at_level(logging.DEBUG, logger="gym_capture.recording"):
        run_virtual(scenario())
    assert "a planted fault" in caplog.text


def test_what_is_wrong_with_the_client_reaches_nobody() -> None:
    async def scenario() -> None:
        async with harness() as made:
            made.core.close()
            await settle()
            call = a_call(made)
            await call.begin()
            call.response_started(200, JSON)
            call.response_body(RESPONSE)
            await call.commit()
            call.detach("cancelled")
            assert call.outcome in (None, CallOutcome.DROPPED)

    run_virtual(scenario())


def test_a_dialect_that_is_not_known_is_logged_and_nothing_is_claimed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with harness() as made:
            call = a_call(made, "gemini")
            await call.begin()
            await call.commit()
            assert (made.owner.sent_rows(), call.outcome) == ([], None)

    run_virtual(scenario())
