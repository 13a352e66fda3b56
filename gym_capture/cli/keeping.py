"""`gym-capture seal` and `prune`: what is kept of a run once it is over, and what goes."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from gym_capture.cli.exits import Exit, Screen
from gym_capture.cli.opened import looking, writing
from gym_capture.cli.options import Debug, Json, local_directory
from gym_capture.cli.tables import status_view
from gym_capture.errors import ConfigError
from gym_capture.reading.plain_text import plain_line
from gym_capture.storage import names

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?)i?B?")
_BYTES = {"": 1, "k": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def seal(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run's capture directory, at rest.", show_default=False)
    ],
    as_it_is: Annotated[
        bool,
        typer.Option("--as-it-is", help="Also with open claims (they are lost then) or damage (it goes with the log)."),
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="URI", help="Then carry it to a folder elsewhere: s3://bucket/runs/7.", show_default=False
        ),
    ] = None,
    ahead: Annotated[
        bool, typer.Option("--ahead", help="Seal what is finished of a run that goes on, until it ends or Ctrl-C.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    Seal a run that is over: all its rollouts become a Parquet dataset in `DIR/sealed-…`, and the log is removed. Every
    command reads it as before; nothing can be written into it any more.

    The log is closed and removed only after the dataset is on disk and was read back. Stopped or killed, it goes on
    when it is run again. What was cleared is not carried over. `gym-capture import DIR NEW` makes a run of it again.

    With `--to` a copy of what was sealed is then sent to any file system that pyarrow knows, where commands that read
    find it once all of it is there. The directory stays; `gym-capture prune` removes it.

    With `--ahead` rollouts that were merged are sealed while the run goes on, half a gigabyte of exchanges at a time,
    into `DIR/sealed-ahead`. The log stays as it is; sealing takes over from there what still holds, and has little left
    to do. `gym-capture run` does it by itself where the run is to be sealed.

    `gym-capture seal runs/local/model-calls`

    `gym-capture seal runs/local/model-calls --to s3://bucket/runs/7`
    """
    with looking(as_json=as_json, debug=debug) as screen:
        path = local_directory(directory).absolute()
        if ahead:
            if to is not None or as_it_is:
                raise ConfigError("--ahead seals a run that goes on; --to and --as-it-is are for when it is over")
            with writing(f"sealing ahead in {path}", "The log is as it was, and counts; run it again, it goes on."):
                told = _sealed_ahead(path, screen)
        else:
            safe = "All that was captured is there, in the log or sealed, for readers too; run it again, it goes on."
            with writing(f"sealing {path}", safe):
                told = sealed(path, to, as_it_is=as_it_is)
        if screen.as_json:
            screen.document(told)
        else:
            screen.out.print(status_view(told))


def sealed(directory: Path, to: str | None, *, as_it_is: bool = False) -> dict[str, Any]:
    """Seal a run at rest, carry it where it is to go, and return what is told of that.

    Raises:
        As `directory.sealing.seal_at_rest` and `directory.carrying.seal_and_carry`.
    """
    from dataclasses import asdict

    from gym_capture.directory.sealing import seal_at_rest

    carried = None
    if to is None:
        reports = seal_at_rest(directory, as_it_is=as_it_is)
    else:
        from gym_capture.directory.carrying import seal_and_carry

        reports, carried = seal_and_carry(directory, to, as_it_is=as_it_is)
    each = [asdict(report) for report in reports.values()]
    told: dict[str, Any] = {
        "directory": str(directory),
        "datasets": [path + report.folder for path, report in reports.items()],
    }
    told |= {key: sum(report[key] for report in each) for key in each[0] if key != "folder"}
    if carried is not None:
        told["carried"] = asdict(carried)
    return told


def _sealed_ahead(directory: Path, screen: Screen) -> dict[str, Any]:
    import threading

    from gym_capture.directory.sealing_ahead import lowest_rank, seal_ahead

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    lowest_rank()
    screen.err.print(f"sealing ahead what is merged in {plain_line(str(directory))}; Ctrl-C ends it", soft_wrap=True)
    report = seal_ahead(directory, stop)
    return {"directory": str(directory), "dataset": names.SEALED_AHEAD, "parts": report.parts, "calls": report.calls}


def prune(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="A run's directory, or one with runs in it.", show_default=False),
    ],
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Nothing was written for so long: 12h, 30d, 8w.", show_default=False),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", help="The run whose uuid (in RUN) begins so.", show_default=False)
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option("--keep", help="The oldest go until the runs have so many bytes: 500G.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them. Without it, they are only listed.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    Say which runs would go and what that would free; with `--yes`, remove them. A run goes with its whole directory.
    One with a live owner never goes, nor one with files in its directory that are not the run's.

    `gym-capture prune /shared/runs --older-than 30d`

    `gym-capture prune /shared/runs --keep 500G --yes`
    """
    with looking(as_json=as_json, debug=debug) as screen:
        from gym_capture.directory import pruning

        seconds = None if older_than is None else _given(older_than, _DURATION, _SECONDS, "--older-than", "30d")
        keep_bytes = None if keep is None else int(_given(keep, _SIZE, _BYTES, "--keep", "500G"))
        found = pruning.choose(local_directory(folder), older_than_s=seconds, run=run, keep_bytes=keep_bytes)
        if yes:
            found = pruning.prune(found)
        told = {
            "removed": yes,
            "runs": [each._asdict() for each in found.chosen],
            "freed_bytes": found.freed_bytes,
            "kept": [{**each.found._asdict(), "why": each.why} for each in found.kept],
            "left_over": found.left_over,
            "failed": [each._asdict() for each in found.failed],
            "found": found.found,
            "found_bytes": found.found_bytes,
        }
        if screen.as_json:
            screen.document(told)
        else:
            _show(screen, told)
        if found.failed:
            raise typer.Exit(Exit.ERROR)


def _show(screen: Screen, told: dict[str, Any]) -> None:
    if told["runs"] or told["kept"]:
        table = Table(box=None)
        for title, justify in (("run", "left"), ("bytes", "right"), ("directory", "left"), ("", "left")):
            table.add_column(title, justify="right" if justify == "right" else "left", overflow="fold")
        for each in told["runs"]:
            table.add_row(*_cells(each))
        for each in told["kept"]:
            table.add_row(*_cells(each), Text(plain_line(f"kept: {each['why']}")))
        screen.out.print(table)
    for each in told["failed"]:
        screen.err.print(Text(plain_line(f"not removed: {each['directory']}: {each['why']}")), soft_wrap=True)
    done = "removed, freed" if told["removed"] else "would go and free"
    more = "" if told["removed"] or not told["runs"] else "; --yes removes them"
    runs = f"{len(told['runs'])} of {told['found']} runs {done}"
    screen.out.print(f"{runs} {told['freed_bytes']:,} of {told['found_bytes']:,} bytes{more}", soft_wrap=True)


def _cells(run: dict[str, Any]) -> tuple[str, str, Text]:
    """A run's first columns. Whoever may make a directory chooses its name."""
    return run["run"][:12], f"{run['size']:,}", Text(plain_line(run["directory"]))


def _given(text: str, pattern: re.Pattern[str], units: dict[str, int], option: str, example: str) -> float:
    match = pattern.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{option} {text!r} is not understood. Nothing was removed; write it like {example}.")
    return float(match[1]) * units[match[2]]


__all__ = ["prune", "seal", "sealed"]
