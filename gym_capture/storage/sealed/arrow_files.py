"""`Files` as the Python file objects that pyarrow writes to and reads from."""

from __future__ import annotations

import io

import google_crc32c

from gym_capture.storage.files import AppendFile, Files

_HELD_BYTES = 1 << 20


class Sink(io.RawIOBase):
    """Appends to a file, and sums what it appends. Small writes are gathered.

    Args:
        file: taken over; `close` closes it, without a sync and without what was gathered.
        point: the fault point of each append.

    Attributes:
        crc: CRC-32C of all that was written.
        size: bytes written.
    """

    def __init__(self, file: AppendFile, point: str) -> None:
        super().__init__()
        self._file = file
        self._point = point
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.crc = 0
        self.size = 0

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: object, /) -> int:
        """Take in the bytes; they are copied, because their buffer is used again."""
        piece = bytes(data)  # type: ignore[call-overload]  # a buffer of pyarrow's
        self.crc = google_crc32c.extend(self.crc, piece)
        self.size += len(piece)
        self._held.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes >= _HELD_BYTES:
            self.append_held()
        return len(piece)

    def append_held(self) -> None:
        """Append what was gathered."""
        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            self._file.append(held, self._point)

    def tell(self) -> int:
        """Bytes written."""
        return self.size

    def close(self) -> None:
        """Give the descriptor back."""
        if not self.closed:
            self._file.close()
        super().close()


class Source(io.RawIOBase):
    """Reads one file, each time where it is asked to."""

    def __init__(self, files: Files, name: str) -> None:
        super().__init__()
        self._files = files
        self._name = name
        self._size = files.size(name)
        self._at = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to an offset."""
        self._at = offset + (0 if whence == io.SEEK_SET else self._at if whence == io.SEEK_CUR else self._size)
        return self._at

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; fewer at the end."""
        left = self._size - self._at
        data = self._files.read_at(self._name, self._at, left if size < 0 else min(size, left))
        self._at += len(data)
        return data
