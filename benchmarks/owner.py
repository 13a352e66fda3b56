"""An owner in a process of its own, without Ray: `python -m benchmarks.owner DIRECTORY [SECONDS]`.

Makes the directory, prints `{"port": …}` once it serves, and goes on until its standard input ends. With SECONDS each
of its syncs takes so much longer.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.slow_sync import slow_this_process
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


@contextmanager
def owner_process(directory: Path, slower_s: float = 0.0) -> Iterator[int]:
    """The owner of `directory` in a process of its own, which ends with the block.

    Args:
        slower_s: how much longer each of its syncs takes.

    Returns:
        Its process id.
    """
    command = [sys.executable, "-m", "benchmarks.owner", str(directory), str(slower_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            json.loads(process.stdout.readline())
            yield process.pid
        finally:
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


if __name__ == "__main__":
    slow_this_process(float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
    asyncio.run(main(sys.argv[1]))
