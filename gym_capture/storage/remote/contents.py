"""`CONTENTS`: the file that makes a folder elsewhere a sealed run. It lists all others, and is written last of all."""

from __future__ import annotations

import msgspec

from gym_capture.errors import DamagedLog, FormatError
from gym_capture.storage import names
from gym_capture.storage.sealed.manifest import MANIFEST, SealedFile, part_files_in
from gym_capture.storage.summed_json import convert_fields, encode_summed, summed_fields

CONTENTS_FORMAT = 1


class Contents(msgspec.Struct, frozen=True):
    """What a sealed run elsewhere consists of.

    Args:
        run: the run's uuid, hex.
        files: every file but this one, with its path in the folder.
    """

    run: str
    files: tuple[SealedFile, ...]
    format: int = CONTENTS_FORMAT


def encode_contents(run: str, files: tuple[SealedFile, ...]) -> bytes:
    """The bytes of a `CONTENTS`; the same for the same run and files."""
    return msgspec.json.format(encode_summed(Contents(run, files)), indent=1) + b"\n"


def decode_contents(data: bytes, where: str) -> Contents:
    """What a `CONTENTS` says.

    Args:
        where: the folder, for messages.

    Raises:
        DamagedLog: it cannot be read, or names files that no sealed run has.
        FormatError: another version wrote it.
    """
    try:
        fields = summed_fields(data)
    except ValueError as error:
        raise _damaged(where, str(error)) from error
    if fields.get("format") != CONTENTS_FORMAT:
        raise FormatError(
            f"the run at {where} has contents of format {fields.get('format')}, this gym_capture reads "
            f"{CONTENTS_FORMAT}. Nothing was changed; use the version that wrote it."
        )
    try:
        contents = convert_fields(fields, Contents)
    except ValueError as error:
        raise _damaged(where, str(error)) from error
    strange = [file.name for file in contents.files if not _is_of_a_run(file.name)]
    if strange:
        raise _damaged(where, f"it names {strange[0]!r}")
    return contents


def _is_of_a_run(path: str) -> bool:
    *folders, name = path.split("/")
    if folders and names.shards_in(folders[:1]):
        folders = folders[1:]
    if not folders:
        return name in (names.RUN, names.SEALED)
    return (
        len(folders) == 1 and bool(names.sealed_folders_in(folders)) and bool(name == MANIFEST or part_files_in([name]))
    )


def _damaged(where: str, why: str) -> DamagedLog:
    return DamagedLog(
        f"{names.CONTENTS} at {where} cannot be read ({why}). Nothing was changed; remove that file, and carry the run "
        "there again: what is there and whole is not sent again."
    )


__all__ = ["Contents", "decode_contents", "encode_contents"]
