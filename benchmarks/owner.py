"""An owner in a process of its own, without Ray: `python -m benchmarks.owner DIRECTORY`.

Makes the directory, prints `{"port": …}` once it serves, and goes on until its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from gym_capture.model.clock import SystemClock
from gym_capture.model.entropy import SystemEntropy
from gym_capture.service.capture_service import CaptureService
from gym_capture.service.executor import ThreadExecutor
from gym_capture.service.settings import OwnerSettings
from gym_capture.service.stream_server import StreamServer
from gym_capture.storage.owner_file import OwnerIdentity
from gym_capture.storage.posix_files import PosixFiles, make_capture_directory
from gym_capture.storage.run_marker import create_or_adopt_run


async def main(directory: str) -> None:
    """Own the directory until the input ends."""
    make_capture_directory(directory)
    files = PosixFiles(directory)
    create_or_adopt_run(files)
    service = CaptureService(
        files,
        OwnerIdentity("bench", "bench", "benchmarks", "local", os.getpid()),
        OwnerSettings(),
        clock=SystemClock(),
        executor=ThreadExecutor("log"),
        readers=ThreadExecutor("read", 2),
        entropy=SystemEntropy(),
        on_leave=lambda why: os._exit(1),
    )
    server = StreamServer()
    port = await server.start(service, "127.0.0.1", 0, None)
    await service.open(takeover=False, listening=("127.0.0.1", port))
    print(json.dumps({"port": port}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await service.stop()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
