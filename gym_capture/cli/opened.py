"""Opening a capture directory for a command that looks at it, and saying what could not be read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.text import Text

from gym_capture.api import DIRECTORY_VARIABLE
from gym_capture.cli.exits import Exit, Screen, command
from gym_capture.cli.options import directory_of_the_environment, local_directory
from gym_capture.errors import CaptureDirectoryError, ConfigError, GymCaptureError, RolloutNotFound
from gym_capture.reading.nearest import nearest_ids
from gym_capture.reading.plain_text import plain_line
from gym_capture.storage import names
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.remote.opening import files_at
from gym_capture.storage.remote.run_uri import is_uri
from gym_capture.storage.run_layout import shards_of
from gym_capture.storage.run_marker import require_capture_directory
from gym_capture.storage.store import CaptureStore

COMPLETED_LOG_BYTES = 64 << 20
"""A shell asks for completions while somebody waits at the keyboard: a larger log is not opened for that."""


FILE_WIDTH = 160
"""Columns of a file or a pipe, which has as many as a table needs, unless `COLUMNS` says how many."""


@contextmanager
def looking(*, as_json: bool, debug: bool, judges: bool = False) -> Iterator[Screen]:
    """The frame of a command that reads: a file that cannot be read is one clear message, a closed pipe an end."""
    with command(as_json=as_json, debug=debug, judges=judges) as screen:
        if not screen.out.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
            screen.out.width = FILE_WIDTH
        try:
            yield screen
        except GymCaptureError:
            raise
        except BrokenPipeError:
            # Whoever read the output has seen enough (`| head`); what is still buffered must not be written at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
            raise typer.Exit(Exit.OK) from None
        except OSError as error:
            raise CaptureDirectoryError(
                f"the capture cannot be read ({error}). Nothing was changed; check that this user may read the "
                "directory and that its file system is mounted here."
            ) from error


@contextmanager
def writing(what: str, safe: str) -> Iterator[None]:
    """In `looking`, the part of a command that writes: of what fails in it nobody says that nothing was changed.

    Args:
        what: what is done, as the beginning of a sentence.
        safe: what may be relied on all the same, and what to do next.
    """
    try:
        yield
    except GymCaptureError:
        raise
    except OSError as error:
        raise CaptureDirectoryError(f"{what} failed ({error}). {safe}") from error


def open_directory(directory: str | None) -> CaptureStore:
    """The store of a directory or of the URI of a sealed run, of what the environment names if none is given.

    Raises:
        ConfigError, MissingRunMarker, CaptureDirectoryError: as `capture_files`.
        RemoteUnavailable: the URI cannot be reached, or no sealed run lies there.
    """
    given = directory or directory_of_the_environment(DIRECTORY_VARIABLE)
    return CaptureStore(given if given is not None and is_uri(given) else capture_files(given))


def capture_place(directory: str | None) -> tuple[str | Path, str]:
    """Where a capture lies, for who opens it again and again: an absolute path or the URI of a sealed run, and how it
    is shown. No more is read than shows that a capture is there.

    Raises:
        As `open_directory`.
    """
    given = directory or directory_of_the_environment(DIRECTORY_VARIABLE)
    if given is None or not is_uri(given):
        path = capture_files(given).directory
        return Path(path), path
    files = files_at(given)
    require_capture_directory(files)
    return given, files.directory


def capture_files(directory: str | None) -> PosixFiles:
    """The files of a capture directory, of the one that the environment names if none is given.

    Raises:
        ConfigError: none was given, or a URI.
        MissingRunMarker: it is no capture directory.
        CaptureDirectoryError: it does not exist.
    """
    given = directory or directory_of_the_environment(DIRECTORY_VARIABLE)
    if given is None:
        raise ConfigError(
            f"which directory? Nothing was read; give it as DIR, before any rollout ids, or --dir DIR, "
            f"or set {DIRECTORY_VARIABLE}."
        )
    files = PosixFiles(local_directory(given).absolute())
    require_capture_directory(files)
    return files


def require_rollout(store: CaptureStore, rollout_id: str) -> str:
    """The id, if the directory knows the rollout.

    Raises:
        RolloutNotFound: it does not; the message has the nearest ids.
    """
    known = [standing.rollout_id for standing in store.standings()]
    if rollout_id in known:
        return rollout_id
    near = nearest_ids(rollout_id, known)
    if near:
        hint = f"did you mean {', '.join(near)}?"
    elif known:
        hint = f"it has {len(known)} others; `gym-capture ls` lists them."
    else:
        hint = "nothing was captured there yet."
    if store.report.indexes and store.is_incomplete(rollout_id):
        hint += " It may lie in a file that is damaged, which `gym-capture verify` names."
    raise RolloutNotFound(
        f"{store.directory} has no rollout {plain_line(rollout_id, 200)}: {hint} Nothing was changed.",
        rollout_id=rollout_id,
        nearest=near,
    )


def warn_of_damage(screen: Screen, store: CaptureStore) -> None:
    """Say on stderr what of the log could not be read; what is shown is the rest."""
    report = store.report
    if not report.damaged:
        return
    places = [f"{place.segment.file} at {place.offset} ({place.length} bytes)" for place in report.damages]
    places += [f"the header of {segment.file}" for segment in report.headers]
    places += [*map(str, report.indexes), *(f"calls in {file}" for file in report.call_files)]
    affected = f"; {len(report.affected)} rollouts may have lost calls there" if report.affected else ""
    shown = "; ".join(places[:3]) or "bytes that a repair put aside"
    more = f" and {len(places) - 3} places more" if len(places) > 3 else ""
    screen.err.print(
        Text.assemble(
            ("damaged: ", "bold red"),
            f"{shown}{more} cannot be read{affected}. The rest is shown; `gym-capture verify {store.directory}` names "
            "every place.",
        ),
        soft_wrap=True,
    )


def complete_rollout(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of the directory that was given before, for a shell: those that begin with what is typed."""
    words = [str(each) for each in ctx.params.get("words") or ()]
    given = ctx.params.get("dir_option") or (words[0] if words and os.path.isdir(words[0]) else None)
    given = given or directory_of_the_environment(DIRECTORY_VARIABLE)
    if given is None or not os.path.isdir(given):
        return []
    try:
        files = PosixFiles(Path(given).absolute())
        logs = [(shard, each.file) for shard in shards_of(files) for each in names.segments_in(shard.names())]
        if sum(shard.size(name) for shard, name in logs) > COMPLETED_LOG_BYTES:
            return []
        return [each.rollout_id for each in CaptureStore(files).standings() if each.rollout_id.startswith(incomplete)]
    except (GymCaptureError, OSError):
        return []
