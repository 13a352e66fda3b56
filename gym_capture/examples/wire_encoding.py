"""How a response's body is encoded on the wire: gzip, piece by piece, or as it is."""

from __future__ import annotations

import zlib


class WireEncoding:
    """One body's encoder. Each piece can be decoded as soon as it arrives.

    Args:
        gzip: compress.
    """

    def __init__(self, gzip: bool) -> None:
        self._compressor = zlib.compressobj(wbits=31) if gzip else None

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that say so."""
        return [] if self._compressor is None else [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]

    def encode(self, data: bytes) -> bytes:
        """The next piece."""
        if self._compressor is None:
            return data
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def finish(self) -> bytes:
        """What ends the body."""
        return b"" if self._compressor is None else self._compressor.flush()
