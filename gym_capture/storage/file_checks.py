"""The small files of a capture directory: whether each still says what its writer wrote."""

from __future__ import annotations

import re
from typing import NamedTuple

from gym_capture.errors import CaptureDirectoryError, FormatError, MissingRunMarker
from gym_capture.storage import names
from gym_capture.storage.files import Files
from gym_capture.storage.owner_file import OwnerIdentity, end_of_log, is_stopped, parse_token, read_owner
from gym_capture.storage.run_marker import read_run
from gym_capture.storage.summed_json import decode_summed

_BEAT = re.compile(rb"[0-9]{0,20}\n?\0*")
_PLAIN_STOP = re.compile(rb"stopped *\n?")
_TOKEN = re.compile(rb"[!-~]+( [0-9a-f]{0,8})?")
_AT_BYTE = re.compile(r"\(byte ([0-9]+)\)|position ([0-9]+)|char ([0-9]+)")


class FileDamage(NamedTuple):
    """A file that does not say what it should: its name, the first byte known to be wrong, and why."""

    file: str
    offset: int
    why: str


def check_files(files: Files, run: bytes | None) -> list[FileDamage]:
    """Look at `RUN`, `OWNER`, the epoch files, the tokens, and the beats.

    All but the beats have checksums. A beat is never synced, so one that is empty or zeros is what a crash of the host
    leaves; it is no damage, and neither is one with other digits: only that they change counts. Nor is a file that is
    absent, `RUN` excepted.

    Args:
        files: the capture directory.
        run: the run's 16-byte uuid as the segments' headers say it, if they say it.

    Raises:
        FormatError: the directory was written by another version.
        OSError: a file could not be read.
    """
    listed = files.names()
    epochs = names.epochs_in(listed)
    found: list[FileDamage] = []
    marker = check_marker(files, run, bool(epochs))
    if marker is not None:
        found.append(marker)
    if names.OWNER in listed:
        owner = _check_owner(files, run)
        if owner is not None:
            found.append(owner)
    for epoch in epochs:
        for name, look in (
            (names.epoch_file(epoch), _identity_damage),
            (names.beat_file(epoch), _beat_damage),
            (names.token_file(epoch), _token_damage),
        ):
            if name in listed and (damage := look(files.read(name))) is not None:
                found.append(FileDamage(name, *damage))
    return found


def check_marker(files: Files, run: bytes | None, owned: bool = True) -> FileDamage | None:
    """What is wrong with `RUN`.

    Args:
        run: the run's uuid as others say it; None: nobody does.
        owned: whether the directory had an owner, so that it must have a marker.

    Raises:
        FormatError: it is of another version.
    """
    try:
        marker = read_run(files)
    except MissingRunMarker:
        return FileDamage(names.RUN, 0, "it is gone") if owned else None
    except FormatError:
        raise
    except CaptureDirectoryError as error:
        return FileDamage(names.RUN, offset_in(str(error), files.size(names.RUN)), "it cannot be read")
    if run is not None and marker.bytes != run:
        return FileDamage(names.RUN, 0, f"it names run {marker.hex}, the segments' headers {run.hex()}")
    return None


def _check_owner(files: Files, run: bytes | None) -> FileDamage | None:
    try:
        owner = read_owner(files)
    except CaptureDirectoryError as error:
        return FileDamage(names.OWNER, offset_in(str(error), files.size(names.OWNER)), "it cannot be read")
    if owner is None:
        return None
    if run is not None and owner.run != run.hex():
        return FileDamage(names.OWNER, 0, f"it names run {owner.run}, the segments' headers {run.hex()}")
    if owner.epoch not in names.epochs_in(files.names()):  # listed now: it may have come meanwhile
        return FileDamage(names.OWNER, 0, f"it names epoch {owner.epoch}, which nobody claimed")
    return None


def _identity_damage(data: bytes) -> tuple[int, str] | None:
    try:
        decode_summed(data, OwnerIdentity)  # of the last one of a closed log: with more fields
    except ValueError as error:
        return offset_in(str(error), len(data)), "it cannot be read; that it is there is all that counts"
    return None


def _beat_damage(data: bytes) -> tuple[int, str] | None:
    if _BEAT.fullmatch(data) or not any(data) or _PLAIN_STOP.fullmatch(data) or end_of_log(data) is not None:
        return None
    if is_stopped(data):
        return 0, "it is the note of a clean stop and does not match its checksum"
    digits = re.match(rb"[0-9]*", data)
    return digits.end() if digits else 0, "it is neither a beat nor the note of a clean stop"


def _token_damage(data: bytes) -> tuple[int, str] | None:
    if parse_token(data) is not None:
        return None
    whole = _TOKEN.match(data)
    end = whole.end() if whole else 0
    return (0, "it is a token that does not match its checksum") if end + 1 == len(data) else (end, "it is no token")


def offset_in(message: str, size: int) -> int:
    """The byte that a decoder's message names, the end when it says that there should be more; else 0."""
    if "truncated" in message:
        return size
    match = _AT_BYTE.search(message)
    return int(next(filter(None, match.groups()))) if match else 0
