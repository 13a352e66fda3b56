"""`gym-capture run`: the collector under a progress view and signal handlers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

from gym_capture.cli.exits import Exit, Screen
from gym_capture.cli.progress_view import ProgressView
from gym_capture.cli.tables import summary_view
from gym_capture.collect.collector import collect
from gym_capture.collect.stop import StopRequest
from gym_capture.collect.summary import Progress, Summary
from gym_capture.config import CaptureConfig, load_config


def run_command(path: Path, overrides: Sequence[str], screen: Screen) -> Exit:
    """Collect, show how it goes, and say how it ended."""
    config = load_config(path, overrides)
    summary, caught = asyncio.run(_collect(config, screen))
    status = exit_status(summary, config, caught)
    if screen.as_json:
        screen.document({**summary.plain(), "exit_status": int(status)})
    else:
        screen.out.print(summary_view(summary))
        if status == Exit.EVIDENCE_MISSING:
            screen.err.print("evidence is missing, and collect.require_complete is set", style="bold red")
    return status


def exit_status(summary: Summary, config: CaptureConfig, caught: signal.Signals | None) -> Exit:
    """What the run's end means for a script. A run that a signal stopped after all was done is not interrupted."""
    if summary.remaining and caught is not None:
        return Exit.TERMINATED if caught == signal.SIGTERM else Exit.INTERRUPTED
    if summary.failed or summary.remaining:
        return Exit.ERROR
    if config.collect.require_complete and summary.incomplete:
        return Exit.EVIDENCE_MISSING
    return Exit.OK


async def _collect(config: CaptureConfig, screen: Screen) -> tuple[Summary, signal.Signals | None]:
    loop = asyncio.get_running_loop()
    stop = StopRequest(config.collect.stop_grace_s)
    progress = Progress()
    caught: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        again = stop.requested
        caught.append(number)
        stop.request()
        screen.err.print(
            "stopping at once"
            if again
            else f"stopping: {progress.running} rollouts that run have {stop.grace_s:g} s to finish (again: at once)"
        )

    def watch_signals() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal, number)

    with ProgressView(screen.err, progress):
        summary = await collect(config, progress=progress, stop=stop, on_started=watch_signals)
    return summary, caught[0] if caught else None
