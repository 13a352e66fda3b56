"""An app on a real server, with a real owner on a real disk behind its middleware."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn

from gym_capture.client.client import CaptureClient
from gym_capture.client.host import CoreHost
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.threaded_owner import ThreadedOwner


@asynccontextmanager
async def served(app: Any, **options: Any) -> AsyncIterator[int]:
    """Uvicorn in this loop; yields its port, on the loopback."""
    config = uvicorn.Config(app, log_config=None, lifespan="on", **options)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await server.startup(sockets=[listening])
        try:
            yield listening.getsockname()[1]
        finally:
            await server.shutdown(sockets=[listening])


class Run:
    """A run's owner and a client of it."""

    def __init__(self, directory: Path) -> None:
        self.owner = ThreadedOwner(directory)
        self.owner.start()
        self.client = CaptureClient(CoreHost(self.owner.stream_transport()))

    async def exchanges(self, rollout_id: str) -> list[dict[str, Any]]:
        """What is on disk, once nothing is outstanding."""
        assert await self.client.quiesce(rollout_id, timeout_s=30.0)
        return CaptureStore(self.owner.directory).read(rollout_id)

    def files(self) -> bytes:
        """Every byte of the capture directory."""
        return b"\n".join(path.read_bytes() for path in sorted(self.owner.directory.rglob("*")) if path.is_file())

    async def close(self) -> None:
        """End the client, then the owner."""
        await self.client.close()
        self.owner.close()


@asynccontextmanager
async def a_run(directory: Path) -> AsyncIterator[Run]:
    """A run; ended at the end."""
    run = Run(directory)
    try:
        yield run
    finally:
        await run.close()
