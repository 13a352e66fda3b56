"""A JSONL file that grows durably: a line counts once it is on disk.

Lines that arrive while a sync runs are written and synced together. A kill can leave the last line torn; opening the
file cuts it off (or ends it, when only its newline is missing).
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

from gym_capture.errors import OutputError

logger = logging.getLogger(__name__)


class DurableLines:
    """Appends lines to a file that this process alone writes.

    Args:
        path: the file; created when absent, its folder too.
        read: called with each line that is there already (without its newline); raises ValueError for one that
            does not belong.
        sync: makes a descriptor's data durable.

    Raises:
        OutputError: another process holds the file, a line does not belong, or the file cannot be opened.
    """

    def __init__(self, path: Path, read: Callable[[bytes], None], sync: Callable[[int], None] = os.fdatasync) -> None:
        self.path = path
        self.syncs = 0
        self._sync = sync
        self._pending: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._failure: OutputError | None = None
        self._descriptor = _open(path)
        try:
            self._size = self._recover(read)
        except BaseException:
            os.close(self._descriptor)
            raise

    async def append(self, line: bytes) -> None:
        """Add one line (without its newline); returns once it is on disk. A cancelled caller's line still lands.

        Raises:
            OutputError: it could not be written; nor will any later one.
        """
        if self._failure is not None:
            raise self._failure
        done = asyncio.get_running_loop().create_future()
        self._pending.append((line, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._drain())
        await done

    async def close(self) -> None:
        """Wait for what is under way, and let go of the file."""
        while self._writing is not None:
            await asyncio.wait([self._writing])
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    async def _drain(self) -> None:
        try:
            while self._pending:
                group, self._pending = self._pending, []
                try:
                    if self._failure is not None:
                        raise self._failure
                    await asyncio.to_thread(self._write, [line for line, _ in group])
                except (OSError, OutputError) as error:
                    self._fail(error, [done for _, done in group])
                else:
                    for _, done in group:
                        if not done.done():
                            done.set_result(None)
        finally:
            self._writing = None

    def _write(self, lines: list[bytes]) -> None:
        left = memoryview(b"".join(line + b"\n" for line in lines))
        total = len(left)
        while left:
            left = left[os.write(self._descriptor, left) :]
        self._sync(self._descriptor)
        self.syncs += 1
        self._size += total

    def _fail(self, error: OSError | OutputError, waiting: list[asyncio.Future[None]]) -> None:
        if self._failure is None:
            self._failure = OutputError(
                f"cannot write {self.path}: {error}. What was reported finished is on disk; make room (or mend the "
                "cause) and run again to go on from there.",
                path=str(self.path),
            )
            try:
                os.ftruncate(self._descriptor, self._size)
            except OSError:
                logger.warning("%s may end in a torn line; the next run repairs it", self.path)
        for done in waiting:
            if not done.done():
                done.set_exception(self._failure)

    def _recover(self, read: Callable[[bytes], None]) -> int:
        size = 0
        tail = b""
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    tail = line
                    break
                self._read_line(read, line[:-1], number)
                size += len(line)
        if tail:
            size = self._mend(tail, size, read)
        return size

    def _read_line(self, read: Callable[[bytes], None], line: bytes, number: int) -> None:
        try:
            read(line)
        except ValueError as error:
            raise OutputError(
                f"{self.path}, line {number}: {error}. Nothing was changed. Mend or remove that line, or give another "
                "collect.output.",
                path=str(self.path),
                line=number,
            ) from error

    def _mend(self, tail: bytes, size: int, read: Callable[[bytes], None]) -> int:
        """Deal with a last line that has no newline; returns the file's size afterwards."""
        number = "the last line"
        try:
            whole = isinstance(json.loads(tail), dict)
        except ValueError:
            whole = False
        if whole:
            self._read_line(read, tail, -1)
            os.write(self._descriptor, b"\n")
            size += len(tail) + 1
            logger.info("%s: ended %s, which had no newline", self.path, number)
        elif tail.startswith(b"{") or not tail.strip(b"\0"):
            os.ftruncate(self._descriptor, size)
            logger.warning("%s: cut off %d bytes of %s, torn when a run was killed", self.path, len(tail), number)
        else:
            raise OutputError(
                f"{self.path} ends in {tail[:40]!r}, which no collector wrote. Nothing was changed; give another "
                "collect.output.",
                path=str(self.path),
            )
        os.fsync(self._descriptor)
        return size


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise OutputError(f"cannot open {path}: {error.strerror or error}", path=str(path)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise OutputError(
            f"another run is writing {path}. Wait for it to end (or stop it), or give another collect.output.",
            path=str(path),
        ) from error
    except OSError:
        logger.warning("%s: its file system has no locks; see to it that only one run writes it", path)
    # The name must survive a power cut as well as the lines do.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return descriptor
