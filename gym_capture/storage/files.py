"""The small interface that all I/O on a capture directory passes (`PosixFiles` and `testing.FaultyFiles` provide it).

Names are relative to one directory (no separators). Every durability step announces itself at a named fault point
before and after, under the label that the caller passes as `point` (`fault_points`), so that a test can stop a
process exactly there or make the step fail. Files are created 0600, the directory is 0700. No method is a coroutine:
the owner calls them in its executor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

FaultHook = Callable[[str], None]
"""Called with a fault point's name; may return, raise OSError, or never come back."""


def no_faults(point: str) -> None:
    """The hook of ordinary runs."""


class AppendFile(Protocol):
    """A file that only grows. One writer."""

    @property
    def size(self) -> int:
        """Bytes written so far (synced or not)."""

    def append(self, buffers: Sequence[bytes | memoryview], point: str) -> None:
        """Write all the buffers at the end, in order. OSError leaves an unknown part of them written."""

    def sync(self, point: str) -> None:
        """Return once all that was appended is on disk. After an OSError the file must not be synced again."""

    def close(self) -> None:
        """Give the descriptor back. Syncs nothing."""


class Files(Protocol):
    """One directory's files."""

    @property
    def directory(self) -> str:
        """The directory's path as it was given (for messages)."""

    def names(self) -> list[str]:
        """All file names, sorted."""

    def size(self, name: str) -> int:
        """Bytes of a file; FileNotFoundError when absent."""

    def read(self, name: str, point: str | None = None) -> bytes:
        """A whole file, opened anew (so that another host's replacement is seen); FileNotFoundError when absent."""

    def read_at(self, name: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer at the end of the file."""

    def create(self, name: str, data: bytes, point: str) -> None:
        """Create a file with this content, exclusively and durably: it is never seen without it. FileExistsError."""

    def replace(self, name: str, data: bytes, point: str) -> None:
        """Put this content in the place of a file, atomically and durably (temporary, sync, rename, directory sync)."""

    def overwrite(self, name: str, data: bytes, point: str) -> None:
        """Write a small file anew, without any sync (the beat). Creates it when absent."""

    def create_append(self, name: str, point: str) -> AppendFile:
        """Create a file to append to, exclusively, its directory entry synced. FileExistsError."""

    def remove(self, name: str) -> None:
        """Remove a file; absent is fine."""


@runtime_checkable
class FolderFiles(Files, Protocol):
    """A directory with folders."""

    def folder(self, name: str) -> Files:
        """A folder of it; CaptureDirectoryError when absent."""


class MendableFiles(Files, Protocol):
    """A directory whose files may be replaced by a repair, their originals kept."""

    def set_aside(self, name: str, point: str) -> str:
        """Keep a file in `quarantine/` as well, durably; what is kept already is not kept twice. Returns its name."""

    def rename(self, name: str, to: str, point: str) -> None:
        """Put a file, synced, in the place of another, atomically and durably."""
