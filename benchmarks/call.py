"""What one captured call costs: CPU of the client and of the owner, turns of event loops, and latencies.

An owner in a process of its own, without Ray, and one client, this process. `make bench ARGS=call`.
"""

from __future__ import annotations

import asyncio
import resource
import selectors
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gym_capture
from benchmarks.measure import percentile
from benchmarks.owner import owner_process
from benchmarks.workload import single_turns

Rows = dict[str, dict[str, float]]

IDLE_S = 0.5
"""How long a client does nothing before a call of the last case."""


class Turns:
    """Counts the turns of all event loops of this process, from the first use on."""

    def __init__(self) -> None:
        self.count = 0
        select = selectors.DefaultSelector.select

        def counted(selector: Any, timeout: float | None = None) -> Any:
            self.count += 1
            return select(selector, timeout)

        setattr(selectors.DefaultSelector, "select", counted)  # noqa: B010 - a benchmark may look under the lid


class CallBench:
    """One client of one owner.

    Args:
        directory: the capture directory; made here, removed by the caller.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.turns = Turns()
        self.owner = 0
        self.calls = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """The owner, in a process of its own."""
        with owner_process(self.directory) as self.owner:
            yield

    def run(self, size: int, calls: int, idle_calls: int, in_flight: int) -> Rows:
        """All cases: one after the other, `in_flight` at once, and after idling.

        Args:
            size: bytes of an exchange.
            calls, idle_calls: how many one after the other, and after idling.
        """
        return asyncio.run(self._run(size, calls, idle_calls, in_flight))

    async def _run(self, size: int, calls: int, idle_calls: int, in_flight: int) -> Rows:
        capture = gym_capture.connect(capture_dir=self.directory)
        exchanges = single_turns(1, size)
        await capture.stats()
        rows: Rows = {}

        rollouts = [capture.rollout(f"r-{number}") for number in range(100)]

        async def one(sample: Sample) -> None:
            exchange = next(exchanges)
            rollout = rollouts[sample.next_lane()]
            begin = time.perf_counter()
            async with rollout.claim(dialect="chat", model_call_id=exchange["model_call_id"]) as call:
                claimed = time.perf_counter()
                call.complete(**exchange)
            sample.add(begin, claimed, time.perf_counter())
            assert call.outcome == "durable"

        async def sequential(sample: Sample, count: int = calls) -> None:
            for _ in range(count):
                await one(sample)

        async def crowd(sample: Sample) -> None:
            async def lane() -> None:
                for _ in range(max(1, 8 * calls // in_flight)):
                    await one(sample)

            await asyncio.gather(*(lane() for _ in range(in_flight)))

        async def idle(sample: Sample) -> None:
            for _ in range(idle_calls):
                await asyncio.sleep(IDLE_S)
                await one(sample)

        await sequential(Sample(self), 20)
        for name, work in (
            ("one after the other", sequential),
            (f"{in_flight} in flight", crowd),
            (f"after {IDLE_S:g} s of nothing", idle),
        ):
            rows[name] = await self._measure(work)
        await capture.close()
        return rows

    async def _measure(self, work: Callable[[Sample], Awaitable[None]]) -> dict[str, float]:
        sample = Sample(self)
        sample.begin()
        await work(sample)
        return sample.end()


class Sample:
    """What one case cost."""

    def __init__(self, bench: CallBench) -> None:
        self._bench = bench
        self._claims: list[float] = []
        self._commits: list[float] = []
        self._lane = 0

    def next_lane(self) -> int:
        """Which of 100 rollouts the next call is of."""
        self._lane += 1
        return self._lane % 100

    def add(self, begin: float, claimed: float, committed: float) -> None:
        """A call was made."""
        self._claims.append((claimed - begin) * 1e3)
        self._commits.append((committed - claimed) * 1e3)

    def begin(self) -> None:
        """Now it starts."""
        self._started = time.perf_counter()
        self._cpu = time.process_time()
        self._owner = owner_cpu_s(self._bench.owner)
        self._turns = self._bench.turns.count
        self._switches = _switches()

    def end(self) -> dict[str, float]:
        """The figures of a call: milliseconds, turns and switches."""
        calls = len(self._claims)
        self._bench.calls += calls
        seconds = time.perf_counter() - self._started
        return {
            "calls": calls,
            "calls/s": calls / seconds,
            "client CPU": (time.process_time() - self._cpu) * 1e3 / calls,
            "owner CPU": (owner_cpu_s(self._bench.owner) - self._owner) * 1e3 / calls,
            "turns": (self._bench.turns.count - self._turns) / calls,
            "switches": (_switches() - self._switches) / calls,
            "claim p50": statistics.median(self._claims),
            "claim p99": percentile(self._claims, 0.99),
            "commit p50": statistics.median(self._commits),
            "commit p99": percentile(self._commits, 0.99),
        }


def owner_cpu_s(pid: int) -> float:
    """CPU seconds of another process, by its clock (Linux: the clock id is made of the pid)."""
    return time.clock_gettime((~pid << 3) | 2)


def _switches() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
