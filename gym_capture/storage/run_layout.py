"""Where the shards of a run lie, and how they are bound to it.

A run of one shard is its directory, as it always was. A run of several has a folder for each, a capture directory of
its own but for its `RUN`, which says the run, how many shards there are and which one this is. The run's own `RUN` is
created after all of them: once it is there, a shard that is missing was lost, and nothing makes it anew.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable

from gym_capture.errors import CaptureDirectoryError, FormatError, MissingRunMarker, SettingsDiffer, ShardGiven
from gym_capture.model.codec import FORMAT_VERSION
from gym_capture.storage import fault_points, names
from gym_capture.storage.closing import refuse_closed
from gym_capture.storage.files import Files, FolderFiles
from gym_capture.storage.posix_files import PosixFiles, make_capture_directory
from gym_capture.storage.run_marker import (
    RunMarker,
    create_or_adopt_run,
    encode_marker,
    read_marker,
    runs_in_headers,
)


def create_or_adopt_shards(directory: str, shards: int, new_run: Callable[[], uuid.UUID] = uuid.uuid4) -> RunMarker:
    """The run of a directory; makes the directory that of a run of so many shards when it has no marker yet.

    Args:
        directory: the run's, which exists.

    Raises:
        SettingsDiffer: it is that of a run of another number of shards; nothing was written.
        MissingRunMarker: there is a log, and a marker is gone; nothing was written.
        ShardGiven: it is a shard's.
        RunSealed: the run was sealed.
        CaptureDirectoryError: it cannot be written, or a marker cannot be read, or shards lie beside one that says that
            there is only one.
        FormatError: the directory was written by another version.
    """
    files = PosixFiles(directory)
    marker = _marker_if_any(files)
    if marker is None:
        for each in (files, *_shards_there(files)):
            refuse_closed(each)  # a copy of a sealed run that lacks its markers gets no other ones
        _refuse_ownerless_shards(files)
        if shards == 1:
            _refuse_begun_shards(files)
            create_or_adopt_run(files, new_run)
        else:
            _create(files, shards, new_run)
        marker = read_marker(files)
    _refuse_shard(files, marker)
    _refuse_shards_beside(files, marker)
    if marker.shards != shards:
        raise _other_number(files, marker.shards, shards)
    for shard in range(shards):
        path = shard_directory(directory, shard, shards)
        if os.path.isdir(path):  # whether it has to be there, its owner finds
            refuse_closed(PosixFiles(path))
    return marker


def run_marker(files: Files) -> RunMarker:
    """The marker of a run's own directory.

    Raises:
        MissingRunMarker: there is none.
        ShardGiven: the directory is a shard's.
        CaptureDirectoryError: it cannot be read, or says that there is one shard where the folders of several are.
        FormatError: the directory was written by another version.
    """
    marker = read_marker(files)
    _refuse_shard(files, marker)
    _refuse_shards_beside(files, marker)
    return marker


def known_run(files: Files) -> str | None:
    """The run's uuid, hex, for who only names it: what its shards agree on, its marker's, or its segments' headers'.

    None: there is nothing of them (NeMo Gym's files have no run), or they do not agree.
    """
    found = marker_of_shards(files)
    if found is not None:
        return found.run
    try:
        return run_marker(files).run
    except (CaptureDirectoryError, FormatError):
        runs = runs_in_headers(files)
        return runs[0] if len(runs) == 1 else None


def shard_directory(directory: str, shard: int, shards: int) -> str:
    """Where a shard lies: a folder of its run's directory, or that directory itself where there is no other."""
    return directory if shards == 1 else os.path.join(directory, names.shard_folder(shard))


def require_shard(directory: str, run: str, shard: int, shards: int) -> str:
    """Where a shard lies that is to be served, once it is found to belong to its run.

    Args:
        directory: the run's.
        run: its uuid, hex.

    Raises:
        MissingRunMarker: the run's or the shard's marker is missing; so a file system may not be mounted here.
        CaptureDirectoryError: a marker is another run's or shard's, or cannot be read.
    """
    marker = run_marker(PosixFiles(directory))
    files = _existing(PosixFiles(directory), shard, shards)
    found = read_marker(files)
    wanted = RunMarker(run, FORMAT_VERSION, shards, shard if shards > 1 else None)
    if (marker.run, marker.shards, found) != (run, shards, wanted):
        raise CaptureDirectoryError(
            f"{files.directory} is not shard {shard} of {shards} of run {run}: its {names.RUN} says shard "
            f"{found.shard} of {found.shards} of run {found.run}, that of {directory} says {marker.shards} shards "
            f"of run {marker.run}. Nothing was written; see what was copied or mounted there.",
            directory=files.directory,
        )
    return files.directory


def shards_of(files: Files) -> list[Files]:
    """The directories of a run's shards, to be read: its own where it has one shard, or no marker and no shards.

    A marker that is lost or cannot be read, or that all shards contradict, is made up from theirs; who looks at the
    files tells of it.

    Raises:
        ShardGiven: the directory is a shard's.
        MissingRunMarker: a shard is gone.
        CaptureDirectoryError: there are shards, and their markers do not say which run they are; or there is a log
            beside them.
        FormatError: the directory was written by another version.
    """
    try:
        marker = run_marker(files)
    except ShardGiven:
        raise
    except (CaptureDirectoryError, FormatError):
        listed = files.names()
        if not names.shards_in(listed):
            return [files]  # one log, which can be read without
        found = marker_of_shards(files)
        if found is None or names.epochs_in(listed):
            raise
        return _all_to_read(files, found)
    try:
        return _all_to_read(files, marker)
    except CaptureDirectoryError:
        found = marker_of_shards(files)
        if found is None or found == marker:
            raise
        return _all_to_read(files, found)


def marker_of_shards(files: Files) -> RunMarker | None:
    """What the run's own marker must say, as those of its shards say it; None where they do not all agree."""
    shards = names.shards_in(files.names())
    agreed: set[RunMarker] = set()
    for shard in shards:
        try:
            found = read_marker(_existing(files, shard, len(shards)))
        except (CaptureDirectoryError, FormatError):
            return None
        if found.shard != shard:
            return None
        agreed.add(RunMarker(found.run, found.format, found.shards))
    marker = agreed.pop() if len(agreed) == 1 else None
    return marker if marker is not None and shards == list(range(marker.shards)) else None


def _all_to_read(run: Files, marker: RunMarker) -> list[Files]:
    return [run] if marker.shards == 1 else [_to_read(run, marker, shard) for shard in range(marker.shards)]


def _to_read(run: Files, marker: RunMarker, shard: int) -> Files:
    files = _existing(run, shard, marker.shards)
    try:
        found = read_marker(files)
    except MissingRunMarker:
        if names.epochs_in(files.names()):
            return files  # the log is there
        raise
    except CaptureDirectoryError:
        return files
    # Which shard it is nothing else says; which run it is, its log does.
    if (found.shards, found.shard) != (marker.shards, shard) or marker.run not in (found.run, *runs_in_headers(files)):
        raise _foreign(files, shard, found)
    return files


def _marker_if_any(files: Files) -> RunMarker | None:
    try:
        return read_marker(files)
    except MissingRunMarker:
        return None


def _create(files: PosixFiles, shards: int, new_run: Callable[[], uuid.UUID]) -> None:
    """Make the shards' folders and markers, then the run's. Whoever creates shard 0's marker names the run."""
    run: str | None = None
    for shard in range(shards):
        folder = os.path.join(files.directory, names.shard_folder(shard))
        make_capture_directory(folder)
        marker = RunMarker(run or new_run().hex, FORMAT_VERSION, shards, shard)
        run = marker.run
        found = _create_marker(PosixFiles(folder), marker)
        if found.shards != shards:
            raise _other_number(files, found.shards, shards)
        if shard and found != marker:
            raise _foreign(files, shard, found)
        run = found.run
    _create_marker(files, RunMarker(run or "", FORMAT_VERSION, shards))


def _create_marker(files: PosixFiles, marker: RunMarker) -> RunMarker:
    try:
        files.create(names.RUN, encode_marker(marker), fault_points.RUN)
    except FileExistsError:
        return read_marker(files)
    except OSError as error:
        raise CaptureDirectoryError(
            f"capture directory {files.directory} cannot be written ({error}). Give this user write permission or "
            "choose another directory.",
            directory=files.directory,
        ) from error
    return marker


def _existing(run: Files, shard: int, shards: int) -> Files:
    if shards == 1:
        return run
    folders = run if isinstance(run, FolderFiles) else PosixFiles(run.directory)
    try:
        return folders.folder(names.shard_folder(shard))
    except CaptureDirectoryError:
        path = os.path.join(run.directory, names.shard_folder(shard))
        raise MissingRunMarker(
            f"{path} is gone: it is shard {shard} of {shards} of the run in {run.directory}. Nothing was written; see "
            "that its file system is mounted here, or restore it from a copy.",
            directory=path,
            shard=shard,
        ) from None


def _refuse_shard(files: Files, marker: RunMarker) -> None:
    if marker.shard is not None:
        raise ShardGiven(
            f"{files.directory} is shard {marker.shard} of {marker.shards} of a run, whose directory is the one above. "
            "Nothing was changed; give that one.",
            directory=files.directory,
        )


def _refuse_shards_beside(files: Files, marker: RunMarker) -> None:
    """Where a marker says that there is one shard, the folder of any is damage: read so, it would be an empty run."""
    there = names.shards_in(files.names()) if marker.shards == 1 else []
    if there:
        raise CaptureDirectoryError(
            f"{names.RUN} in {files.directory} says that the run has one shard, and {names.shard_folder(there[0])} "
            "lies beside it: that file is damaged or another run's, or the folder is. Nothing was changed; "
            f"`gym-capture verify --repair` restores {names.RUN} where the shards agree and no other log is there. "
            "Else move away what does not belong there.",
            directory=files.directory,
        )


def _refuse_begun_shards(files: PosixFiles) -> None:
    """Refuse to make a run of one shard where a start of several shards was killed: its folders would lie beside it."""
    for shard in _shards_there(files):
        marker = _marker_if_any(shard)
        if marker is not None:
            raise _other_number(files, marker.shards, 1)
        raise CaptureDirectoryError(
            f"{shard.directory} was made by a start with several shards that did not end. Nothing was written; start "
            "with as many, or remove that folder, in which nothing was captured.",
            directory=files.directory,
        )


def _shards_there(files: PosixFiles) -> list[PosixFiles]:
    listed = files.names()
    return [PosixFiles(os.path.join(files.directory, names.shard_folder(each))) for each in names.shards_in(listed)]


def _refuse_ownerless_shards(files: PosixFiles) -> None:
    """Without the run's marker, a shard that ever had an owner means that the marker was lost."""
    for shard in _shards_there(files):
        if names.epochs_in(shard.names()):
            raise MissingRunMarker(
                f"{files.directory} has shards with the files of earlier owners and no {names.RUN} file: that file was "
                "lost, and a new run must not be mixed with what is there. Nothing was written; `gym-capture verify "
                f"--repair` restores {names.RUN} from the shards, or choose another directory.",
                directory=files.directory,
                runs=[],
            )


def _other_number(files: Files, there: int, here: int) -> SettingsDiffer:
    return SettingsDiffer(
        f"the run in {files.directory} has {there} shard{'s' * (there != 1)}, and capture.shards is {here}: the number "
        f"is fixed for the life of a run. Nothing was changed; start with capture.shards={there}, or give another "
        "directory.",
        keys=["capture.shards"],
    )


def _foreign(files: Files, shard: int, found: RunMarker) -> CaptureDirectoryError:
    return CaptureDirectoryError(
        f"shard {shard} in {files.directory} says that it is shard {found.shard} of {found.shards} of run "
        f"{found.run}. Nothing was changed; see what was copied there, or choose another directory.",
        directory=files.directory,
    )
