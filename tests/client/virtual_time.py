"""A loop whose time stands still while anything can run, and jumps to the next timer when nothing can."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: nothing can run and no timer is set")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """For one thread, without sockets."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jumping.now


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop with virtual time; tasks that it leaves are cancelled."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class LoopClock:
    """A `Clock` that goes by the running loop's time."""

    def monotonic(self) -> float:
        """Seconds of the loop."""
        return asyncio.get_running_loop().time()

    def time(self) -> float:
        """The same, from a fixed Unix time on."""
        return 1_700_000_000.0 + self.monotonic()


class SeededEntropy:
    """An `Entropy` that counts."""

    def __init__(self) -> None:
        self._count = 0

    def bytes(self, count: int) -> bytes:
        """The next number."""
        self._count += 1
        return self._count.to_bytes(count, "big")

    def uniform(self, low: float, high: float) -> float:
        """The middle."""
        return (low + high) / 2


class InlineExecutor(Executor):
    """Runs what it is given at once, or when told to."""

    def __init__(self, *, held: bool = False) -> None:
        self.held = held
        self.waiting: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run, or keep for `run_held`."""
        future: Future[T] = Future()

        def run() -> None:
            future.set_result(fn(*args, **kwargs))

        if self.held:
            self.waiting.append(run)
        else:
            run()
        return future

    def run_held(self) -> None:
        """Run what was kept."""
        waiting, self.waiting = self.waiting, []
        for run in waiting:
            run()


async def settle(turns: int = 30) -> None:
    """Let everything run that can run without time passing."""
    for _ in range(turns):
        await asyncio.sleep(0)
