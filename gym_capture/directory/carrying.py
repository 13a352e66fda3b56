"""Carrying a sealed run elsewhere: to any file system that pyarrow knows, whole or not at all for whoever reads there.

The files of the dataset go first, each read back and compared with what the manifest says; then the small files; and
last of all `CONTENTS`, without which no run is there. Nothing that is there already is ever replaced: what is the same
is not sent again, and what is not ends it. So it may be killed anywhere, and run again it goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import msgspec

from gym_capture.directory.sealing import seal_at_rest
from gym_capture.errors import CaptureDirectoryError, DamagedLog, RemoteUnavailable, TargetTaken
from gym_capture.storage import fault_points, names
from gym_capture.storage.closing import ClosingNote, dataset_of, sealed_in
from gym_capture.storage.fault_points import after, before
from gym_capture.storage.files import FaultHook, Files, no_faults
from gym_capture.storage.nemo_gym_files import NemoGymFiles
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.remote.contents import decode_contents, encode_contents
from gym_capture.storage.remote.remote_folder import RemoteFolder
from gym_capture.storage.run_layout import run_marker, shards_of
from gym_capture.storage.sealed.manifest import MANIFEST, SealedFile, read_manifest
from gym_capture.storage.sealed.reader import SealedReader
from gym_capture.storage.sealing import SealReport

_PIECE_BYTES = 4 << 20


@dataclass(slots=True)
class CarryReport:
    """What carrying did.

    Args:
        to: the URI, without its secrets.
        files, size: what is there now, `CONTENTS` included, and its bytes.
        sent, sent_bytes: what of it was sent now.
        beside: rollouts that lie beside the dataset in NeMo Gym's files; they stay in the directory.
    """

    to: str = ""
    files: int = 0
    size: int = 0
    sent: int = 0
    sent_bytes: int = 0
    beside: int = 0


def seal_and_carry(
    directory: str | Path, uri: str, *, as_it_is: bool = False
) -> tuple[dict[str, SealReport], CarryReport]:
    """Seal a run in its directory, as `seal_at_rest`, then carry it, as `carry_sealed`. Blocks.

    A place that cannot be reached, or where something lies already, is found before anything is sealed.

    Raises:
        As both. Where sealing succeeded and carrying did not, the run is sealed, and whole in its directory.
    """
    run_marker(PosixFiles(directory))
    require_place(directory, uri)
    return seal_at_rest(directory, as_it_is=as_it_is), carry_sealed(directory, uri)


def require_place(directory: str | Path, uri: str) -> None:
    """See that a run may be carried to a folder, before it is sealed, or even begun. Only reads.

    Raises:
        ConfigError, RemoteUnavailable, MissingExtra: as `carry_sealed`.
        TargetTaken: the folder lies in a run's directory, or has something in it that cannot be this run's.
    """
    there = _elsewhere(directory, uri)
    if (found := there.listed()) and not _is_sealed(directory):
        raise _taken(there, f"{min(found)} is there, and nothing of this run can be yet")


def _is_sealed(directory: str | Path) -> bool:
    if not os.path.isdir(directory):
        return False
    return all(dataset_of(files) for files in shards_of(PosixFiles(directory)))


def _elsewhere(directory: str | Path, uri: str) -> RemoteFolder:
    """The folder, once it is found to lie in no run's directory: what removes the run would remove the copy with it."""
    there = RemoteFolder(uri)
    if there.local_path is not None:
        own = os.path.realpath(directory)
        at = os.path.realpath(there.local_path)
        for each in (at, *map(str, Path(at).parents)):
            if each == own or (each != at and os.path.isfile(os.path.join(each, names.RUN))):
                raise TargetTaken(
                    f"{there.shown} lies in the directory of {'the run itself' if each == own else 'a run'}, {each}. "
                    "Nothing was sent or changed; give a folder elsewhere.",
                    uri=there.shown,
                )
    return there


def carry_sealed(directory: str | Path, uri: str, *, hook: FaultHook = no_faults) -> CarryReport:
    """Carry a run that was sealed to a folder elsewhere; the directory is only read. Blocks.

    Args:
        directory: the run's, absolute.
        uri: as `pyarrow.fs.FileSystem.from_uri` takes it; the folder is the run's alone.
        hook: told before and after each step (`fault_points.REMOTE_FILE`, `REMOTE_CONTENTS`).

    Raises:
        CaptureDirectoryError: the directory is no run's, or was not sealed.
        DamagedLog: its dataset is not what was sealed; nothing was sent. Or what was sent does not read back.
        TargetTaken: something else lies there, or it lies in a run's directory; nothing there was changed.
        RemoteUnavailable: the folder cannot be read or written; run it again.
        ConfigError: there is no such kind of URI.
        MissingExtra: pyarrow is not installed.
    """
    run = PosixFiles(directory)
    marker = run_marker(run)
    there = _elsewhere(directory, uri)
    report = CarryReport(beside=len(NemoGymFiles(run).rollout_ids()))
    return _carried(there, marker.run, _pieces_of(run), hook, report)


class _Piece(NamedTuple):
    """A file to be sent: its path, size and CRC-32C, and its bytes."""

    file: SealedFile
    read: Callable[[], Iterator[bytes]]


def _pieces_of(run: Files) -> list[_Piece]:
    """All files of a sealed run but `CONTENTS`, in the order in which they are sent.

    Who reads the folder as a directory (where it is mounted, or was copied halfway) goes by its markers, so they
    follow all that they stand for.
    """
    shards = shards_of(run)
    paths = [""] if len(shards) == 1 else [f"{names.shard_folder(shard)}/" for shard in range(len(shards))]
    parts: list[_Piece] = []
    manifests: list[_Piece] = []
    switches: list[_Piece] = []
    for path, files in zip(paths, shards, strict=True):
        folder = sealed_in(files)
        if folder is None:
            raise CaptureDirectoryError(
                f"the run in {files.directory} was not sealed. Nothing was sent; run `gym-capture seal` first.",
                directory=files.directory,
            )
        dataset = PosixFiles(files.directory).folder(folder)
        if broken := SealedReader(dataset).verify():
            raise DamagedLog(
                f"{folder} in {files.directory} is damaged ({', '.join(broken)}). Nothing was sent; restore these "
                "files from a copy."
            )
        for file in (each for part in read_manifest(dataset).parts for each in part.files):
            named = SealedFile(f"{path}{folder}/{file.name}", file.size, file.crc32c)
            parts.append(_Piece(named, partial(_read_through, dataset, file)))
        manifests.append(_whole(f"{path}{folder}/{MANIFEST}", dataset.read(MANIFEST)))
        # Written anew: who sealed the run does not matter there, and a damaged one is not handed on.
        switches.append(_whole(path + names.SEALED, msgspec.json.encode(ClosingNote("", folder))))
    markers = [_whole(path + names.RUN, files.read(names.RUN)) for path, files in zip(paths, shards, strict=True)]
    if len(shards) > 1:
        markers.append(_whole(names.RUN, run.read(names.RUN)))
    return parts + manifests + switches + markers


def _carried(there: RemoteFolder, run: str, pieces: list[_Piece], hook: FaultHook, report: CarryReport) -> CarryReport:
    contents = encode_contents(run, tuple(piece.file for piece in pieces))
    last = _whole(names.CONTENTS, contents)
    missing = _missing(there, run, [*pieces, last])
    for piece in missing:
        point = fault_points.REMOTE_CONTENTS if piece is last else fault_points.REMOTE_FILE
        hook(before(point))
        there.send(piece.file.name, piece.read())
        hook(after(point))
        if _sum(there, piece.file.name) != (piece.file.size, piece.file.crc32c):
            there.remove(piece.file.name)
            raise RemoteUnavailable(
                f"{piece.file.name} did not come back from {there.shown} as it was sent, and was removed there. The "
                "run in its directory is whole; run it again."
            )
    report.to = there.shown
    report.files, report.size = len(pieces) + 1, sum(piece.file.size for piece in [*pieces, last])
    report.sent, report.sent_bytes = len(missing), sum(piece.file.size for piece in missing)
    return report


def _missing(there: RemoteFolder, run: str, pieces: list[_Piece]) -> list[_Piece]:
    """What is to be sent, once all that is there is found to be the same. What a killed attempt left goes."""
    wanted = {piece.file.name: piece.file for piece in pieces}
    folders = {parent for name in wanted for parent in _folders_of(name)}
    found: set[str] = set()
    left_over: list[str] = []
    for folder in sorted({"", *folders}):
        listed = there.listed(folder.rstrip("/"))
        if not folder and names.CONTENTS in listed:
            _refuse_another(there, run)
        for name, size in listed.items():
            path = folder + name
            if size is None and f"{path}/" in folders:
                continue
            if names.is_temporary(name) and folder + names.replaced_by(name) in wanted:
                left_over.append(path)
            elif size is None or path not in wanted:
                raise _taken(there, f"{path} is not of this run")
            elif size != wanted[path].size:
                raise _differs(there, path, f"{size:,} bytes there, and {wanted[path].size:,} here")
            else:
                found.add(path)
    for path in sorted(found):
        if _sum(there, path) != (wanted[path].size, wanted[path].crc32c):
            raise _differs(there, path, "other bytes there than here")
    for path in left_over:
        there.remove(path)
    return [piece for piece in pieces if piece.file.name not in found]


def _refuse_another(there: RemoteFolder, run: str) -> None:
    try:
        other = decode_contents(there.read(names.CONTENTS), there.shown).run
    except DamagedLog:
        return  # its bytes are not those of this run's, which is told below
    if other != run:
        raise _taken(there, f"run {other}")


def _sum(there: RemoteFolder, name: str) -> tuple[int, int] | None:
    try:
        return there.sum(name)
    except FileNotFoundError:
        return None


def _folders_of(name: str) -> Iterator[str]:
    """The folders that a path goes through, each with its slash."""
    at = name.find("/")
    while at >= 0:
        yield name[: at + 1]
        at = name.find("/", at + 1)


_ANOTHER = "give a folder that is empty or not there yet (--to, or seal.to in the configuration), none within this one"


def _taken(there: RemoteFolder, why: str) -> TargetTaken:
    return TargetTaken(
        f"{there.shown} holds something else ({why}). Nothing there was changed; {_ANOTHER}, and run the same command "
        "again.",
        uri=there.shown,
    )


def _differs(there: RemoteFolder, path: str, how: str) -> TargetTaken:
    return TargetTaken(
        f"{there.shown} holds something else, or a copy of this run that was cut off or damaged ({path} has {how}). "
        f"Nothing there was changed; where it is this run's, remove {path} there and run the same command again, which "
        f"sends that file alone; else {_ANOTHER}.",
        uri=there.shown,
    )


def _whole(name: str, data: bytes) -> _Piece:
    return _Piece(SealedFile(name, len(data), google_crc32c.value(data)), lambda: iter([data]))


def _read_through(files: Files, file: SealedFile) -> Iterator[bytes]:
    for at in range(0, file.size, _PIECE_BYTES):
        yield files.read_at(file.name, at, _PIECE_BYTES)


__all__ = ["CarryReport", "carry_sealed", "require_place", "seal_and_carry"]
