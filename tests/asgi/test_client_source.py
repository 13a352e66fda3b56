"""Where the middleware's client comes from."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from pathlib import Path

import pytest

from gym_capture.api import connect
from gym_capture.asgi import CaptureMiddleware
from gym_capture.asgi.client_source import RETRY_S, ClientSource
from gym_capture.client.client import CaptureClient
from gym_capture.client.host import CoreHost
from gym_capture.errors import OwnerNotFound
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.manual_clock import ManualClock
from gym_capture.testing.threaded_owner import ThreadedOwner
from tests.asgi.server_side import Replaying, ServerSide, body, http_scope, start
from tests.recording.exchanges import JSON, RESPONSE

CHAT = "/ng-rollout/7-0/v1/chat/completions"


async def answering(scope: object, receive: object, send: object) -> None:
    """An app that pickles."""
    await Replaying(start(JSON), body(RESPONSE))(scope, receive, send)  # type: ignore[arg-type]  # an app's signature


class Connecting:
    """Stands for `connect`: blocks until it is let go, and fails while there is no client."""

    def __init__(self, client: CaptureClient | None) -> None:
        self.client = client
        self.attempts = 0
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def __call__(self) -> CaptureClient:
        self.attempts += 1
        self.begun.set()
        assert self.let_go.wait(30.0)
        if self.client is None:
            raise OwnerNotFound("there is no owner here", candidates=[])
        return self.client


@pytest.fixture
def owner(tmp_path: Path) -> ThreadedOwner:
    return ThreadedOwner(tmp_path / "capture")


async def test_requests_that_come_meanwhile_share_one_attempt_and_the_loop_goes_on(owner: ThreadedOwner) -> None:
    client = CaptureClient(CoreHost(owner.stream_transport()))
    connecting = Connecting(client)
    source = ClientSource(connect=connecting)
    waiting = [asyncio.ensure_future(source.client()) for _ in range(20)]
    assert await asyncio.to_thread(connecting.begun.wait, 30.0)
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert not any(task.done() for task in waiting[1:])
    connecting.let_go.set()
    assert await asyncio.gather(*waiting[1:]) == [client] * 19
    assert await source.client() is client
    assert connecting.attempts == 1
    owner.close()


async def test_an_attempt_that_fails_is_repeated_after_a_while_and_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    connecting, clock = Connecting(None), ManualClock()
    connecting.let_go.set()
    source = ClientSource(connect=connecting, clock=clock)
    assert [*await asyncio.gather(source.client(), source.client())] == [None, None]
    assert (await source.client(), connecting.attempts) == (None, 1)
    clock.advance(RETRY_S - 0.1)
    assert (await source.client(), connecting.attempts) == (None, 1)
    clock.advance(0.2)
    assert (await source.client(), connecting.attempts) == (None, 2)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 2
    assert all("UNCAPTURED" in line for line in said)
    assert "there is no owner here" in said[0]


async def test_by_the_environment_requests_pass_uncaptured_until_the_owner_is_there(
    owner: ThreadedOwner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GYM_CAPTURE_DIR", str(owner.directory))
    clock = ManualClock()
    middleware = CaptureMiddleware(answering)
    middleware._source = ClientSource(clock=clock)
    server = ServerSide()
    await server.run(middleware, http_scope(CHAT))
    assert server.body == RESPONSE
    assert "has no live owner" in caplog.text
    owner.start()
    clock.advance(RETRY_S)
    await ServerSide().run(middleware, http_scope(CHAT))
    client = await middleware._source.client()
    assert client is not None
    assert await client.close()
    assert len(CaptureStore(owner.directory).read("7-0")) == 1
    owner.close()


async def test_it_pickles_with_and_without_a_client(owner: ThreadedOwner, monkeypatch: pytest.MonkeyPatch) -> None:
    owner.start()
    monkeypatch.setenv("GYM_CAPTURE_DIR", str(owner.directory))
    client = connect(owner.directory)
    for middleware in (CaptureMiddleware(answering, client, non_generating=["/x"]), CaptureMiddleware(answering)):
        again = pickle.loads(pickle.dumps(middleware))
        server = ServerSide()
        await server.run(again, http_scope(CHAT))
        assert server.body == RESPONSE
    assert await client.close()
    assert len(CaptureStore(owner.directory).read("7-0")) == 2
    owner.close()
    unpickled = CaptureMiddleware(answering, CaptureClient(CoreHost(owner.stream_transport())))
    with pytest.raises(TypeError, match="does not pickle"):
        pickle.dumps(unpickled)
