"""The machine that a run was measured on, at its beginning and its end."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import gym_capture


class Conditions:
    """Taken when made, completed by `at_end`.

    Args:
        directory: a place on the disk that is written to.
    """

    def __init__(self, directory: Path) -> None:
        self._started = time.perf_counter()
        self._load = os.getloadavg()
        self._sync_ms = sync_ms(directory)

    def at_end(self) -> dict[str, str]:
        """Everything, as text by name."""
        import ray

        return {
            "cores": str(os.cpu_count()),
            "machine": f"{platform.machine()}, {platform.system()} {platform.release().split('-')[0]}",
            "python": platform.python_version(),
            "ray": ray.__version__,
            "gym_capture": gym_capture.__version__,
            "commit": commit(),
            "command": f"python -m benchmarks {' '.join(_without_paths(sys.argv[1:]))}".rstrip(),
            "4 KB append and fdatasync, median": f"{self._sync_ms:.2g} ms",
            "load average at the beginning": _load(self._load),
            "load average at the end": _load(os.getloadavg()),
            "whole run": f"{time.perf_counter() - self._started:.0f} s",
        }


def sync_ms(directory: Path, times: int = 50) -> float:
    """What an append of 4 KB and its `fdatasync` take, the median. Milliseconds."""
    path = directory / "sync-probe"
    took = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for _ in range(times):
            start = time.perf_counter()
            os.write(descriptor, bytes(4096))
            os.fdatasync(descriptor)
            took.append((time.perf_counter() - start) * 1e3)
    finally:
        os.close(descriptor)
        path.unlink()
    return statistics.median(took)


def commit() -> str:
    """This checkout's commit, `+` when something is changed."""
    here = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()


def _without_paths(arguments: Sequence[str]) -> list[str]:
    """Where files lie is nobody's business but this machine's."""
    given = iter(arguments)
    kept = []
    for argument in given:
        if argument in ("--json", "--markdown", "--directory", "--rollouts"):
            next(given, None)
        elif "/" not in argument:
            kept.append(argument)
    return kept


def _load(average: tuple[float, float, float]) -> str:
    return " ".join(f"{value:.1f}" for value in average)
