"""Content encodings, undone for the record alone: what passes is never touched.

Whoever sent the bytes may be hostile, so input goes in slices and output comes in pieces of bounded size, and what
every stage gives ends at a limit, not only what the last one gives.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import zstandard

PIECE_BYTES = 1 << 16
"""About the most that is decoded at once."""

_MOST_ENCODINGS = 3
_MEMBER_BYTES = 1 << 10
"""The limit allows a member or frame for each so many bytes: empty ones decode to nothing, and cost all the same."""
_FEW_MEMBERS = 16
_SLICE_BYTES = 1 << 12
"""Decoders hand back what they did not consume: a short slice keeps that short."""
_ZSTD_SLICE_BYTES = 256
"""A block of four bytes may stand for 128 KiB, so that a slice gives 8 MiB at most."""
_ZSTD_WINDOW_BYTES = 8 << 20
"""What RFC 9659 allows in HTTP."""
_BROTLI_SLICE_BYTES = 64
"""For versions that cannot bound their output."""


class _Overflow(Exception):
    """A stage gave more than it may."""


class _Members:
    """Counts the members (or frames) of one encoding."""

    def __init__(self, limit_bytes: int) -> None:
        self._left = _FEW_MEMBERS + limit_bytes // _MEMBER_BYTES

    def begin(self) -> None:
        """One more. Raises when these are too many."""
        self._left -= 1
        if self._left < 0:
            raise _Overflow


class _Stage(Protocol):
    """Undoes one encoding."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The pieces that become known. Raises anything when the data is broken."""

    def ended(self) -> bool:
        """Whether the data so far ends where its format ends."""


class _Zlib:
    """gzip (of several members, too), or deflate with and without zlib's header."""

    def __init__(self, window_bits: int | None, members: _Members) -> None:
        self._bits = window_bits
        self._members = members
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
        for part in _slices(data, _SLICE_BYTES):
            while part:
                if self._inflate.eof:
                    if self._bits is None:
                        return  # what follows a deflate stream is nobody's
                    part = part.lstrip(b"\0")  # gzip's padding
                    if not part:
                        break
                    self._members.begin()
                    self._inflate = zlib.decompressobj(self._bits)
                piece = self._inflate.decompress(part, PIECE_BYTES)
                if piece:
                    yield piece
                part = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
        while not self._inflate.eof and (piece := self._inflate.decompress(b"", PIECE_BYTES)):
            yield piece

    def ended(self) -> bool:
        return not self._head and (self._inflate is None or self._inflate.eof)


class _Zstd:
    """zstd, of several frames too."""

    def __init__(self, members: _Members) -> None:
        self._members = members
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._new = decompressor.decompressobj
        self._frame: Any = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        for part in _slices(data, _ZSTD_SLICE_BYTES):
            while part:
                if self._frame is None:
                    self._members.begin()
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

    def __init__(self, members: _Members) -> None:  # it knows no members
        import brotli  # type: ignore[import-untyped]  # optional, and without stubs

        self._brotli = brotli.Decompressor()
        self._bounds = hasattr(self._brotli, "can_accept_more_data")

    def feed(self, data: bytes) -> Iterator[bytes]:
        if not self._bounds:
            for part in _slices(data, _BROTLI_SLICE_BYTES):
                yield self._brotli.process(part)
            return
        for part in _slices(data, _SLICE_BYTES):
            yield self._brotli.process(part, output_buffer_limit=PIECE_BYTES)
            while not self._brotli.can_accept_more_data():
                yield self._brotli.process(b"", output_buffer_limit=PIECE_BYTES)

    def ended(self) -> bool:
        return bool(self._brotli.is_finished())


def _slices(data: bytes, size: int) -> Iterator[bytes]:
    if len(data) <= size:
        yield data
        return
    for start in range(0, len(data), size):
        yield data[start : start + size]


_STAGES: dict[str, Callable[[_Members], _Stage]] = {
    "br": _Brotli,
    "deflate": lambda members: _Zlib(None, members),
    "gzip": lambda members: _Zlib(zlib.MAX_WBITS | 16, members),
    "x-gzip": lambda members: _Zlib(zlib.MAX_WBITS | 16, members),
    "zstd": _Zstd,
}


class Decoder:
    """Undoes a body's encodings as it passes. Never raises: `trouble` tells.

    Args:
        encodings: the value of `Content-Encoding` (several joined by commas, in the order they were applied).
        limit_bytes: the most that is decoded in all, and the most that comes of the encodings before the last one.

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
        self._between = 0
        self._stages: list[_Stage] = []
        self._fed = False
        if len(names) > _MOST_ENCODINGS:
            self.trouble = "unknown"
            return
        try:
            # The last one that was applied is the first to be undone.
            self._stages = [_STAGES[name](_Members(limit_bytes)) for name in reversed(names)]
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
        except _Overflow:
            self.trouble = "overflowed"
        except Exception:  # noqa: BLE001 - each library has errors of its own, and any means the same
            self.trouble = "broken"

    def _through(self, number: int, data: bytes) -> Iterator[bytes]:
        if not self._stages:
            yield data
            return
        last = number + 1 == len(self._stages)
        for piece in self._stages[number].feed(data):
            if last:
                yield piece
                continue
            self._between += len(piece)
            if self._between > self._limit:
                raise _Overflow
            yield from self._through(number + 1, piece)

    def finish(self) -> None:
        """The body has ended: one that ends in the middle is broken."""
        if self.trouble is None and self._fed and not all(stage.ended() for stage in self._stages):
            self.trouble = "broken"
