"""An owner with its stream in a thread: what the actor hosts, without Ray."""

from __future__ import annotations

import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from gym_capture.actor.owner_thread import OwnerThread
from gym_capture.model.clock import SystemClock
from gym_capture.model.entropy import SystemEntropy
from gym_capture.service.capture_service import CaptureService
from gym_capture.service.executor import ThreadExecutor
from gym_capture.service.settings import OwnerSettings
from gym_capture.service.stream_server import StreamServer
from gym_capture.storage.owner_file import OwnerIdentity
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_marker import create_or_adopt_run

T = TypeVar("T")


class ThreadedOwner:
    """Serves a directory from the constructor on until `stop` or `vanish`."""

    def __init__(self, directory: Path) -> None:
        self._thread = OwnerThread("test-owner")
        self._executor = ThreadExecutor("test-owner-log")
        self._ended = False
        self._server = StreamServer()
        self.call(self._open(directory))

    async def _open(self, directory: Path) -> None:
        files = PosixFiles(directory)
        create_or_adopt_run(files)
        self.service = CaptureService(
            files,
            OwnerIdentity(uuid.uuid4().hex),
            OwnerSettings(),
            clock=SystemClock(),
            executor=self._executor,
            entropy=SystemEntropy(),
            on_leave=lambda _why: None,
        )
        port = await self._server.start(self.service, "127.0.0.1")
        await self.service.open(listening=("127.0.0.1", port))

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns in the owner's loop."""
        return self._thread.submit(work).result(timeout=30.0)

    def stop(self) -> None:
        """End cleanly."""
        if not self._ended:
            self._ended = True
            self.call(self.service.stop())
            self.call(self._server.close())
            self._thread.stop()
            self._executor.close()

    def close_port(self) -> None:
        """Go on beating, and listen no more."""
        self.call(self._server.close())

    def vanish(self) -> None:
        """End as a killed process does: nothing is sealed, nothing is said, the beat stands still."""
        if not self._ended:
            self._ended = True
            self.call(self._server.close())
            self._thread.stop()
            self._executor.close()
