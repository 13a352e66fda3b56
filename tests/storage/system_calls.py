"""What `PosixFiles` asks of the operating system, in order, and what of that would not outlive a host's failure."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from gym_capture.storage import posix_files

DIRECTORY = "."
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp")


class SystemCalls:
    """Records the calls of `posix_files` on one directory; everything is really done.

    Attributes:
        log: `open a`, `write a`, `fsync a`, `fdatasync a`, `link a`, `replace a`; a temporary of `a` is `a.tmp`, the
            directory is `.`; and what a test adds.
        breaches: what was named before it was synced, or answered before all before it was.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, without: str = "") -> None:
        self.log: list[str] = []
        self.breaches: list[str] = []
        self._directory = os.fspath(directory)
        self._names: dict[int, str] = {}
        self._unsynced: set[str] = set()
        self._unsynced_entries: set[str] = set()
        self._without = without
        monkeypatch.setattr(posix_files, "os", _Os(self))

    def answer(self) -> None:
        """Somebody is told that all that was written is on disk."""
        self.log.append("answer")
        for name in sorted(self._unsynced):
            self.breaches.append(f"answered while {name} was not synced")
        for name in sorted(self._unsynced_entries):
            self.breaches.append(f"answered while the entry of {name} was not synced")

    def opened(self, path: str, flags: int, descriptor: int) -> None:
        name = DIRECTORY if path == self._directory else self._name(path)
        self._names[descriptor] = name
        if flags & os.O_EXCL:
            self.log.append(f"open {name}")
            if not name.endswith(".tmp"):
                self._unsynced_entries.add(name)

    def wrote(self, descriptor: int) -> None:
        name = self._names[descriptor]
        self.log.append(f"write {name}")
        self._unsynced.add(name)

    def named(self, how: str, source: str, target: str) -> None:
        name = self._name(target)
        self.log.append(f"{how} {name}")
        if self._name(source) in self._unsynced:
            self.breaches.append(f"{name} named before its content was synced")
            self._unsynced.discard(self._name(source))
        self._unsynced_entries.add(name)

    def sync(self, how: str, descriptor: int) -> None:
        if self._without == _kind(how, descriptor):
            return
        getattr(os, how)(descriptor)
        name = self._names[descriptor]
        self.log.append(f"{how} {name}")
        self._unsynced.discard(name)
        if name == DIRECTORY:
            self._unsynced_entries.clear()

    def _name(self, path: str) -> str:
        name = os.path.basename(path)
        match = _TEMPORARY.fullmatch(name)
        return f"{match[1]}.tmp" if match else name


class _Os:
    """`os` with some calls noted."""

    def __init__(self, calls: SystemCalls) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        descriptor = os.open(path, flags, mode)
        self._calls.opened(path, flags, descriptor)
        return descriptor

    def write(self, descriptor: int, data: bytes) -> int:
        self._calls.wrote(descriptor)
        return os.write(descriptor, data)

    def writev(self, descriptor: int, buffers: list[bytes]) -> int:
        self._calls.wrote(descriptor)
        return os.writev(descriptor, buffers)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)
        self._calls.named("link", source, target)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)
        self._calls.named("replace", source, target)

    def fsync(self, descriptor: int) -> None:
        self._calls.sync("fsync", descriptor)

    def fdatasync(self, descriptor: int) -> None:
        self._calls.sync("fdatasync", descriptor)


def _kind(how: str, descriptor: int) -> str:
    if how == "fsync" and stat.S_ISDIR(os.fstat(descriptor).st_mode):
        return "fsync of the directory"
    return "fsync of a file" if how == "fsync" else how


BREAKS = ["fdatasync", "fsync of a file", "fsync of the directory"]
"""Values of `without`: that call is not made."""
