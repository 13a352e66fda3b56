"""Many requests at once through the middleware, while callers leave and the owner dies."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from gym_capture.asgi import CaptureMiddleware
from gym_capture.asgi.messages import Receive, Scope, Send
from gym_capture.model.rows import ClaimRow, ReleaseRow
from tests.asgi.served_app import a_run
from tests.asgi.server_side import Replaying, ServerSide, body, http_scope, start
from tests.client.harness import harness
from tests.client.virtual_time import run_virtual, settle
from tests.recording.exchanges import DONE, EVENT_STREAM, REASSEMBLED, STREAM, delta

CALLS = 500
STREAMS = 200


def test_of_500_calls_cancelled_anywhere_each_is_captured_or_known_to_be_missing() -> None:
    draw = random.Random(7)

    async def scenario() -> None:
        async with harness() as made:
            kept, withdrawn = 0, 0
            for number in range(CALLS):
                rollout = f"{number}-0"
                going = [asyncio.Event() for _ in range(3)]
                app = Replaying(
                    start(EVENT_STREAM),
                    going[0],
                    body(delta("hel"), more=True),
                    going[1],
                    body(delta("lo") + DONE, more=True),
                    going[2],
                    body(b""),
                )
                middleware = CaptureMiddleware(app, made.client)
                path = f"/ng-rollout/{rollout}/v1/chat/completions"
                serving = asyncio.ensure_future(ServerSide().run(middleware, http_scope(path)))
                for event in going[: draw.randrange(4)]:
                    event.set()
                await settle(draw.randrange(25))
                serving.cancel()
                ended = await asyncio.wait({serving}, timeout=1.0)
                assert ended[0] == {serving}
                # Asked at once: true only when what the call left is on disk.
                assert await made.client.quiesce(rollout)
                exchanges = made.owner.exchanges(rollout)
                claims = [row for row in made.owner.sent_rows() if isinstance(row, ClaimRow) and row.rollout == rollout]
                assert len(exchanges) <= len(claims) <= 1
                if app.scopes:
                    # The model was called: there is an exchange, whole or cancelled.
                    (call,) = exchanges
                    assert call["error_category"] in (None, "cancelled")
                    assert (call["error_category"] is None) <= (call["response"] is not None)
                    kept += 1
                else:
                    withdrawn += 1
            assert made.owner.ledger.outstanding == 0
            released = [row.reason for row in made.owner.sent_rows() if isinstance(row, ReleaseRow)]
            assert set(released) <= {""}
            assert (kept > CALLS // 2, withdrawn > 5) == (True, True)

    run_virtual(scenario())


async def test_the_owner_dies_under_200_streams_and_each_ends_as_sent_and_lands_once(tmp_path: Path) -> None:
    async with a_run(tmp_path / "capture") as run:
        going, all_begun = asyncio.Event(), asyncio.Event()
        begun: list[None] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await send(start(EVENT_STREAM))
            await send(body(STREAM[0], more=True))
            begun.append(None)
            if len(begun) == STREAMS:
                all_begun.set()
            await going.wait()
            await send(body(STREAM[1] + DONE, more=True))
            await send(body(b""))

        middleware = CaptureMiddleware(app, run.client)
        servers = [ServerSide() for _ in range(STREAMS)]
        path = "/ng-rollout/7-0/v1/chat/completions"
        serving = [asyncio.ensure_future(server.run(middleware, http_scope(path))) for server in servers]
        await all_begun.wait()
        await asyncio.to_thread(run.owner.kill)
        going.set()
        await settle()
        # All but the terminal event has passed; nothing is said to be on disk while nobody can have written it.
        assert {server.body for server in servers} == {b"".join(STREAM[:2])}
        assert not any(task.done() for task in serving)
        await asyncio.to_thread(run.owner.start)
        async with asyncio.timeout(60.0):
            await asyncio.gather(*serving)
        assert {server.body for server in servers} == {b"".join(STREAM)}
        told = await run.exchanges("7-0")
        assert len(told) == len({call["model_call_id"] for call in told}) == STREAMS
        assert all((call["response"], call["error_category"]) == (REASSEMBLED, None) for call in told)
