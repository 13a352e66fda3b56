"""What the kernel says of a process's memory, and how many files it may open."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

MB = 1 << 20


def memory_of(pid: int, field: str = "VmRSS") -> int:
    """Resident bytes of a process; `VmHWM`: the most it ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {field} of pid {pid}")


def forget_peak(pid: int) -> int:
    """Let `VmHWM` count from now; returns what is resident."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return memory_of(pid)


def open_files_of(pid: int) -> int:
    """How many files, sockets included, a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def limit_open_files(count: int) -> None:
    """Let this process, and those that it starts, open so many; skips where the system does not permit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"this system permits {hard} open files, the test needs {count}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
