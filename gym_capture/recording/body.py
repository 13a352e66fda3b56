"""A body as it passes: its bytes up to a limit, and its size whatever it is."""

from __future__ import annotations


class Body:
    """Keeps what is added, until that is more than the limit; then only the size.

    Args:
        limit_bytes: the most that is kept.
        expected_bytes: the size that was announced, if any. What is announced as too large is never kept at all.

    Attributes:
        size: bytes so far.
    """

    def __init__(self, limit_bytes: int, expected_bytes: int | None = None) -> None:
        self._limit = limit_bytes
        self._chunks: list[bytes] | None = [] if (expected_bytes or 0) <= limit_bytes else None
        self.size = 0

    def add(self, data: bytes) -> None:
        """The next bytes."""
        self.size += len(data)
        if self._chunks is None:
            return
        if self.size > self._limit:
            self._chunks = None
        elif data:
            self._chunks.append(data)

    @property
    def overflowed(self) -> bool:
        """Whether there were (or were to be) more bytes than are kept."""
        return self._chunks is None

    @property
    def data(self) -> bytes | None:
        """All of it; None when it was too much to keep."""
        if self._chunks is None:
            return None
        if len(self._chunks) > 1:
            self._chunks = [b"".join(self._chunks)]
        return self._chunks[0] if self._chunks else b""
