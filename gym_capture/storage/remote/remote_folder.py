"""A folder of a file system of pyarrow's: whole files written and checked, any part of them read."""

from __future__ import annotations

import os
import posixpath
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import google_crc32c

from gym_capture.errors import ConfigError, RemoteUnavailable
from gym_capture.storage import names
from gym_capture.storage.posix_files import NO_LINKS
from gym_capture.storage.remote.arrow_fs import fs, pa
from gym_capture.storage.remote.run_uri import is_uri, shown

_OBJECT_STORES = ("s3", "gcs", "abfs")
"""Where a file is there when it was sent whole, and not before; folders are parts of names, and nothing is renamed."""
_PIECE_BYTES = 16 << 20
_FILE_MODE = 0o600
_URI_CHARACTERS = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*")
_ESCAPES = "; in a URI a space is written as %20, and whatever is no letter, digit or mark of ASCII likewise"


class RemoteFolder:
    """A folder elsewhere, whether it is there yet or not.

    Args:
        uri: as `pyarrow.fs.FileSystem.from_uri` takes it.

    Attributes:
        shown: the URI without its secrets.
        local_path: where it lies on this machine's file system, absolute; None: elsewhere.

    Raises:
        ConfigError: it is no URI that pyarrow knows, or names no folder.
        RemoteUnavailable: it cannot be reached.
    """

    def __init__(self, uri: str) -> None:
        self.shown = shown(uri)
        if not is_uri(uri):
            raise self._no_place("readers would take it for a path")
        if "#" in uri or ("?" in uri and uri.startswith("file:")):
            # pyarrow reads neither: two runs would have one folder.
            raise self._no_place("# (and ? in a path) begins what is no part of a name: write %23, %3F")
        try:
            self._fs, path = fs.FileSystem.from_uri(uri)
        except (ValueError, pa.ArrowException) as error:
            escapes = "" if _URI_CHARACTERS.fullmatch(uri) else _ESCAPES
            raise self._no_place(_told(error, uri) + escapes) from None  # what it says may have the URI's secrets in it
        except OSError as error:
            raise self._unavailable("be reached", _told(error, uri)) from None
        self._path: str = path.rstrip("/")
        if not self._path:
            raise ConfigError(
                f"{self.shown} names no folder. Nothing was read or written; give one, s3://bucket/runs/7."
            )
        if self._fs.type_name == "mock":
            raise self._no_place("it keeps nothing")
        self._is_store = self._fs.type_name in _OBJECT_STORES
        self._is_local = self._fs.type_name == "local"
        self.local_path = self._path if self._is_local else None

    def listed(self, folder: str = "") -> dict[str, int | None]:
        """What lies in the folder, or in a folder of it: names with sizes, None for a folder's. Absent: nothing.

        Raises:
            RemoteUnavailable: it cannot be listed, or there is no such bucket.
        """
        with self._reaching("be listed"):
            found = self._fs.get_file_info(fs.FileSelector(self._of(folder), allow_not_found=True))
            if not found:
                self._require_bucket()
        return {each.base_name: each.size if each.type == fs.FileType.File else None for each in found}

    def open(self, name: str) -> Any:
        """A file to be read at any place of it: `size()`, `read_at(length, offset)`. FileNotFoundError: there is none.

        Raises:
            RemoteUnavailable: it cannot be opened, or there is no such bucket.
        """
        with self._reaching("be read"):
            try:
                return self._fs.open_input_file(self._of(name))
            except FileNotFoundError:
                self._require_bucket()
                raise

    def read_at(self, file: Any, offset: int, length: int) -> bytes:
        """Bytes of an open file. Raises as `open`."""
        with self._reaching("be read"):
            data: bytes = file.read_at(length, offset)
            return data

    def read(self, name: str) -> bytes:
        """A whole file. Raises as `open`."""
        with self.open(name) as file:
            return self.read_at(file, 0, file.size())

    def sum(self, name: str) -> tuple[int, int]:
        """Size and CRC-32C of a file, read to its end. Raises as `open`."""
        size = crc = 0
        with self.open(name) as file:
            while piece := self.read_at(file, size, _PIECE_BYTES):
                crc = google_crc32c.extend(crc, piece)
                size += len(piece)
        return size, int(crc)

    def send(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a file that is not there yet; it appears whole. What was begun and failed is removed.

        On this machine's file system it never takes another's place, whoever writes there at the same time.

        Raises:
            RemoteUnavailable: it cannot be written, or is there.
        """
        path = self._of(name)
        with self._reaching("be written", absent=True):
            if self._is_store:
                self._write(path, pieces)
                return
            parent = posixpath.dirname(path)
            made = _absent(parent) if self._is_local else []
            self._fs.create_dir(parent, recursive=True)
            for each in made:
                _sync(posixpath.dirname(each))
            aside = posixpath.join(parent, names.temporary_file(posixpath.basename(path), secrets.token_hex(4)))
            self._write(aside, pieces)
            if self._is_local:
                _place(aside, path)
            else:
                self._fs.move(aside, path)

    def _write(self, path: str, pieces: Iterable[bytes]) -> None:
        try:
            with self._fs.open_output_stream(path) as stream:
                if self._is_local:
                    os.chmod(path, _FILE_MODE)
                for piece in pieces:
                    stream.write(piece)
        except BaseException:
            # A store takes what was sent until now for the whole file: nothing of pyarrow's says otherwise.
            try:
                self._fs.delete_file(path)
            except (OSError, pa.ArrowException):
                pass  # the failure itself is what is raised; the next attempt tells of what is left
            raise

    def remove(self, name: str) -> None:
        """Remove a file; absent is fine."""
        with self._reaching("be written"):
            try:
                self._fs.delete_file(self._of(name))
            except FileNotFoundError:
                pass

    def _of(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    def _require_bucket(self) -> None:
        """A store lists a bucket that is not there as one with nothing in it."""
        bucket = self._path.partition("/")[0]
        if self._is_store and self._fs.get_file_info(bucket).type == fs.FileType.NotFound:
            raise RemoteUnavailable(
                f"there is no bucket {bucket} ({self.shown}), or these credentials do not see it. Nothing was read or "
                "written; check the name and the region, or make the bucket first."
            )

    @contextmanager
    def _reaching(self, what: str, *, absent: bool = False) -> Iterator[None]:
        """Tell failures as RemoteUnavailable; that a file is not there, only where `absent` says so."""
        try:
            yield
        except RemoteUnavailable:
            raise
        except FileNotFoundError as error:
            if not absent:
                raise
            raise self._unavailable(what, str(error)) from error
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self._unavailable(what, str(error)) from error

    def _no_place(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self.shown} is no place that pyarrow knows ({why}). Nothing was read or written; give it like "
            "s3://bucket/runs/7, gs://bucket/runs/7 or file:///archive/runs/7."
        )

    def _unavailable(self, what: str, why: str) -> RemoteUnavailable:
        hint = "this user's rights"
        if self.shown.startswith("s3:"):
            hint = "the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE) and what they allow"
        elif not self.shown.startswith("file:"):
            hint = "the credentials and what they allow"
        return RemoteUnavailable(
            f"{self.shown} cannot {what} ({why}). What is there counts as it did before; check the URI, {hint}, and "
            "the network, and run it again."
        )


def _told(error: Exception, uri: str) -> str:
    """What pyarrow says, without the URI, which it likes to repeat."""
    return str(error).replace(uri, shown(uri)).partition("\n")[0]


def _absent(folder: str) -> list[str]:
    """The folder and those above it that are not there."""
    found: list[str] = []
    while not os.path.isdir(folder) and folder != posixpath.dirname(folder):
        found.append(folder)
        folder = posixpath.dirname(folder)
    return found


def _place(aside: str, path: str) -> None:
    """Give a whole file its name, durably, and no other's place where the file system can link."""
    _sync(aside)
    try:
        os.link(aside, path)
    except OSError as error:
        # A network file system may have linked, lost the answer, and refused the repetition.
        linked = isinstance(error, FileExistsError) and os.stat(aside).st_nlink > 1
        if error.errno in NO_LINKS:
            os.rename(aside, path)
        else:
            os.unlink(aside)
            if not linked:
                raise
    else:
        os.unlink(aside)
    _sync(posixpath.dirname(path))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


__all__ = ["RemoteFolder"]
