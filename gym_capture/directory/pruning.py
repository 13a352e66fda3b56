"""Pruning: whole runs that are at rest are removed, the oldest first.

A directory first gets another name, so that what is left of it when this is killed is no run any more that looks like a
smaller one; then it is removed. The next pruning of the same folder removes what was left.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gym_capture.directory.locate import Liveness, liveness
from gym_capture.errors import CaptureDirectoryError, ConfigError, GymCaptureError
from gym_capture.storage import names
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_marker import read_marker
from gym_capture.storage.sealed.manifest import MANIFEST, part_files_in

LIVE = "it has a live owner"
WRITTEN = "it was written to meanwhile"
FOREIGN = "it has files that are not the run's"

_NAME_BYTES = 100
"""So much of a run's name is kept while it is removed: with what is added, file systems take it."""

_UUID = re.compile(r"[0-9a-f]{1,32}")
_LEFT_OVER = re.compile(r"\..+\.pruned-[0-9a-f]{16}", re.DOTALL)


class FoundRun(NamedTuple):
    """A run's directory.

    Fields: its path, the run's uuid (hex), bytes of all its files, when one of them was last written (Unix seconds).
    """

    directory: str
    run: str
    size: int
    written_at: float


class KeptRun(NamedTuple):
    """A run that was chosen and stays, and why."""

    found: FoundRun
    why: str


class Failure(NamedTuple):
    """A directory that was to be removed and could not be, whole, and why."""

    directory: str
    why: str


class Pruning(NamedTuple):
    """What pruning removes, or would.

    Fields: `chosen` runs, the oldest first; those of them that are `kept`; how many runs were `found`, and their bytes;
    `left_over`, directories that an earlier pruning was killed at; `failed`, what the system refused to remove, runs
    (which are kept, too) and left over directories.
    """

    chosen: list[FoundRun]
    kept: list[KeptRun]
    found: int
    found_bytes: int
    left_over: list[str]
    failed: tuple[Failure, ...] = ()

    @property
    def freed_bytes(self) -> int:
        """Bytes of what is chosen."""
        return sum(each.size for each in self.chosen)


def choose(
    folder: str | Path,
    *,
    older_than_s: float | None = None,
    run: str | None = None,
    keep_bytes: int | None = None,
    now: float | None = None,
) -> Pruning:
    """Look for runs in a folder, and choose those that are to go. Only reads.

    Args:
        folder: a run's directory, or one that has some in it, however deep. Links are not followed.
        older_than_s: only runs in which nothing was written for so long.
        run: only the run whose uuid begins so.
        keep_bytes: of those that fulfil the other conditions the oldest go, until the runs that stay have at most so
            many bytes. None: all of them go.
        now: the time, Unix seconds.

    Raises:
        ConfigError: nothing says which runs are to go, or `run` names none or several (copies of one, say).
        CaptureDirectoryError: the folder cannot be read.
    """
    if older_than_s is None and run is None and keep_bytes is None:
        raise ConfigError("which runs are to go? Nothing was removed; give --older-than, --run or --keep.")
    if run is not None and not _UUID.fullmatch(_plain(run)):
        raise ConfigError(f"{run!r} is not how a run's uuid begins. Nothing was removed; see RUN in its directory.")
    root = Path(folder).resolve()
    if not root.is_dir():
        raise CaptureDirectoryError(
            f"{root} is no directory. Nothing was removed; check the path.", directory=str(root)
        )
    found: list[FoundRun] = []
    left_over: list[str] = []
    for path, is_run in _directories(root):
        if is_run:
            found.append(_measured(path))
        else:
            left_over.append(path)
    found.sort(key=lambda each: (each.written_at, each.directory))
    limit = None if older_than_s is None else (time.time() if now is None else now) - older_than_s
    candidates = [
        each
        for each in found
        if (limit is None or each.written_at <= limit) and (run is None or each.run.startswith(_plain(run)))
    ]
    if run is not None and len(candidates) > 1:
        where = ", ".join(each.directory for each in candidates[:3])
        raise ConfigError(
            f"several runs begin with {run}, or copies of one do ({where}). Nothing was removed; give more of the "
            "uuid, or the directory of the one that is to go."
        )
    chosen: list[FoundRun] = []
    kept: list[KeptRun] = []
    left = sum(each.size for each in found)
    total = left
    for each in candidates:
        if keep_bytes is not None and left <= keep_bytes:
            break
        why = _reason_to_keep(each)
        if why:
            kept.append(KeptRun(each, why))
        else:
            chosen.append(each)
            left -= each.size
    return Pruning(chosen, kept, len(found), total, sorted(left_over))


def prune(chosen: Pruning) -> Pruning:
    """Remove what was chosen, each run only if it is still at rest and as it was measured.

    Where the system refuses to remove something, that is told, and the rest goes.

    Returns:
        What was removed, and what was kept after all.
    """
    gone: list[FoundRun] = []
    kept = list(chosen.kept)
    failed: list[Failure] = []
    for each in chosen.chosen:
        stayed = _removed(each)
        if stayed is None:
            gone.append(each)
            continue
        kept.append(KeptRun(each, stayed.why))
        if isinstance(stayed, Failure):
            failed.append(stayed)
    for path in chosen.left_over:
        try:
            shutil.rmtree(path)
        except OSError as error:
            failed.append(Failure(path, f"it cannot be removed ({error})"))
    return chosen._replace(chosen=gone, kept=kept, failed=tuple(failed))


def _removed(run: FoundRun) -> KeptRun | Failure | None:
    """Remove a run, if nothing speaks against it. None: it is gone."""
    aside = _aside(run.directory)
    try:
        why = _reason_to_keep(run) or (WRITTEN if _measured(run.directory) != run else "")
        if why:
            return KeptRun(run, why)
        # An owner that starts just now finds its marker gone, or its OWNER before it acknowledges anything.
        os.rename(run.directory, aside)
    except OSError as error:
        return Failure(run.directory, f"it cannot be removed ({error})")
    try:
        if _measured(aside)._replace(directory=run.directory) != run:
            # Measuring takes its time, and an owner was quicker: what it acknowledged is there.
            os.rename(aside, run.directory)
            return KeptRun(run, WRITTEN)
    except OSError as error:
        why = (
            f"it may have been written to meanwhile, and {aside} did not get its name back ({error}); rename it before "
            "the next pruning, which removes what is named so"
        )
        return Failure(run.directory, why)
    try:
        shutil.rmtree(aside)
    except OSError as error:
        return Failure(run.directory, f"what is left of it is in {aside}, and cannot be removed ({error})")
    return None


def _aside(directory: str) -> str:
    """The name that a run's directory has while it is removed."""
    parent, name = os.path.split(directory)
    short = os.fsencode(name)[:_NAME_BYTES].decode("utf-8", "ignore")
    return os.path.join(parent, f".{short or 'run'}.pruned-{secrets.token_hex(8)}")


def _directories(root: Path) -> Iterator[tuple[str, bool]]:
    """The runs' directories (True) and what is left of pruned ones (False)."""
    for path, folders, files in os.walk(root):
        if names.RUN in files:
            folders.clear()
            if _run_of(path) is not None:
                yield path, True
            continue
        for folder in [folder for folder in folders if _LEFT_OVER.fullmatch(folder)]:
            folders.remove(folder)
            yield os.path.join(path, folder), False


def _run_of(directory: str) -> str | None:
    """The run of a directory; None where its marker is a shard's or cannot be read: such a one is left alone."""
    try:
        marker = read_marker(PosixFiles(directory))
    except (GymCaptureError, OSError):
        return None
    return marker.run if marker.shard is None else None


def _measured(directory: str) -> FoundRun:
    size, written_at = 0, 0.0
    for path, _, files in os.walk(directory):
        for name in files:
            try:
                found = os.lstat(os.path.join(path, name))
            except FileNotFoundError:
                continue
            size += found.st_size
            written_at = max(written_at, found.st_mtime)
    return FoundRun(directory, _run_of(directory) or "", size, written_at)


def _reason_to_keep(found: FoundRun) -> str:
    try:
        if liveness(found.directory) != Liveness.AT_REST:
            return LIVE
        foreign = _foreign(found.directory)
    except (GymCaptureError, OSError) as error:
        return f"it cannot be looked at ({error})"
    return f"{FOREIGN}: {', '.join(foreign[:3])}{' …' if len(foreign) > 3 else ''}" if foreign else ""


def _foreign(directory: str) -> list[str]:
    """What lies in a run's directory, however deep, and is not the run's."""
    found: list[str] = []
    for path, folders, files in os.walk(directory):
        inside = os.path.basename(path) if path != directory else ""
        strange = [each for each in files if not _is_file_of(inside, each)]
        for each in [*folders]:
            if not _is_folder_of(inside, each) or os.path.islink(os.path.join(path, each)):
                strange.append(each)
                folders.remove(each)
        found += [os.path.relpath(os.path.join(path, each), directory) for each in strange]
    return sorted(found)


def _is_folder_of(inside: str, name: str) -> bool:
    """Whether a run's directory (`inside` is nothing), or this folder of it, has a folder of that name."""
    if inside and not names.is_shard(inside):
        return False
    return names.is_folder(name) and not (inside and names.is_shard(name))


def _is_file_of(inside: str, name: str) -> bool:
    """Likewise of a file."""
    if inside == names.QUARANTINE:
        return _is_file_of("", name.removesuffix(".tmp").rpartition(".")[0])
    if inside == names.SEALED_AHEAD or names.sealed_folders_in([inside]):
        return name == MANIFEST or bool(part_files_in([name])) or names.is_temporary(name)
    return names.is_ours(name) and not names.is_folder(name)


def _plain(run: str) -> str:
    return run.replace("-", "").lower()


__all__ = ["FOREIGN", "LIVE", "FoundRun", "KeptRun", "Pruning", "choose", "prune"]
