"""Content encodings, undone for the record alone: what passes is never touched.

Whoever sent the bytes may be hostile, so output comes in pieces of bounded size, and ends at a limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import zstandard

PIECE_BYTES = 1 << 16
"""About the most that is decoded at once."""

_MOST_ENCODINGS = 4
_ZSTD_SLICE_BYTES = 256
"""A block of four bytes may stand for 128 KiB, so that a slice gives 8 MiB at most."""
_ZSTD_WINDOW_BYTES = 8 << 20
"""What RFC 9659 allows in HTTP."""
_BROTLI_SLICE_BYTES = 64
"""For versions that cannot bound their output."""


class _Stage(Protocol):
    """Undoes one encoding."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The pieces that become known. Raises anything when the data is broken."""

    def ended(self) -> bool:
        """Whether the data so far ends where its format ends."""


class _Zlib:
    """gzip (of several members, too), or deflate with and without zlib's header."""

    def __init__(self, window_bits: int | None) -> None:
        self._bits = window_bits
        self._head = b""
        self._inflate = zlib.decompressobj(window_bits) if window_bits is not None else None

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._inflate is None:
            self._head += data
            if len(self._head) < 2:
                return
            data, self._head = self._head, b""
            zlibs = data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
            self._inflate = zlib.decompressobj(zlib.MAX_WBITS if zlibs else -zlib.MAX_WBITS)
        while data:
            if self._inflate.eof:
                if self._bits is None:
                    return  # what follows a deflate stream is nobody's
                data = data.lstrip(b"\0")  # gzip's padding
                if not data:
                    return
                self._inflate = zlib.decompressobj(self._bits)
            piece = self._inflate.decompress(data, PIECE_BYTES)
            if piece:
                yield piece
            data = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
        while not self._inflate.eof and (piece := self._inflate.decompress(b"", PIECE_BYTES)):
            yield piece

    def ended(self) -> bool:
        return not self._head and (self._inflate is None or self._inflate.eof)


class _Zstd:
    """zstd, of several frames too."""

    def __init__(self) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._new = decompressor.decompressobj
        self._frame: Any = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_SLICE_BYTES):
            part = data[start : start + _ZSTD_SLICE_BYTES]
            while part:
                if self._frame is None:
                    self._frame = self._new()
                piece = self._frame.decompress(part)
                part = self._frame.unused_data if self._frame.eof else b""
                if self._frame.eof:
                    self._frame = None
                if piece:
                    yield piece

    def ended(self) -> bool:
        return self._frame is None


class _Brotli:
    """br."""

    def __init__(self) -> None:
        import brotli  # type: ignore[import-untyped]  # optional, and without stubs

        self._brotli = brotli.Decompressor()
        self._bounds = hasattr(self._brotli, "can_accept_more_data")

    def feed(self, data: bytes) -> Iterator[bytes]:
        if not self._bounds:
            for start in range(0, len(data), _BROTLI_SLICE_BYTES):
                yield self._brotli.process(data[start : start + _BROTLI_SLICE_BYTES])
            return
        yield self._brotli.process(data, output_buffer_limit=PIECE_BYTES)
        while not self._brotli.can_accept_more_data():
            yield self._brotli.process(b"", output_buffer_limit=PIECE_BYTES)

    def ended(self) -> bool:
        return bool(self._brotli.is_finished())


_STAGES: dict[str, Callable[[], _Stage]] = {
    "br": _Brotli,
    "deflate": lambda: _Zlib(None),
    "gzip": lambda: _Zlib(zlib.MAX_WBITS | 16),
    "x-gzip": lambda: _Zlib(zlib.MAX_WBITS | 16),
    "zstd": _Zstd,
}


class Decoder:
    """Undoes a body's encodings as it passes. Never raises: `trouble` tells.

    Args:
        encodings: the value of `Content-Encoding` (several joined by commas, in the order they were applied).
        limit_bytes: the most that is decoded in all.

    Attributes:
        trouble: why decoding has ended early (`unknown`, `broken`, `overflowed`), else None.
        size: bytes decoded.
        named: whether anything is encoded at all.
    """

    def __init__(self, encodings: str, limit_bytes: int) -> None:
        names = [name for part in encodings.split(",") if (name := part.strip().lower()) not in ("", "identity")]
        self.named = bool(names)
        self.trouble: str | None = None
        self.size = 0
        self._limit = limit_bytes
        self._stages: list[_Stage] = []
        self._fed = False
        if len(names) > _MOST_ENCODINGS:
            self.trouble = "unknown"
            return
        try:
            # The last one that was applied is the first to be undone.
            self._stages = [_STAGES[name]() for name in reversed(names)]
        except (KeyError, ImportError):
            self.trouble = "unknown"

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The next bytes as sent; gives what they decode to, in pieces. To be iterated to its end."""
        if self.trouble is not None or not data:
            return
        self._fed = True
        try:
            for piece in self._through(0, data):
                self.size += len(piece)
                if self.size > self._limit:
                    self.trouble = "overflowed"
                    return
                if piece:
                    yield piece
        except Exception:  # noqa: BLE001 - each library has errors of its own, and any means the same
            self.trouble = "broken"

    def _through(self, number: int, data: bytes) -> Iterator[bytes]:
        if number == len(self._stages):
            yield data
            return
        for piece in self._stages[number].feed(data):
            yield from self._through(number + 1, piece)

    def finish(self) -> None:
        """The body has ended: one that ends in the middle is broken."""
        if self.trouble is None and self._fed and not all(stage.ended() for stage in self._stages):
            self.trouble = "broken"
