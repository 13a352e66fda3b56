"""`gym-capture run`: the collector under a progress view and signal handlers."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.text import Text

from gym_capture.cli.exits import Exit, Screen
from gym_capture.cli.keeping import sealed
from gym_capture.cli.progress_view import ProgressView
from gym_capture.cli.tables import status_view, summary_view
from gym_capture.collect.collector import collect
from gym_capture.collect.stop import StopRequest
from gym_capture.collect.summary import Progress, Summary
from gym_capture.config import CaptureConfig, load_config
from gym_capture.errors import ConfigError, GymCaptureError
from gym_capture.reading.plain_text import plain_line
from gym_capture.storage.remote.run_uri import shown


def run_command(path: Path, overrides: Sequence[str], screen: Screen) -> Exit:
    """Collect, show how it goes, and say how it ended."""
    config = load_config(path, overrides)
    if config.seal.wanted:
        _require_seal(config)
    with ExitStack() as beside:

        def on_started() -> None:
            if config.seal.wanted:
                from gym_capture.directory.sealing_ahead import SealingProcess  # its extra may be missing

                beside.enter_context(SealingProcess(config.directory))

        summary, caught = asyncio.run(_collect(config, screen, on_started))
    status = exit_status(summary, config, caught)
    if not screen.as_json:
        screen.out.print(summary_view(summary))
        if status == Exit.EVIDENCE_MISSING:
            screen.err.print("evidence is missing, and collect.require_complete is set", style="bold red")
    told = summary.plain()
    if config.seal.wanted:
        told |= _sealed(config, status, screen)
        if status == Exit.OK and told["sealed"] is None:
            status = Exit.ERROR
    if screen.as_json:
        screen.document({**told, "exit_status": int(status)})
    return status


def _require_seal(config: CaptureConfig) -> None:
    """See before the run that it can be sealed after it.

    Raises:
        ConfigError: nothing is captured, or `seal.to` is no place that pyarrow knows.
        MissingExtra: pyarrow is not installed.
        RemoteUnavailable: `seal.to` cannot be reached.
        TargetTaken: something lies there already, which cannot be this run's.
    """
    if not config.observability_enabled:
        raise ConfigError("seal is set, and observability_enabled is false: nothing would be captured; leave one out")
    from gym_capture.storage.sealed import arrow  # noqa: F401 - says which extra is missing

    if config.seal.to is not None:
        from gym_capture.directory.carrying import require_place

        require_place(config.directory, config.seal.to)


def _sealed(config: CaptureConfig, status: Exit, screen: Screen) -> dict[str, Any]:
    """Seal a run that ended well.

    Returns:
        `sealed`, what is told of that; None where it was not, and why is `not_sealed`, which is said on stderr, too.
    """
    words = ["gym-capture", "seal", str(config.directory)]
    by_hand = plain_line(shlex.join([*words, "--to", shown(config.seal.to)] if config.seal.to else words))
    if status != Exit.OK:
        why = f"not sealed, for the run did not end well; `{by_hand}` seals it later"
        screen.err.print(Text(why), soft_wrap=True)
        return {"sealed": None, "not_sealed": why}
    try:
        told = sealed(config.directory, config.seal.to)
    except (GymCaptureError, OSError) as error:
        why = f"not sealed: {plain_line(str(error))} All that was collected is there; `{by_hand}` seals it later."
        screen.err.print(Text(why), style="bold red", soft_wrap=True)
        return {"sealed": None, "not_sealed": why}
    if not screen.as_json:
        screen.out.print(status_view(told))
    return {"sealed": told}


def exit_status(summary: Summary, config: CaptureConfig, caught: signal.Signals | None) -> Exit:
    """What the run's end means for a script. A run that a signal stopped after all was done is not interrupted."""
    if summary.remaining and caught is not None:
        return Exit.TERMINATED if caught == signal.SIGTERM else Exit.INTERRUPTED
    if summary.failed or summary.remaining:
        return Exit.ERROR
    if config.collect.require_complete and summary.incomplete:
        return Exit.EVIDENCE_MISSING
    return Exit.OK


async def _collect(
    config: CaptureConfig, screen: Screen, on_started: Callable[[], None]
) -> tuple[Summary, signal.Signals | None]:
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

    def started() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal, number)
        on_started()

    with ProgressView(screen.err, progress):
        summary = await collect(config, progress=progress, stop=stop, on_started=started)
    return summary, caught[0] if caught else None
