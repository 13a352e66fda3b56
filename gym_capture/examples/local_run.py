"""A first run with everything in it: a scripted model server, a capturing proxy before it, agents that use real SDKs.

    python -m gym_capture.examples.local_run configs/local.yaml [KEY=VALUE …]

starts the model server in this process and `gym-capture run` in another, with the server as `proxy.upstream`, and ends
with that one's exit status.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from types import FrameType

from gym_capture.examples.local_model import PACE_S, SEED
from gym_capture.examples.model_server import ModelServer
from gym_capture.examples.server_thread import served


def local_run(arguments: list[str]) -> int:
    """Run it.

    Args:
        arguments: what `gym-capture run` takes.

    Returns:
        Its exit status.
    """
    with served(ModelServer(seed=SEED, pace_s=PACE_S)) as url:
        command = [sys.executable, "-m", "gym_capture", "run", *arguments, f"proxy.upstream={url}"]
        running: list[subprocess.Popen[bytes]] = []
        before = {number: signal.signal(number, _handing_on(running)) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            running.append(subprocess.Popen(command))
            status = running[0].wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _handing_on(running: list[subprocess.Popen[bytes]]) -> signal._HANDLER:
    """SIGTERM is for the run; Ctrl-C reaches it by itself. Both end this process once the run has ended."""

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            for each in running:
                each.terminate()

    return handle


if __name__ == "__main__":
    sys.exit(local_run(sys.argv[1:]))
