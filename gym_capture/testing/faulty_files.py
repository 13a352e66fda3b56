"""An in-memory disk that forgets what was not synced, and views of it that fail or stop where a test says.

The disk is shared by the views of several owners. What was written is in the page cache; a sync brings a file's
dirty pages to the disk, a directory sync its entries. `crash` is the host's: it loses what was not synced, in one of
several ways. A failed sync behaves as on Linux: the pages stay readable, count as clean, and never reach the disk.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum

from gym_capture.storage import names
from gym_capture.storage.fault_points import after, before, step
from gym_capture.storage.files import AppendFile

PAGE_BYTES = 4096


class Stopped(BaseException):
    """The process was stopped at a fault point; nothing of it runs any more."""


class CrashMode(Enum):
    """What a crash of the host leaves of what was not synced."""

    DROP = "drop"
    """Nothing."""
    PREFIX = "prefix"
    """Each file's unsynced bytes up to a random one."""
    TORN = "torn"
    """Random pages; the others are as they were last synced, zeros where they never were."""


class _Inode:
    def __init__(self) -> None:
        self.cache = bytearray()
        self.disk = bytearray()
        self.dirty: set[int] = set()

    def write(self, offset: int, data: bytes | memoryview) -> None:
        end = offset + len(data)
        if len(self.cache) < end:
            self.cache.extend(bytes(end - len(self.cache)))
        self.cache[offset:end] = data
        if data:
            self.dirty.update(range(offset // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1))

    def truncate(self, length: int) -> None:
        del self.cache[length:]

    def sync(self) -> None:
        for page in sorted(self.dirty):
            self._write_back(page)
        del self.disk[len(self.cache) :]
        self.dirty.clear()

    def fail_sync(self) -> None:
        """The kernel could not write the pages and has forgotten that they are dirty."""
        self.dirty.clear()

    def crash(self, mode: CrashMode, rng: random.Random) -> None:
        if mode is CrashMode.TORN:
            for page in sorted(self.dirty):
                if rng.random() < 0.5:
                    self._write_back(page)
        elif mode is CrashMode.PREFIX and self.dirty:
            start = min(self.dirty) * PAGE_BYTES
            end = rng.randint(start, max(start, len(self.cache)))
            self._extend_disk(end)
            self.disk[start:end] = self.cache[start:end]
        self.dirty.clear()
        self.cache = bytearray(self.disk)

    def _write_back(self, page: int) -> None:
        start = page * PAGE_BYTES
        data = self.cache[start : start + PAGE_BYTES]
        self._extend_disk(start + len(data))
        self.disk[start : start + len(data)] = data

    def _extend_disk(self, length: int) -> None:
        if len(self.disk) < length:
            self.disk.extend(bytes(length - len(self.disk)))


class FaultyDisk:
    """One directory on one disk. Make views with `view()`."""

    def __init__(self) -> None:
        self._entries: dict[str, _Inode] = {}
        self._synced_entries: dict[str, _Inode] = {}

    def view(self, *, remote: bool = False) -> FaultyFiles:
        """A process's view. A remote one, on another host, sees only what was synced (and what it wrote itself)."""
        return FaultyFiles(self, remote=remote)

    def crash(self, mode: CrashMode = CrashMode.DROP, seed: int = 0) -> None:
        """The host fails and comes back. Views that are still there belong to processes that survived elsewhere."""
        rng = random.Random(seed)
        entries = dict(self._synced_entries)
        if mode is not CrashMode.DROP:
            for name in sorted(self._entries.keys() | entries.keys()):
                if self._entries.get(name) is not entries.get(name) and rng.random() < 0.5:
                    inode = self._entries.get(name)
                    if inode is None:
                        del entries[name]
                    else:
                        entries[name] = inode
        self._entries = entries
        self._synced_entries = dict(entries)
        for name in sorted(entries):
            entries[name].crash(mode, rng)

    def unsynced_pages(self, prefix: str) -> int:
        """How many pages of files whose names begin so a crash would tear now."""
        return sum(len(inode.dirty) for name, inode in self._entries.items() if name.startswith(prefix))

    def copy(self) -> FaultyDisk:
        """The same content on a disk of its own, all of it synced."""
        other = FaultyDisk()
        for name, inode in self._entries.items():
            other.put(name, bytes(inode.cache))
        return other

    def put(self, name: str, data: bytes) -> None:
        """Put a file there, synced, whatever was there before."""
        inode = _Inode()
        inode.write(0, data)
        inode.sync()
        self._entries[name] = inode
        self._synced_entries[name] = inode

    def content(self, name: str) -> bytes:
        """A file as a process on this host reads it."""
        return bytes(self._find(name, False).cache)

    def flip_bit(self, name: str, bit: int) -> None:
        """Flip one bit of a file, in cache and on disk."""
        inode = self._find(name, False)
        for data in (inode.cache, inode.disk):
            if bit // 8 < len(data):
                data[bit // 8] ^= 1 << bit % 8

    def _find(self, name: str, remote: bool) -> _Inode:
        inode = (self._synced_entries if remote else self._entries).get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return inode


class FaultyFiles:
    """`Files` of one process on a `FaultyDisk`.

    Attributes:
        points: every fault point that was reached, in order.
    """

    def __init__(self, disk: FaultyDisk, *, remote: bool = False, directory: str = "/capture") -> None:
        self.disk = disk
        self.points: list[str] = []
        self._remote = remote
        self._own: set[str] = set()
        self._directory = directory
        self._stopped = False
        self._reached: Counter[str] = Counter()
        self._plans: dict[tuple[str, int], Callable[[], None]] = {}
        self._failing: dict[str, int] = {}
        self._short_bytes = 0

    # -- what goes wrong ------------------------------------------------------------------------------------------

    def stop_at(self, point: str, occurrence: int = 1) -> None:
        """Stop the process at the n-th time it reaches a fault point: it raises `Stopped`, now and ever after."""
        self.run_at(point, self._stop, occurrence)

    def run_at(self, point: str, action: Callable[[], None], occurrence: int = 1) -> None:
        """Do something at the n-th time a fault point is reached (another owner's act, say)."""
        self._plans[point, self._reached[point] + occurrence] = action

    def fail_at(
        self, point: str, number: int = errno.EIO, *, occurrence: int = 1, forever: bool = False, short_bytes: int = 0
    ) -> None:
        """Raise an OSError at the n-th time (and ever after). A failing append leaves `short_bytes` written."""

        def fail() -> None:
            if forever:
                self._failing[point] = number
            raise self._error(number)

        self._short_bytes = short_bytes
        self.run_at(point, fail, occurrence)

    def heal(self) -> None:
        """Nothing fails any more (a stopped process stays stopped)."""
        self._failing.clear()
        self._plans.clear()

    def reach(self, point: str) -> None:
        """A fault point is reached."""
        self.alive()
        self.points.append(point)
        self._reached[point] += 1
        if point in self._failing:
            raise self._error(self._failing[point])
        action = self._plans.pop((point, self._reached[point]), None)
        if action is not None:
            action()

    def alive(self) -> None:
        """Raise `Stopped` when the process was stopped."""
        if self._stopped:
            raise Stopped

    def _stop(self) -> None:
        self._stopped = True
        raise Stopped

    def _error(self, number: int) -> OSError:
        return OSError(number, os.strerror(number))

    # -- Files ----------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """A name for messages."""
        return self._directory

    def names(self) -> list[str]:
        """All file names, sorted."""
        self.alive()
        entries = self.disk._entries
        if self._remote:
            return sorted(self.disk._synced_entries.keys() | (self._own & entries.keys()))
        return sorted(entries)

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return len(self._data(name))

    def read(self, name: str, point: str | None = None) -> bytes:
        """A whole file."""
        if point:
            self.reach(before(point))
        data = bytes(self._data(name))
        if point:
            self.reach(after(point))
        return data

    def read_at(self, name: str, offset: int, length: int) -> bytes:
        """Bytes from the middle of a file."""
        return bytes(self._data(name)[offset : offset + length])

    def create(self, name: str, data: bytes, point: str) -> None:
        """Create exclusively, whole and durable."""
        inode = self._write_aside(data, point)
        self.reach(before(step(point, "link")))
        self._enter(name, inode, exclusive=True)
        self.reach(after(step(point, "link")))
        self._sync_directory(name, point)

    def replace(self, name: str, data: bytes, point: str) -> None:
        """Replace atomically and durably."""
        inode = self._write_aside(data, point)
        self.reach(before(step(point, "rename")))
        self._enter(name, inode, exclusive=False)
        self.reach(after(step(point, "rename")))
        self._sync_directory(name, point)

    def overwrite(self, name: str, data: bytes, point: str) -> None:
        """Write anew without any sync."""
        self.reach(before(point))
        inode = self.disk._entries.get(name)
        if inode is None:
            inode = _Inode()
            self._enter(name, inode, exclusive=True)
        inode.write(0, data)
        inode.truncate(len(data))
        self.reach(after(point))

    def create_append(self, name: str, point: str) -> AppendFile:
        """Create a file to append to."""
        self.reach(before(step(point, "create")))
        inode = _Inode()
        self._enter(name, inode, exclusive=True)
        self.reach(after(step(point, "create")))
        self._sync_directory(name, point)
        return _FaultyAppendFile(self, inode)

    def remove(self, name: str) -> None:
        """Remove a file; the removal is durable at once."""
        self.alive()
        self.disk._entries.pop(name, None)
        self.disk._synced_entries.pop(name, None)

    def set_aside(self, name: str, point: str) -> str:
        """Keep a file in `quarantine/` as well."""
        self.reach(before(step(point, "link")))
        inode = self.disk._find(name, False)
        number = 0
        while (kept := self.disk._entries.get(names.set_aside(name, number))) is not None:
            if kept is inode or kept.cache == inode.cache:
                break
            number += 1
        else:
            self._enter(names.set_aside(name, number), inode, exclusive=True)
        self.reach(after(step(point, "link")))
        self._sync_directory(name, point)
        return names.set_aside(name, number)

    def rename(self, name: str, to: str, point: str) -> None:
        """Put a file in the place of another."""
        self.reach(before(step(point, "rename")))
        self.disk._entries[to] = self.disk._entries.pop(name)
        self._own.add(to)
        self.reach(after(step(point, "rename")))
        self._sync_directory(to, point)

    def _data(self, name: str) -> bytearray:
        self.alive()
        if self._remote and name not in self._own:
            inode = self.disk._find(name, True)
            # Beats are written through by every network file system when the file is closed.
            return inode.cache if name.startswith(names.beat_file(0)[:5]) else inode.disk
        return self.disk._find(name, False).cache

    def _enter(self, name: str, inode: _Inode, *, exclusive: bool) -> None:
        if exclusive and (name in self.disk._entries or name in self.disk._synced_entries):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self.disk._entries[name] = inode
        self._own.add(name)

    def _write_aside(self, data: bytes, point: str) -> _Inode:
        inode = _Inode()
        self.reach(before(step(point, "write")))
        inode.write(0, data)
        self.reach(after(step(point, "write")))
        self.reach(before(step(point, "sync")))
        inode.sync()
        self.reach(after(step(point, "sync")))
        return inode

    def _sync_directory(self, name: str, point: str) -> None:
        self.reach(before(step(point, "directory-sync")))
        self.disk._synced_entries = dict(self.disk._entries)
        self.reach(after(step(point, "directory-sync")))

    def _short(self) -> int:
        return self._short_bytes


class _FaultyAppendFile:
    def __init__(self, files: FaultyFiles, inode: _Inode) -> None:
        self._files = files
        self._inode = inode

    @property
    def size(self) -> int:
        return len(self._inode.cache)

    def append(self, buffers: Sequence[bytes | memoryview], point: str) -> None:
        data = b"".join(buffers)
        try:
            self._files.reach(before(point))
        except OSError:
            self._inode.write(self.size, data[: self._files._short()])
            raise
        self._inode.write(self.size, data)
        self._files.reach(after(point))

    def sync(self, point: str) -> None:
        try:
            self._files.reach(before(point))
        except OSError:
            self._inode.fail_sync()
            raise
        self._inode.sync()
        self._files.reach(after(point))

    def close(self) -> None:
        """Nothing happens; what is not synced stays so."""
