"""A run whose log is closed for good, because a dataset stands for it: how owners and readers know.

Two files say it. The last *epoch file* holds the folder of the dataset: whoever creates it, exclusively, has the epoch
that an owner would need, so a run is either taken or closed, and no owner takes the next epoch of a closed one. Then
`SEALED` is created, from when on readers look at the dataset. Before that the log is whole, after it nobody reads the
log; so segments are removed only then. Where both are lost, as in a copy that was cut short, a dataset that has
something in it and lies beside no segment says the same: nothing but sealing removes segments.
`docs/decisions/0014-sealed-dataset.md` says why.
"""

from __future__ import annotations

import os
import re

import msgspec

from gym_capture.errors import CaptureDirectoryError, DamagedLog, FormatError, RunSealed
from gym_capture.storage import fault_points, names
from gym_capture.storage.files import Files, FolderFiles
from gym_capture.storage.owner_file import beat_of, end_of_log
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.remote.contents import decode_contents
from gym_capture.storage.sealed.manifest import MANIFEST, part_files_in, read_manifest
from gym_capture.storage.summed_json import encode_summed

_FOLDER = re.compile(r'"sealed":"(sealed-[0-9]{8,10})"')


class ClosingNote(msgspec.Struct, frozen=True):
    """The content of the last epoch file of a closed log (there with its checksum), and of `SEALED`.

    Args:
        actor_id: who sealed it.
        sealed: the folder of the dataset.
    """

    actor_id: str
    sealed: str


def close_log(files: Files, epoch: int, note: ClosingNote) -> None:
    """Let `epoch` be the last one. FileExistsError: an owner has it; nothing was closed."""
    files.create(names.epoch_file(epoch), encode_summed(note), fault_points.SEALED_CLOSE)


def switch_readers(files: Files, note: ClosingNote) -> None:
    """Show readers the dataset of a closed log. Again: nothing changes."""
    try:
        files.create(names.SEALED, msgspec.json.encode(note), fault_points.SEALED_SWITCH)
    except FileExistsError:
        pass


def closed_in(files: Files) -> ClosingNote | None:
    """What closed the log; None: nothing did."""
    epochs = names.epochs_in(files.names())
    return _note(files, names.epoch_file(epochs[-1])) if epochs else None


def sealed_in(files: Files) -> str | None:
    """The folder of the dataset that readers go by; None: they go by the log.

    Raises:
        DamagedLog: `SEALED` does not say which.
    """
    try:
        data = files.read(names.SEALED)
    except FileNotFoundError:
        return None
    found = _folder_in(data)
    if found is None:
        note = closed_in(files)
        if note is None:
            raise DamagedLog(
                f"{names.SEALED} in {files.directory} cannot be read, and the last epoch file does not say which "
                'dataset it names either. Nothing was changed; write {"actor_id":"","sealed":"FOLDER"} into it, with '
                "the sealed-… folder beside it."
            )
        found = note.sealed
    return found


def dataset_of(files: Files) -> str | None:
    """The folder of the dataset that stands for the log, whatever says so; None: the log counts, and may go on.

    Raises:
        DamagedLog: as `sealed_in` and `unled_dataset`.
    """
    note = closed_in(files)
    return note.sealed if note is not None else sealed_in(files) or unled_dataset(files)


def unled_dataset(files: Files) -> str | None:
    """The folder of the dataset that stands for a log without segments, and to which no `SEALED` leads readers.

    As long as segments are there, sealing was stopped before it came to that file, and readers go by the log.

    Raises:
        DamagedLog: there is such a folder, and owners may have written after it; or `CONTENTS` cannot be read.
    """
    listed = files.names()
    # Segments go only once `SEALED` is there, so it is looked for after them.
    if names.segments_in(listed) or sealed_in(files) is not None:
        return None
    note = closed_in(files)
    return note.sealed if note is not None else _left_dataset(files, listed)


def _left_dataset(files: Files, listed: list[str]) -> str | None:
    """The folder of a dataset that is there without a log, or has to be, where no file of the log's says so."""
    filled = [folder for folder in names.sealed_folders_in(listed) if _is_filled(files, folder)]
    # Which attempt counted is known of a copy by its CONTENTS; else it was the last, for none follows one that counts.
    folder = _carried_dataset(files, listed) or (filled[-1] if filled else None)
    if folder is None:
        return None
    ends = {each: end_of_log(beat_of(files, each)) for each in names.epochs_in(listed)}
    if any(each > names.epoch_of_sealed(folder) and (end is None or end.length) for each, end in ends.items()):
        raise DamagedLog(
            f"the segments of the log in {files.directory} are gone. {folder} has what was there when it was sealed, "
            "and owners may have written more after that. Nothing was changed; restore the segments from a copy. Where "
            f'there is none, write {{"actor_id":"","sealed":"{folder}"}} into {names.SEALED}, and readers show that.'
        )
    return folder


def _is_filled(files: Files, folder: str) -> bool:
    """Whether a dataset has, or had, something in it."""
    try:
        dataset = (files if isinstance(files, FolderFiles) else PosixFiles(files.directory)).folder(folder)
    except CaptureDirectoryError:
        return False  # no folder
    try:
        there = dataset.names()
        return bool(part_files_in(there) or (MANIFEST in there and read_manifest(dataset).parts))
    except (DamagedLog, FormatError):
        return True


def _carried_dataset(files: Files, listed: list[str]) -> str | None:
    """The folder of the dataset that `CONTENTS` names, in a run that was carried elsewhere and copied back."""
    path = ""
    if names.CONTENTS not in listed:
        above, shard = os.path.split(files.directory)
        if not isinstance(files, PosixFiles) or not names.is_shard(shard):
            return None
        files, path = PosixFiles(above), f"{shard}/"
        if names.CONTENTS not in files.names():
            return None
    data = files.read(names.CONTENTS)
    if not data.startswith(b"{") and not names.sealed_folders_in(listed):
        return None  # somebody else's file
    contents = decode_contents(data, files.directory)
    paths = [file.name for file in contents.files]
    folders = {each.removeprefix(path).partition("/")[0] for each in paths if each.startswith(path)}
    return next(iter(names.sealed_folders_in(folders)), None)


def refuse_closed(files: Files, epoch: int | None = None) -> None:
    """Raise RunSealed where the log is closed: nothing is ever written there again.

    Args:
        epoch: one that is there, whether or not the directory, listed on a network file system, shows it yet.

    Raises:
        RunSealed: it is.
        DamagedLog: as `dataset_of`.
    """
    note = None if epoch is None else _note(files, names.epoch_file(epoch))
    folder = dataset_of(files) if note is None else note.sealed
    if folder is not None:
        raise RunSealed(
            f"the run in {files.directory} was sealed: what it holds is in {folder}, and its log is closed for "
            "good. Nothing was changed; start in another directory, or `gym-capture import` this one, or its "
            f"{folder}, into a new one.",
            directory=files.directory,
            folder=folder,
        )


def _note(files: Files, name: str) -> ClosingNote | None:
    try:
        data = files.read(name)
    except FileNotFoundError:
        return None  # an epoch that is known by its segments
    folder = _folder_in(data)
    return None if folder is None else ClosingNote("", folder)


def _folder_in(data: bytes) -> str | None:
    match = _FOLDER.search(data.decode("ascii", "replace"))
    return None if match is None else match[1]


__all__ = [
    "ClosingNote",
    "close_log",
    "closed_in",
    "dataset_of",
    "refuse_closed",
    "sealed_in",
    "switch_readers",
    "unled_dataset",
]
