"""A directory read through descriptors that stay open: for who reads very many small pieces of what nobody replaces."""

from __future__ import annotations

import os
from collections import OrderedDict
from types import TracebackType

from gym_capture.storage.posix_files import PosixFiles

_OPEN_FILES = 64


class HeldFiles(PosixFiles):
    """One existing directory. What is read of a file is that of when it was first read here. Not safe for threads.

    Opening and closing a file costs several times what reading an exchange from it does. Use it as a context: leaving
    it closes what is open.

    Args:
        directory: its absolute path.
    """

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._open: OrderedDict[str, int] = OrderedDict()

    def __enter__(self) -> HeldFiles:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def read_at(self, name: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`."""
        descriptor = self._open.get(name)
        if descriptor is None:
            descriptor = self._open[name] = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open) > _OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(name)
        data = os.pread(descriptor, length, offset)
        if len(data) == length:
            return data
        pieces = [data]
        while data and length > len(data):
            offset, length = offset + len(data), length - len(data)
            data = os.pread(descriptor, length, offset)
            pieces.append(data)
        return b"".join(pieces)


__all__ = ["HeldFiles"]
