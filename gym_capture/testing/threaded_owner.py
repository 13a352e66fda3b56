"""A real owner of a real directory in a thread of its own, which can be cut off, killed and started again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from gym_capture.client.stream_transport import StreamTransport
from gym_capture.client.transport import Transport
from gym_capture.errors import OwnerUnavailable
from gym_capture.model.clock import SystemClock
from gym_capture.model.endpoint import Endpoint
from gym_capture.model.entropy import SystemEntropy
from gym_capture.service.capture_service import CaptureService
from gym_capture.service.executor import ThreadExecutor
from gym_capture.service.settings import OwnerSettings
from gym_capture.service.stream_server import StreamServer
from gym_capture.storage.owner_file import OwnerIdentity
from gym_capture.storage.posix_files import PosixFiles, make_capture_directory
from gym_capture.storage.run_marker import create_or_adopt_run
from gym_capture.testing.cutting_proxy import CuttingProxy
from gym_capture.testing.in_process import InProcessTransport

T = TypeVar("T")


class _Incarnation:
    """One owner from its start to its end, with a loop and thread of its own."""

    def __init__(self, directory: Path, settings: OwnerSettings) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="capture-owner", daemon=True)
        self.thread.start()
        self.executors = [ThreadExecutor("capture-log"), ThreadExecutor("capture-read", 2)]
        self.service: CaptureService
        self.server = StreamServer()
        self.port = self.submit(self._open(directory, settings)).result(30.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        # First, for a connection that was accepted just now is being set up by a task.
        self.loop.run_until_complete(self.server.close())
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    async def _open(self, directory: Path, settings: OwnerSettings) -> int:
        self.service = CaptureService(
            PosixFiles(directory),
            OwnerIdentity("threaded-owner"),
            settings,
            clock=SystemClock(),
            executor=self.executors[0],
            readers=self.executors[1],
            entropy=SystemEntropy(),
            on_leave=lambda why: None,
        )
        port = await self.server.start(self.service, "127.0.0.1")
        await self.service.open(listening=("127.0.0.1", port))
        return port

    def kill(self) -> None:
        """Stop at once: nothing is answered, flushed or sealed."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(30.0)
        for executor in self.executors:
            executor.close()


class ThreadedOwner:
    """An owner, reached over a proxy that cuts connections, or in process.

    Args:
        directory: the capture directory; made when absent.
        settings: the owner's.
    """

    def __init__(self, directory: Path, settings: OwnerSettings | None = None) -> None:
        self.directory = directory
        self._settings = settings or OwnerSettings()
        make_capture_directory(directory)
        create_or_adopt_run(PosixFiles(directory))
        self._incarnation: _Incarnation | None = None
        self._in_process: list[InProcessTransport] = []
        self.proxy = CuttingProxy()

    @property
    def service(self) -> CaptureService:
        """The service that runs now."""
        if self._incarnation is None:
            raise OwnerUnavailable("the test's owner is not running")
        return self._incarnation.service

    def start(self) -> None:
        """Start an owner; what an earlier one acknowledged is there."""
        incarnation = self._incarnation = _Incarnation(self.directory, self._settings)
        self.proxy.target = ("127.0.0.1", incarnation.port)
        for transport in self._in_process:
            transport.service, transport.loop, transport.refusing = incarnation.service, incarnation.loop, False

    def kill(self) -> None:
        """End the owner as a crash does."""
        incarnation, self._incarnation = self._incarnation, None
        self.proxy.target = None
        for transport in self._in_process:
            transport.refusing = True
        self.cut()
        if incarnation is not None:
            incarnation.kill()

    def cut(self) -> None:
        """Break every connection; the owner lives."""
        self.proxy.cut()
        for transport in self._in_process:
            transport.cut_all()

    def close(self) -> None:
        """End everything."""
        self.kill()
        self.proxy.close()

    async def locate(self) -> Endpoint:
        """Where the owner is reached: the proxy."""
        found = self.service.endpoint
        return Endpoint(self.proxy.host, self.proxy.port, found.token, found.run, found.epoch)

    def stream_transport(self) -> Transport:
        """A stream over the proxy."""
        return StreamTransport(self)

    def in_process_transport(self) -> InProcessTransport:
        """Links without sockets, into the owner's loop."""
        incarnation = self._incarnation
        if incarnation is None:
            raise OwnerUnavailable("the test's owner is not running")
        transport = InProcessTransport(incarnation.service, loop=incarnation.loop)
        self._in_process.append(transport)
        return transport
