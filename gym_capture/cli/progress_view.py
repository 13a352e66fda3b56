"""A run's progress while it goes on: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeElapsedColumn
from rich.text import Text

from gym_capture.collect.summary import Progress as Counters

BAR_S = 0.25
LINE_S = 10.0


def progress_line(counters: Counters, now: float) -> str:
    """Everything that matters now, in one line.

    Args:
        now: monotonic seconds.
    """
    done = counters.earlier + counters.finished
    parts = [
        f"{done}/{counters.rollouts} finished",
        f"{counters.running} running",
        f"{_rate(counters, now):.1f}/s",
        f"{counters.calls_now} calls",
        f"{counters.outstanding} claims open",
        f"{counters.with_gaps} with gaps",
    ]
    if counters.failed_attempts:
        parts.append(f"{counters.failed_attempts} failed attempts")
    if counters.failed:
        parts.append(f"{counters.failed} given up")
    return ", ".join(parts)


def bar_details(counters: Counters, now: float) -> str:
    """What stands beside the bar: the same, short enough for 80 columns."""
    if counters.started_at is None:
        return "starting"
    parts = [
        f"{_rate(counters, now):.1f}/s",
        f"{counters.calls_now} calls",
        f"{counters.outstanding} open",
        f"{counters.with_gaps} gaps",
    ]
    if counters.failed_attempts:
        parts.append(f"{counters.failed_attempts} failed")
    return " ".join(parts)


def _rate(counters: Counters, now: float) -> float:
    """Finished rollouts a second."""
    if counters.started_at is None or now <= counters.started_at:
        return 0.0
    return counters.finished / (now - counters.started_at)


class ProgressView:
    """Shows counters until it is left. Enter it inside a running event loop.

    Args:
        console: where.
        counters: what; read again and again.
    """

    def __init__(self, console: Console, counters: Counters) -> None:
        self._console = console
        self._counters = counters
        self._task: asyncio.Task[None] | None = None
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar = Progress(
                BarColumn(bar_width=16),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                _Details(self._counters),
                console=self._console,
                transient=True,
            )
            self._bar.start()
        self._task = asyncio.get_running_loop().create_task(self._show())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._bar is not None:
            self._bar.stop()

    async def _show(self) -> None:
        bar = self._bar
        if bar is None:
            while True:
                await asyncio.sleep(LINE_S)
                self._console.print(progress_line(self._counters, time.monotonic()), soft_wrap=True)
        task = bar.add_task("rollouts", total=None)
        while True:
            counters = self._counters
            bar.update(task, total=counters.rollouts or None, completed=counters.earlier + counters.finished)
            await asyncio.sleep(BAR_S)


class _Details(ProgressColumn):
    """The rest of the line."""

    def __init__(self, counters: Counters) -> None:
        super().__init__()
        self._counters = counters

    def render(self, task: Task) -> Text:
        """The counters, without those that the bar shows."""
        return Text(bar_details(self._counters, time.monotonic()), style="dim", no_wrap=True, overflow="ellipsis")
