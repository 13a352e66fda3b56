"""What processes hold over time (memory, descriptors, threads), and whether that is flat."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.crash.lab.held_memory import Held

MIB = 1 << 20

GROWTH_BYTES = 3 * MIB
"""What the unshared memory of a process may grow by in the second half of its time: allocators and caches breathe."""

GROWTH_PART = 0.025
"""The same, as a part of its level, where that is more."""

DESCRIPTORS = 8
THREADS = 4
"""What these may grow by in it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one process.

    Args:
        at: seconds since the soak began.
        role: what it is to the run.
        rss, uss: bytes in memory, and of them its own alone.
        descriptors, threads: open files, and threads.
        calls: how many calls had been acknowledged in the run by then.
        held: what its memory is made of, where it tells.
    """

    at: float
    role: str
    pid: int
    rss: int
    uss: int
    descriptors: int
    threads: int
    calls: int
    held: Held | None = None


def look_at(pid: int, role: str, at: float, calls: int, held: Held | None = None) -> Sample | None:
    """A process as it is now; None when it is gone."""
    folder = Path("/proc") / str(pid)
    try:
        memory = _numbers((folder / "smaps_rollup").read_text())
        threads = _numbers((folder / "status").read_text())["Threads"]
        descriptors = len(os.listdir(folder / "fd"))
    except (OSError, KeyError):
        return None
    own = memory.get("Private_Clean", 0) + memory.get("Private_Dirty", 0)
    return Sample(at, role, pid, memory.get("Rss", 0) << 10, own << 10, descriptors, threads, calls, held)


def _numbers(text: str) -> dict[str, int]:
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        first = rest.split()[:1]
        if first and first[0].isdigit():
            found[name] = int(first[0])
    return found


class Line(NamedTuple):
    """A straight line through points: its value in the middle, and its slope."""

    level: float
    slope: float


def fit(points: Sequence[tuple[float, float]]) -> Line:
    """Least squares."""
    times = [at for at, _ in points]
    values = [value for _, value in points]
    level = statistics.fmean(values)
    if len(set(times)) < 2:
        return Line(level, 0.0)
    return Line(level, statistics.linear_regression(times, values).slope)


class Trend(NamedTuple):
    """One process over the span in which it is judged: the second half of its time, the first is its warm-up.

    Fields: `span_s`; `level` and `growth` of its own memory in bytes over the span, and growth `per_call` that was
    acknowledged meanwhile; the growth of descriptors and threads; what is `wrong` with it, empty if nothing is.
    """

    role: str
    pid: int
    span_s: float
    calls: int
    level: float
    growth: float
    descriptors: float
    threads: float
    wrong: str

    @property
    def per_call(self) -> float:
        """Bytes of growth for each call."""
        return self.growth / self.calls if self.calls else 0.0


def trends(samples: Sequence[Sample], least_s: float) -> list[Trend]:
    """A trend of each process that was there long enough.

    Args:
        samples: of all processes.
        least_s: those whose second half is shorter are not judged.
    """
    by_process: defaultdict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        by_process[sample.role, sample.pid].append(sample)
    found = []
    for (role, pid), seen in by_process.items():
        warm = [each for each in seen if each.at >= (seen[0].at + seen[-1].at) / 2]
        if len(warm) > 2 and warm[-1].at - warm[0].at >= least_s:
            found.append(_trend(role, pid, warm))
    return found


def _trend(role: str, pid: int, seen: Sequence[Sample]) -> Trend:
    span = seen[-1].at - seen[0].at
    memory = fit([(each.at, each.uss) for each in seen])
    growth = memory.slope * span
    descriptors = fit([(each.at, each.descriptors) for each in seen]).slope * span
    threads = fit([(each.at, each.threads) for each in seen]).slope * span
    wrong = []
    if growth > max(GROWTH_BYTES, GROWTH_PART * memory.level):
        wrong.append(f"memory grew by {growth / MIB:.1f} MiB")
    if descriptors > DESCRIPTORS:
        wrong.append(f"{descriptors:.0f} more descriptors")
    if threads > THREADS:
        wrong.append(f"{threads:.0f} more threads")
    calls = seen[-1].calls - seen[0].calls
    return Trend(role, pid, span, calls, memory.level, growth, descriptors, threads, ", ".join(wrong))


def by_minute(samples: Sequence[Sample], roles: Sequence[str]) -> list[tuple[str, ...]]:
    """The series as cells: for each minute the calls by then, and of each role the last process seen in it."""
    rows = []
    minutes = sorted({int(sample.at // 60) for sample in samples})
    for minute in minutes:
        within = [sample for sample in samples if int(sample.at // 60) == minute]
        cells = [str(minute), str(max(sample.calls for sample in within))]
        for role in roles:
            last = [sample for sample in within if sample.role == role][-1:]
            cells += [
                f"{each.rss / MIB:.0f} / {each.uss / MIB:.1f} / {each.descriptors} / {each.threads}" for each in last
            ] or ["-"]
        rows.append(tuple(cells))
    return rows


def made_of(samples: Sequence[Sample], roles: Sequence[str]) -> list[tuple[str, ...]]:
    """What the memory of each role's last process of each minute is made of, as cells; those that do not tell, "-"."""
    rows = []
    for minute in sorted({int(sample.at // 60) for sample in samples}):
        cells = [str(minute)]
        for role in roles:
            last = [each for each in samples if int(each.at // 60) == minute and each.role == role and each.held][-1:]
            cells += [
                f"{each.uss / MIB:.1f} / {each.held.blocks / 1000:.0f} / {each.held.allocated / MIB:.1f} / "
                f"{each.held.spare / MIB:.1f}"
                for each in last
                if each.held
            ] or ["-"]
        rows.append(tuple(cells))
    return rows
