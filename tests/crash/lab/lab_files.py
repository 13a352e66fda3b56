"""Real files that know what of them is synced, so that a host's failure can be acted out on them."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from gym_capture.storage.fault_points import after, before
from gym_capture.storage.posix_files import PosixAppendFile, PosixFiles
from tests.crash.lab.in_process import LabHook


class LabFiles(PosixFiles):
    """`PosixFiles` whose segments lose what was not synced when the hook asks for it.

    Args:
        directory: the capture directory.
        hook: the lab's.
    """

    def __init__(self, directory: str, hook: LabHook) -> None:
        super().__init__(directory, hook)
        self._open: dict[str, _SyncedFile] = {}
        self._lock = threading.RLock()
        hook.drop = self.drop_unsynced

    def create_append(self, name: str, point: str) -> PosixAppendFile:
        """As in `PosixFiles`; nothing of it is synced yet."""
        file = super().create_append(name, point)
        file.__class__ = _SyncedFile
        assert isinstance(file, _SyncedFile)
        file.synced, file.lock = 0, self._lock
        self._open[name] = file
        return file

    def drop_unsynced(self) -> None:
        """Cut every segment of this owner to what is synced, and keep whoever else would write waiting for ever."""
        self._lock.acquire()
        for name, file in self._open.items():
            os.truncate(os.path.join(self.directory, name), file.synced)


class _SyncedFile(PosixAppendFile):
    synced: int
    lock: threading.RLock

    def append(self, buffers: Sequence[bytes | memoryview], point: str) -> None:
        with self.lock:
            super().append(buffers, point)

    def sync(self, point: str) -> None:
        with self.lock:
            self._hook(before(point))
            size = self.size
            os.fdatasync(self._descriptor)
            # Before the hook: what fails after the sync fails with the bytes on disk.
            self.synced = size
            self._hook(after(point))
