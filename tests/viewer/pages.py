"""The viewer for tests: its application in this process, and directories with something to look at."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import uvicorn

from gym_capture.service.executor import ThreadExecutor
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.viewer.app import PATIENCE_S, viewer_app
from gym_capture.viewer.server import HOST, hosts_of
from tests.reading.calls import SYSTEM, Json, assistant, chat, user
from tests.storage.owners import Batch, Owner

TOKEN = "the-token"
BASE = f"http://127.0.0.1:4711/{TOKEN}/"
HOSTILE = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>\x1b]0;owned\x07 \u202etxt.exe\u202c \0'
HOSTILE_SHOWN = (
    '<img src=x onerror="window.owned=1"><script>window.owned=1</script>\\x1b]0;owned\\x07 \\u202etxt.exe\\u202c \\x00'
)


@asynccontextmanager
async def viewer(
    place: str | Path, slice_s: float = 5.0, patience_s: float = PATIENCE_S
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, without a server."""
    with closing(ThreadExecutor("viewer")) as executor:
        app = viewer_app(place, TOKEN, hosts_of(4711), executor, slice_s, patience_s)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE) as client:
            yield client


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """The application on a port of its own; gives the address."""
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    with closing(ThreadExecutor("viewer")) as executor, listener:
        app = viewer_app(directory, TOKEN, hosts_of(port), executor)
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", log_config=None, log_level="warning"))
        thread = Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            yield f"http://{HOST}:{port}/{TOKEN}/"
        finally:
            server.should_exit = True
            thread.join(10)


class LiveRun:
    """A directory with an owner that goes on writing.

    Args:
        directory: made here.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700)
        self.directory = directory
        self._owner = Owner(PosixFiles(directory))
        self._batches = 0

    def send(self, batch: Batch) -> None:
        self._batches += 1
        self._owner.send(batch, self._batches)

    def commit(self, rollout_id: str, *exchanges: Json) -> None:
        batch = Batch()
        for exchange in exchanges:
            batch.commit(rollout_id, exchange)
        self.send(batch)

    def stop(self) -> None:
        self._owner.stop()


def conversation(name: str, hostile: str = "") -> list[Json]:
    """Three calls: a question, a tool's result, and a failure; two of them at the same time."""
    call = {"id": f"t-{name}", "type": "function", "function": {"name": "look", "arguments": '{"at": "the sky"}'}}
    use: Json = {
        "role": "assistant",
        "content": None,
        "reasoning": f"I had better look. {hostile}",
        "tool_calls": [call],
    }
    result: Json = {"role": "tool", "tool_call_id": f"t-{name}", "content": f"blue {hostile}"}
    first = [SYSTEM, user(f"what colour is the sky of {name}? {hostile}")]
    second = [*first, use, result]
    limit: dict[str, Any] = {"status_code": 429, "error_category": "rate_limit", "response": {"error": "slow down"}}
    return [
        chat(f"{name}-1", first, use),
        chat(f"{name}-2", second, assistant(f"blue, as said {hostile}"), at=2),
        chat(f"{name}-3", second, at=2.5, **limit),
    ]
