"""The manifest: which files a sealed dataset consists of, replaced atomically. What it does not list is not there.

A part is a pair of files: exchanges (`calls`) and what is known of each rollout in them (`rollouts`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gym_capture.errors import DamagedLog, FormatError
from gym_capture.storage import fault_points, names
from gym_capture.storage.files import Files

MANIFEST = names.MANIFEST
SEALED_FORMAT = 1
_PART_FILE = re.compile(r"part-[0-9]{8,10}\.(calls|rollouts)\.parquet")


class SealedFile(msgspec.Struct, frozen=True):
    """One Parquet file: its `name`, its `size` in bytes and their CRC-32C."""

    name: str
    size: int
    crc32c: int


class SealedPart(msgspec.Struct, frozen=True):
    """One pair of files.

    Args:
        number: counts parts, from 1; a number is never used again.
        calls, rollouts: its files.
        first, last: the least and the greatest rollout id in it.
        rollout_count, call_count: rows of the two files.
        raw_bytes: bytes of the exchanges before compression.
    """

    number: int
    calls: SealedFile
    rollouts: SealedFile
    first: str
    last: str
    rollout_count: int
    call_count: int
    raw_bytes: int

    @property
    def files(self) -> tuple[SealedFile, SealedFile]:
        """Both files."""
        return self.calls, self.rollouts


class Manifest(msgspec.Struct, frozen=True):
    """All parts, in the order in which they were sealed."""

    format: int = SEALED_FORMAT
    parts: tuple[SealedPart, ...] = ()


def calls_file(number: int) -> str:
    """The file of a part's exchanges."""
    return f"part-{number:08d}.calls.parquet"


def rollouts_file(number: int) -> str:
    """The file of a part's rollouts."""
    return f"part-{number:08d}.rollouts.parquet"


def part_files_in(names: Iterable[str]) -> list[str]:
    """The names that parts' files have, listed in a manifest or not."""
    return [name for name in names if _PART_FILE.fullmatch(name)]


def read_manifest(files: Files) -> Manifest:
    """The folder's manifest; an empty one where nothing was sealed yet.

    Raises:
        DamagedLog: it is no manifest.
        FormatError: another version wrote it.
    """
    try:
        data = files.read(MANIFEST)
    except FileNotFoundError:
        return Manifest()
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedLog(
            f"{MANIFEST} in {files.directory} cannot be read ({error}). Nothing was changed; restore it from a copy: "
            "which of the Parquet files beside it count is not known without it, and none was looked at."
        ) from error
    if manifest.format != SEALED_FORMAT:
        raise FormatError(
            f"{files.directory} is a sealed dataset of format {manifest.format}, this gym_capture reads "
            f"{SEALED_FORMAT}. Nothing was changed; use the version that wrote it."
        )
    return manifest


def replace_manifest(files: Files, manifest: Manifest) -> None:
    """Make this the folder's manifest, atomically and durably."""
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    files.replace(MANIFEST, data + b"\n", fault_points.SEALED_MANIFEST)
