"""`Files` on a POSIX directory, local or on a network file system."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gym_capture.errors import CaptureDirectoryError
from gym_capture.storage import names
from gym_capture.storage.fault_points import after, before, step
from gym_capture.storage.files import FaultHook, no_faults

_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700
_BUFFERS_PER_CALL = min(os.sysconf("SC_IOV_MAX"), 1024)
_PIECE_BYTES = 1 << 20
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


def make_capture_directory(path: str | Path) -> None:
    """Make the directory (0700) and its parents when they are absent. Only `start` does this, never an owner.

    Raises:
        CaptureDirectoryError: the path is relative, is something else than a directory, or cannot be made.
    """
    checked = _absolute(path)
    try:
        os.makedirs(checked, mode=_DIRECTORY_MODE, exist_ok=True)
    except OSError as error:
        raise CaptureDirectoryError(
            f"capture directory {checked} cannot be made ({error.strerror}). Nothing was written; "
            "choose a directory that this user may write, on a file system that all nodes share.",
            directory=checked,
        ) from error


def _absolute(path: str | Path) -> str:
    text = os.fspath(path)
    if not os.path.isabs(text):
        raise CaptureDirectoryError(
            f"capture directory {text!r} is relative, and every process has another working directory. "
            "Nothing was written; give an absolute path.",
            directory=text,
        )
    return text


class PosixFiles:
    """One existing directory. Safe to use from several threads.

    Args:
        directory: its absolute path.
        hook: told of every durability step.

    Raises:
        CaptureDirectoryError: the path is relative, absent, or not a directory.
    """

    def __init__(self, directory: str | Path, hook: FaultHook = no_faults) -> None:
        self._directory = _absolute(directory)
        self._hook = hook
        if not os.path.isdir(self._directory):
            state = "is not a directory" if os.path.exists(self._directory) else "does not exist"
            raise CaptureDirectoryError(
                f"capture directory {self._directory} {state} on this node. Nothing was written; "
                "check the path and that the shared file system is mounted here.",
                directory=self._directory,
            )

    @property
    def directory(self) -> str:
        """The directory's path as it was given."""
        return self._directory

    def names(self) -> list[str]:
        """All file names, sorted."""
        return sorted(os.listdir(self._directory))

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return os.stat(self._path(name)).st_size

    def read(self, name: str, point: str | None = None) -> bytes:
        """A whole file, opened anew."""
        if point:
            self._hook(before(point))
        descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            pieces = []
            while piece := os.read(descriptor, size + 1):
                pieces.append(piece)
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        finally:
            os.close(descriptor)
        if point:
            self._hook(after(point))
        return data

    def read_at(self, name: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`."""
        descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            while length > 0 and (piece := os.pread(descriptor, length, offset)):
                pieces.append(piece)
                offset += len(piece)
                length -= len(piece)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        finally:
            os.close(descriptor)

    def create(self, name: str, data: bytes, point: str) -> None:
        """Create a file exclusively, whole and durable.

        The content is written aside and then linked to its name, so that nobody sees the file without it. Where hard
        links don't exist the file is created in place.
        """
        temporary = self._write_aside(name, data, point)
        try:
            self._hook(before(step(point, "link")))
            self._link(temporary, name, data)
            self._hook(after(step(point, "link")))
        finally:
            self._discard(temporary)
        self._sync_directory(point)

    def _link(self, temporary: str, name: str, data: bytes) -> None:
        try:
            os.link(temporary, self._path(name))
        except FileExistsError:
            # A network file system may have linked, lost the answer, and refused the repetition.
            if os.stat(temporary).st_nlink < 2:
                raise
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            self._write_and_sync(self._path(name), data)

    def replace(self, name: str, data: bytes, point: str) -> None:
        """Put this content in the place of a file, atomically and durably."""
        temporary = self._write_aside(name, data, point)
        try:
            self._hook(before(step(point, "rename")))
            os.replace(temporary, self._path(name))
            self._hook(after(step(point, "rename")))
        except OSError:
            self._discard(temporary)
            raise
        self._sync_directory(point)

    def overwrite(self, name: str, data: bytes, point: str) -> None:
        """Write a small file anew in one call, without any sync."""
        self._hook(before(point))
        descriptor = os.open(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)
        self._hook(after(point))

    def create_append(self, name: str, point: str) -> PosixAppendFile:
        """Create a file to append to, exclusively, its directory entry synced."""
        self._hook(before(step(point, "create")))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        file = PosixAppendFile(os.open(self._path(name), flags, _FILE_MODE), self._hook)
        try:
            self._hook(after(step(point, "create")))
            self._sync_directory(point)
        except BaseException:
            file.close()
            raise
        return file

    def remove(self, name: str) -> None:
        """Remove a file; absent is fine."""
        try:
            os.unlink(self._path(name))
        except FileNotFoundError:
            pass

    def folder(self, name: str, *, make: bool = False) -> PosixFiles:
        """A folder of this directory, told of to the same hook.

        Args:
            make: make it when it is absent, its entry synced.

        Raises:
            CaptureDirectoryError: it does not exist, or is no directory.
        """
        path = self._path(name)
        if make:
            os.makedirs(path, mode=_DIRECTORY_MODE, exist_ok=True)
            _sync_entries(self._directory)
        return PosixFiles(path, self._hook)

    def remove_folder(self, name: str) -> None:
        """Remove a folder and what is in it; absent is fine."""
        path = self._path(name)
        if os.path.isdir(path):
            shutil.rmtree(path)

    def reach(self, point: str) -> None:
        """Tell the hook of a step that a caller of several of these calls goes through."""
        self._hook(point)

    def set_aside(self, name: str, point: str) -> str:
        """Keep a file in `quarantine/` as well: under a hard link, or as a copy where there are none."""
        folder = self._path(names.QUARANTINE)
        try:
            os.mkdir(folder, _DIRECTORY_MODE)
            _sync_entries(self._directory)
        except FileExistsError:
            pass
        self._hook(before(step(point, "link")))
        number = 0
        while not self._kept_as(name, names.set_aside(name, number)):
            number += 1
        self._hook(after(step(point, "link")))
        self._hook(before(step(point, "directory-sync")))
        _sync_entries(folder)
        self._hook(after(step(point, "directory-sync")))
        return names.set_aside(name, number)

    def _kept_as(self, name: str, kept: str) -> bool:
        """Keep a file under that name. False: another file is there."""
        source, target = self._path(name), self._path(kept)
        try:
            os.link(source, target)
        except FileExistsError:
            return os.path.samefile(source, target) or _same_bytes(source, target)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            if os.path.exists(target):
                return _same_bytes(source, target)
            _copy(source, target + ".tmp")
            os.replace(target + ".tmp", target)
        return True

    def rename(self, name: str, to: str, point: str) -> None:
        """Put a file in the place of another, atomically and durably."""
        self._hook(before(step(point, "rename")))
        os.replace(self._path(name), self._path(to))
        self._hook(after(step(point, "rename")))
        self._sync_directory(point)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _write_aside(self, name: str, data: bytes, point: str) -> str:
        temporary = self._path(names.temporary_file(name, secrets.token_hex(4)))
        self._hook(before(step(point, "write")))
        try:
            self._write_and_sync(temporary, data, point)
        except OSError:
            self._discard(temporary)
            raise
        return temporary

    def _discard(self, temporary: str) -> None:
        """Remove what nobody will ask for, if that can be: what went wrong before is what has to be told."""
        with suppress(OSError):
            os.unlink(temporary)

    def _write_and_sync(self, path: str, data: bytes, point: str | None = None) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if point:
                self._hook(after(step(point, "write")))
                self._hook(before(step(point, "sync")))
            os.fsync(descriptor)
            if point:
                self._hook(after(step(point, "sync")))
        finally:
            os.close(descriptor)

    def _sync_directory(self, point: str) -> None:
        self._hook(before(step(point, "directory-sync")))
        _sync_entries(self._directory)
        self._hook(after(step(point, "directory-sync")))


class PosixAppendFile:
    """An open segment. Takes over the descriptor."""

    def __init__(self, descriptor: int, hook: FaultHook) -> None:
        self._descriptor = descriptor
        self._hook = hook
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._size

    def append(self, buffers: Sequence[bytes | memoryview], point: str) -> None:
        """Write all the buffers at the end, in order, in as few system calls as the platform allows."""
        self._hook(before(point))
        for start in range(0, len(buffers), _BUFFERS_PER_CALL):
            self._write(buffers[start : start + _BUFFERS_PER_CALL])
        self._hook(after(point))

    def _write(self, buffers: Sequence[bytes | memoryview]) -> None:
        left = sum(map(len, buffers))
        while left:
            written = os.writev(self._descriptor, buffers)
            self._size += written
            left -= written
            if left:
                buffers = _without_first(buffers, written)

    def sync(self, point: str) -> None:
        """Return once all that was appended is on disk."""
        self._hook(before(point))
        os.fdatasync(self._descriptor)
        self._hook(after(point))

    def close(self) -> None:
        """Give the descriptor back. Syncs nothing."""
        if self._descriptor >= 0:
            # The system takes it back even where closing fails: closed again, it could be another file's by then.
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def _sync_entries(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems make directory entries durable by themselves and refuse the call.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def _same_bytes(one: str, other: str) -> bool:
    if os.stat(one).st_size != os.stat(other).st_size:
        return False
    with open(one, "rb") as first, open(other, "rb") as second:
        while piece := first.read(_PIECE_BYTES):
            if piece != second.read(len(piece)):
                return False
    return True


def _copy(source: str, target: str) -> None:
    with (
        open(source, "rb") as old,
        open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE), "wb") as new,
    ):
        while piece := old.read(_PIECE_BYTES):
            new.write(piece)
        new.flush()
        os.fsync(new.fileno())


def _without_first(buffers: Sequence[bytes | memoryview], written: int) -> list[bytes | memoryview]:
    """What is left of the buffers after a short write."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []
