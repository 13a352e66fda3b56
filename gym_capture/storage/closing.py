"""A run whose log is closed for good, because a dataset stands for it: how owners and readers know.

Two files say it. The last *epoch file* holds the folder of the dataset: whoever creates it, exclusively, has the epoch
that an owner would need, so a run is either taken or closed, and no owner takes the next epoch of a closed one. Then
`SEALED` is created, from when on readers look at the dataset. Before that the log is whole, after it nobody reads the
log; so segments are removed only then. `docs/decisions/0014-sealed-dataset.md` says why.
"""

from __future__ import annotations

import re

import msgspec

from gym_capture.errors import DamagedLog, RunSealed
from gym_capture.storage import fault_points, names
from gym_capture.storage.files import Files

_FOLDER = re.compile(r'"sealed":"(sealed-[0-9]{8,10})"')


class ClosingNote(msgspec.Struct, frozen=True):
    """The content of the last epoch file of a closed log, and of `SEALED`.

    Args:
        actor_id: who sealed it.
        sealed: the folder of the dataset.
    """

    actor_id: str
    sealed: str


def close_log(files: Files, epoch: int, note: ClosingNote) -> None:
    """Let `epoch` be the last one. FileExistsError: an owner has it; nothing was closed."""
    files.create(names.epoch_file(epoch), msgspec.json.encode(note), fault_points.SEALED_CLOSE)


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


def unled_dataset(files: Files) -> str | None:
    """The folder of the dataset that stands for a closed log without segments, and to which no `SEALED` leads readers.

    As long as segments are there, sealing was stopped before it came to that file, and readers go by the log.
    """
    note = closed_in(files)
    # Segments go only once `SEALED` is there, so it is looked for after them.
    if note is None or names.segments_in(files.names()) or sealed_in(files) is not None:
        return None
    return note.sealed


def refuse_closed(files: Files, epoch: int | None = None) -> None:
    """Raise RunSealed where the log is closed: nothing is ever written there again.

    Args:
        epoch: one that is there, whether or not the directory, listed on a network file system, shows it yet.
    """
    note = closed_in(files) if epoch is None else _note(files, names.epoch_file(epoch))
    if note is None and (folder := sealed_in(files)) is not None:
        note = ClosingNote("", folder)
    if note is not None:
        raise RunSealed(
            f"the run in {files.directory} was sealed: what it holds is in {note.sealed}, and its log is closed for "
            "good. Nothing was changed; start in another directory, or `gym-capture import` this one into a new one.",
            directory=files.directory,
            folder=note.sealed,
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


__all__ = ["ClosingNote", "close_log", "closed_in", "refuse_closed", "sealed_in", "switch_readers", "unled_dataset"]
