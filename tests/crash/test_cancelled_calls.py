"""Calls that are cancelled wherever they are: each is captured with its category, or was never made; nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gym_capture
from gym_capture.asgi import CaptureMiddleware
from gym_capture.asgi.messages import Message
from gym_capture.storage.store import CaptureStore
from tests.asgi.proxy_process import proxy_process
from tests.asgi.raw_http import UpstreamConnection, raw_upstream
from tests.asgi.server_side import http_scope
from tests.crash.cancelled_calls import (
    BEFORE_CLAIM,
    BEFORE_FIRST,
    IN_COMMIT,
    POINTS,
    SYNC_MS,
    DoomedCall,
    Inquirer,
    Model,
    doomed_calls,
)
from tests.crash.model_streams import request_of, response_of
from tests.crash.processes import Child
from tests.crash.stream_client import StreamClient, number_in
from tests.crash.stream_server import HEAD

CALLS = 500
PER_ROLLOUT = 5
AT_ONCE = 40
SEED = 20_263


@pytest.fixture
def capture(directory: Path, owner: Child) -> Iterator[gym_capture.CaptureClient]:
    """A client of an owner whose disk is slow."""
    owner.ask(f"slow before sync {SYNC_MS}")
    client = gym_capture.connect(capture_dir=directory)
    yield client
    client.sync.close()


async def cancel_all(capture: gym_capture.CaptureClient, calls: list[DoomedCall], cancel_one: Any) -> None:
    """Run all, some at once; and hold one with its model until it was seen that quiescence waits for it."""
    free = asyncio.Semaphore(AT_ONCE)
    held = next(call for call in calls if call.point == BEFORE_FIRST)
    held.let_go.clear()

    async def one(call: DoomedCall) -> None:
        async with free:
            await cancel_one(call)

    async def watch() -> None:
        async with asyncio.timeout(60.0):
            await held.reached.wait()
        assert not await capture.quiesce(held.rollout, timeout_s=0.05)
        held.let_go.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        for call in calls:
            group.create_task(one(call))


async def check(directory: Path, capture: gym_capture.CaptureClient, model: Model, asked: Inquirer) -> Counter[str]:
    """Every call that the model saw is on disk once, as far as it got; no answer was early. Returns the categories."""
    assert await capture.quiesce(None, timeout_s=30.0)
    asked.finish()
    assert asked.early == []
    store = CaptureStore(directory)
    categories: Counter[str] = Counter()
    captured: Counter[int] = Counter()
    for rollout in store.rollout_ids():
        assert not store.is_incomplete(rollout)
        for exchange in store.read(rollout):
            category = exchange["error_category"]
            categories[str(category)] += 1
            if exchange["request"] is None:
                # The client went while the claim was awaited: it was told of, and never forwarded.
                assert (category, exchange["response"]) == ("cancelled", None)
                continue
            number = number_in(exchange["request"])
            captured[number] += 1
            assert model.calls[number].rollout == rollout
            whole = response_of(number)
            if category is None:
                assert model.calls[number].point == IN_COMMIT
                assert exchange["response"] == whole
            else:
                assert category == "cancelled"
                if exchange["response"] is not None:
                    text = exchange["response"]["choices"][0]["message"]["content"]
                    assert whole["choices"][0]["message"]["content"].startswith(text)
    assert [number for number in model.seen if captured[number] != 1] == []
    assert [
        number for number in captured if number not in model.seen and model.calls[number].point == BEFORE_CLAIM
    ] == []
    return categories


@pytest.mark.crash
async def test_500_tasks_cancelled_at_any_point_are_captured_or_never_called_a_model(
    directory: Path, owner: Child, capture: gym_capture.CaptureClient
) -> None:
    calls = doomed_calls(CALLS, PER_ROLLOUT, SEED)
    model = Model(calls)
    inquirer = Inquirer(capture, directory, model, SEED)
    in_claim = in_commit = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        number = json.loads((await receive())["body"])["number"]
        pieces = model.answer(number)
        first = True
        async for piece in pieces:
            if first:
                first = False
                headers = [(b"content-type", b"text/event-stream")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    middleware = CaptureMiddleware(app, capture)

    async def cancel_one(call: DoomedCall) -> None:
        nonlocal in_claim, in_commit
        sent = bytearray()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": request_of(call.number), "more_body": False}

        async def send(message: Message) -> None:
            sent.extend(message.get("body", b""))

        scope = http_scope(f"/ng-rollout/{call.rollout}/v1/chat/completions")
        task = asyncio.ensure_future(middleware(scope, receive, send))
        if call.point != BEFORE_CLAIM:
            await call.moment()
        in_claim += call.point == POINTS[1] and call.number not in model.seen
        in_commit += call.point == IN_COMMIT and b"[DONE]" not in sent
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with inquirer:
        await cancel_all(capture, calls, cancel_one)
        categories = await check(directory, capture, model, inquirer)
    planned = Counter(call.point for call in calls)
    # Where a cancellation falls is up to the scheduler; what counts is that many fell into the waits.
    assert in_claim > planned[POINTS[1]] * 0.8
    assert in_commit > planned[IN_COMMIT] * 0.5
    assert sum(categories.values()) == len(model.seen)
    assert categories["None"] == planned[IN_COMMIT]
    assert owner.ask("stats")["stats"]["outstanding"] == 0


@pytest.mark.crash
async def test_500_clients_that_hang_up_at_any_point_are_captured_or_never_forwarded(
    directory: Path, owner: Child, capture: gym_capture.CaptureClient, tmp_path: Path
) -> None:
    calls = doomed_calls(CALLS, PER_ROLLOUT, SEED + 1)
    model = Model(calls)
    inquirer = Inquirer(capture, directory, model, SEED)
    rng = random.Random(SEED)

    async def serve(connection: UpstreamConnection) -> None:
        while True:
            head = await connection.head()
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            number = json.loads(await connection.reader.readexactly(length))["number"]
            first = True
            async for piece in model.answer(number):
                await connection.say((HEAD if first else b"") + b"%x\r\n%s\r\n" % (len(piece), piece))
                first = False
            await connection.say(b"0\r\n\r\n")

    async with raw_upstream(serve) as upstream, proxy_process(tmp_path, directory, upstream.url) as proxy:

        async def cancel_one(call: DoomedCall) -> None:
            request = StreamClient(proxy.port, call.rollout, call.number).request()
            _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(request[: rng.randrange(1, 60)] if call.point == BEFORE_CLAIM else request)
            await call.moment()
            if rng.random() < 0.5:
                writer.transport.abort()  # a reset
            else:
                writer.close()

        with inquirer:
            await cancel_all(capture, calls, cancel_one)
            categories = await check(directory, capture, model, inquirer)
    planned = Counter(call.point for call in calls)
    assert categories["None"] == planned[IN_COMMIT]
    assert owner.ask("stats")["stats"]["outstanding"] == 0
