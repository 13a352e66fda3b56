"""Child processes that talk JSON lines: started, spoken to, and always ended by the pid that was started."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from types import TracebackType
from typing import Any

DEADLINE_S = 60.0
"""No answer of a child is awaited longer."""

NO_LEASE_ENDS_S = 20.0
"""A `lease_s` for tests in which every process lives on, however long a busy machine keeps one of them waiting."""


class Child:
    """`python -m module args…` with its standard input and output as line pipes.

    Args:
        module: what to run.
        args: its arguments.
    """

    def __init__(self, module: str, *args: str) -> None:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        self._buffer = b""

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def line(self, deadline_s: float = DEADLINE_S) -> str:
        """The next line of its output. Raises TimeoutError, EOFError."""
        assert self.process.stdout is not None
        until = time.monotonic() + deadline_s
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise TimeoutError(f"pid {self.process.pid} said nothing for {deadline_s} s")
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                raise EOFError(f"pid {self.process.pid} ended with {self.process.poll()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def hear(self, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """The next line as JSON."""
        message: dict[str, Any] = json.loads(self.line(deadline_s))
        return message

    def say(self, line: str) -> None:
        """Send one line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    def ask(self, line: str) -> dict[str, Any]:
        """Send one line and return the answer."""
        self.say(line)
        return self.hear()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process that was started."""
        os.kill(self.process.pid, number)

    def wait_stopped(self) -> None:
        """Return once the process is stopped (SIGSTOP has taken effect)."""
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            with open(f"/proc/{self.process.pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "T":
                    return
            select.select([], [], [], 0.005)
        raise TimeoutError(f"pid {self.process.pid} did not stop")

    def end(self) -> None:
        """Kill what is still there and reap it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
