"""`Files` of a sealed run that lies elsewhere: read only, and no more of it than what is asked for."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NoReturn

import google_crc32c

from gym_capture.errors import CaptureDirectoryError, DamagedLog, RemoteUnavailable, RunSealed
from gym_capture.storage import names
from gym_capture.storage.files import AppendFile
from gym_capture.storage.remote.contents import Contents, decode_contents
from gym_capture.storage.remote.remote_folder import RemoteFolder
from gym_capture.storage.sealed.manifest import SealedFile

_OPEN_FILES = 32
BLOCK_BYTES = 256 << 10
"""Read at once, at least: a row group is many small reads close together, and each would be a round trip."""
_KEPT_BLOCKS = 64


class RemoteFiles:
    """The folder of a sealed run, or a folder of it. What was read once is not asked for again. Not safe for threads.

    Args:
        uri: the run's, as `RemoteFolder` takes it.

    Raises:
        ConfigError: there is no such kind of URI.
        RemoteUnavailable: it cannot be reached, or no sealed run lies there (yet).
        DamagedLog, FormatError: what it consists of cannot be read.
    """

    def __init__(self, uri: str) -> None:
        folder = RemoteFolder(uri)
        try:
            data = folder.read(names.CONTENTS)
        except FileNotFoundError:
            raise RemoteUnavailable(
                f"no sealed run lies at {folder.shown}: there is no {names.CONTENTS}, which is written last of all. "
                "Nothing was changed; check the URI, or run `gym-capture seal DIR --to URI` again where it was "
                "interrupted."
            ) from None
        self._take(_Read(folder, decode_contents(data, folder.shown)), "")

    def _take(self, read: _Read, path: str) -> None:
        self._read = read
        self._path = path

    @property
    def directory(self) -> str:
        """The URI, without its secrets."""
        if not self._path:
            return self._read.folder.shown
        return f"{self._read.folder.shown.partition('?')[0].rstrip('/')}/{self._path.rstrip('/')}"

    def names(self) -> list[str]:
        """The names of all files and folders, sorted, as `CONTENTS` says them."""
        within = (name for name in self._read.files if name.startswith(self._path))
        return sorted({name[len(self._path) :].partition("/")[0] for name in within})

    def size(self, name: str) -> int:
        """Bytes of a file, as they are there."""
        return self._read.size(self._path + name)

    def read(self, name: str, point: str | None = None) -> bytes:
        """A whole file; DamagedLog where it is not what was sent."""
        return self._read.whole(self._path + name)

    def read_at(self, name: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`."""
        return self._read.part(self._path + name, offset, length)

    def folder(self, name: str) -> RemoteFiles:
        """A folder of this one.

        Raises:
            CaptureDirectoryError: there is none.
        """
        path = f"{self._path}{name}/"
        if not any(each.startswith(path) for each in self._read.files):
            raise CaptureDirectoryError(
                f"the run at {self.directory} has no folder {name}. Nothing was changed; carry it there again."
            )
        found = RemoteFiles.__new__(RemoteFiles)
        found._take(self._read, path)
        return found

    def create(self, name: str, data: bytes, point: str) -> None:
        """RunSealed: nothing is written here."""
        self._refuse()

    def replace(self, name: str, data: bytes, point: str) -> None:
        """RunSealed: nothing is written here."""
        self._refuse()

    def overwrite(self, name: str, data: bytes, point: str) -> None:
        """RunSealed: nothing is written here."""
        self._refuse()

    def create_append(self, name: str, point: str) -> AppendFile:
        """RunSealed: nothing is written here."""
        self._refuse()

    def remove(self, name: str) -> None:
        """RunSealed: nothing is written here."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise RunSealed(
            f"the run at {self.directory} was sealed and lies elsewhere: nothing is written there. Nothing was "
            "changed; `gym-capture import` makes a run of it in a directory."
        )


class _Read:
    """What was read of a run's files until now."""

    def __init__(self, folder: RemoteFolder, contents: Contents) -> None:
        self.folder = folder
        self.files: dict[str, SealedFile] = {file.name: file for file in contents.files}
        self._sizes: dict[str, int] = {}
        self._opened: OrderedDict[str, Any] = OrderedDict()
        self._whole: dict[str, bytes] = {}
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    def size(self, name: str) -> int:
        if name not in self._sizes:
            self._open(name)
        return self._sizes[name]

    def whole(self, name: str) -> bytes:
        if name not in self._whole:
            data = self.folder.read_at(self._open(name), 0, self._sizes[name])
            if (len(data), google_crc32c.value(data)) != (self.files[name].size, self.files[name].crc32c):
                raise DamagedLog(
                    f"{name} at {self.folder.shown} is not what was sent there. Nothing was changed; remove it there, "
                    "and carry the run there again."
                )
            self._whole[name] = data
        return self._whole[name]

    def part(self, name: str, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size(name))
        if offset >= end:
            return b""
        first, last = offset // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        missing = [block for block in range(first, last + 1) if (name, block) not in self._blocks]
        found = {block: self._blocks[name, block] for block in range(first, last + 1) if block not in missing}
        if missing:
            start = missing[0] * BLOCK_BYTES
            stop = min((missing[-1] + 1) * BLOCK_BYTES, self._sizes[name])
            data = self.folder.read_at(self._open(name), start, stop - start)
            for block in range(missing[0], missing[-1] + 1):
                at = block * BLOCK_BYTES - start
                found[block] = data[at : at + BLOCK_BYTES]
        for block in range(first, last + 1):
            self._keep((name, block), found[block])
        joined = b"".join(found[block] for block in range(first, last + 1))
        return joined[offset - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def _keep(self, key: tuple[str, int], block: bytes) -> None:
        self._blocks[key] = block
        self._blocks.move_to_end(key)
        if len(self._blocks) > _KEPT_BLOCKS:
            self._blocks.popitem(last=False)

    def _open(self, name: str) -> Any:
        if name not in self.files:
            raise FileNotFoundError(f"{name} is no file of the run at {self.folder.shown}")
        found = self._opened.get(name)
        if found is None:
            found = self._opened[name] = self.folder.open(name)
            self._sizes[name] = found.size()
            if len(self._opened) > _OPEN_FILES:
                self._opened.popitem(last=False)[1].close()
        self._opened.move_to_end(name)
        return found


__all__ = ["BLOCK_BYTES", "RemoteFiles"]
