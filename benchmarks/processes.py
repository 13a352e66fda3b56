"""Processes of the benchmarks that work when they are given a line, and answer with one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.measure import Sample

ENDING_S = 120
"""How long a process may take to end once its input has: a busy machine is slow at that, too."""


class Processes:
    """Modules that run side by side. Made by `processes`."""

    def __init__(self, running: Sequence[subprocess.Popen[str]]) -> None:
        self._running = running

    def ready(self) -> None:
        """Wait until each has said `ready`."""
        for process in self._running:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("a process of the benchmark did not come up")

    def work(self, orders: Sequence[dict[str, Any]]) -> list[Sample]:
        """Give each of the first `len(orders)` its order at once, and wait for their samples."""
        chosen = self._running[: len(orders)]
        for process, order in zip(chosen, orders, strict=True):
            assert process.stdin is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        return [Sample(**json.loads(process.stdout.readline())) for process in chosen if process.stdout is not None]

    def __len__(self) -> int:
        return len(self._running)


@contextmanager
def processes(modules: Sequence[Sequence[str]]) -> Iterator[Processes]:
    """Start these modules with their arguments; all end with the block."""
    running = [
        subprocess.Popen([sys.executable, "-m", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for words in modules
    ]
    try:
        found = Processes(running)
        found.ready()
        yield found
        for process in running:
            assert process.stdin is not None
            process.stdin.close()
        for process in running:
            process.wait(ENDING_S)
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
