"""An owner in a process of its own, without Ray: `python -m tests.crash.owner_process DIRECTORY ACTOR_ID [takeover]`.

Further arguments, `patience_s=0.3` say, are what it tells its clients to go by (`ClientSettings`); it keeps the lease.

It answers one JSON line on standard output for each line on standard input:

- (at start) `{"serving": true, "epoch": …, "port": …}` or `{"refused": class name, "message": …}`
- `stop-at POINT [N]` → `{"armed": POINT}`; the N-th time from now that the fault point POINT is reached, the process
  prints `{"stopped-at": POINT}` and stops itself with SIGSTOP (SIGCONT lets it go on).
- `slow POINT MILLISECONDS` → `{"slow": POINT}`; each time from now that POINT is reached takes so much longer
- `stats` → the service's counters
- `leave` → ends cleanly, prints `{"left": why}`

When it is superseded it prints `{"left": "superseded"}` and ends by `os._exit`, as the actor does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from typing import Any

from gym_capture.errors import GymCaptureError
from gym_capture.model.client_settings import ClientSettings
from gym_capture.model.clock import SystemClock
from gym_capture.model.entropy import SystemEntropy
from gym_capture.service.capture_service import CaptureService
from gym_capture.service.executor import ThreadExecutor
from gym_capture.service.settings import OwnerSettings
from gym_capture.service.stream_server import StreamServer
from gym_capture.storage.owner_file import OwnerIdentity
from gym_capture.storage.posix_files import PosixFiles


def say(**message: Any) -> None:
    """One line to the test, in one write."""
    os.write(1, (json.dumps(message, default=str) + "\n").encode())


class StopPoint:
    """The fault hook: stops this process at an armed point, or makes a point slow."""

    def __init__(self) -> None:
        self.armed: str | None = None
        self.left = 0
        self.slow: str | None = None
        self.slow_s = 0.0

    def arm(self, point: str, times: int) -> None:
        """Stop when `point` is reached for the `times`-th time from now."""
        self.left = times
        self.armed = point

    def __call__(self, point: str) -> None:
        if point == self.slow:
            time.sleep(self.slow_s)
        if point != self.armed:
            return
        self.left -= 1
        if self.left == 0:
            self.armed = None
            say(**{"stopped-at": point})
            # At this thread, not the process: another thread would take the signal while this one runs on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def told_to_clients(arguments: list[str]) -> ClientSettings | None:
    """What clients are to go by; None where nothing is said of it."""
    given = {name: json.loads(value) for name, equals, value in (text.partition("=") for text in arguments) if equals}
    return ClientSettings(**given) if given else None


async def serve(directory: str, actor_id: str, *, takeover: bool, clients: ClientSettings | None) -> None:
    """Own the directory until told to leave."""
    hook = StopPoint()

    def left(why: str) -> None:
        say(left=why)
        os._exit(0)

    service = CaptureService(
        PosixFiles(directory, hook),
        OwnerIdentity(actor_id, actor_id, "tests", "local", os.getpid()),
        OwnerSettings(beat_s=0.3, lease_s=clients.lease_s if clients else 1.5, tick_s=0.25),
        clock=SystemClock(),
        executor=ThreadExecutor("log"),
        readers=ThreadExecutor("read", 2),
        entropy=SystemEntropy(),
        on_leave=left,
        client_settings=clients,
    )
    server = StreamServer()
    port = await server.start(service, "127.0.0.1", 0, None)
    try:
        await service.open(takeover=takeover, listening=("127.0.0.1", port))
    except (GymCaptureError, OSError) as error:
        say(refused=type(error).__name__, message=str(error))
        os._exit(1)
    say(serving=True, epoch=service.epoch, port=port, token=service.token, run=service.run)
    loop = asyncio.get_running_loop()
    while True:
        line = await loop.run_in_executor(None, sys.stdin.readline)
        command, _, rest = line.strip().partition(" ")
        if command == "stop-at":
            point, _, times = rest.rpartition(" ") if rest[-1:].isdigit() else (rest, "", "1")
            hook.arm(point, int(times))
            say(armed=point)
        elif command == "slow":
            point, _, milliseconds = rest.rpartition(" ")
            hook.slow, hook.slow_s = point, int(milliseconds) / 1000.0
            say(slow=point)
        elif command == "stats":
            say(stats=service.stats())
        else:
            await service.stop()
            left("asked")


if __name__ == "__main__":
    asyncio.run(
        serve(sys.argv[1], sys.argv[2], takeover="takeover" in sys.argv[3:], clients=told_to_clients(sys.argv[3:]))
    )
