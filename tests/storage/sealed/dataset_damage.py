"""Ways in which a file of a sealed dataset comes to harm, for tests of what is left then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq


def flip(path: Path, group: int, column: str) -> None:
    """Flip a bit in the data page of one column of one row group."""
    metadata = pq.ParquetFile(path).metadata
    found = metadata.row_group(group).column(metadata.schema.names.index(column))
    assert found.path_in_schema == column
    _flip_at(path, found.data_page_offset + found.total_compressed_size - 1)


def flip_in_footer(path: Path) -> None:
    """Flip a bit of the first field of the footer: nothing of the file can be read any more."""
    size = int.from_bytes(path.read_bytes()[-8:-4], "little")
    _flip_at(path, path.stat().st_size - 8 - size)


def truncate(path: Path) -> None:
    """Cut the last byte."""
    path.write_bytes(path.read_bytes()[:-1])


def overwrite(path: Path) -> None:
    """Other bytes, as many."""
    path.write_bytes(b"PAR1" + b"\x55" * (path.stat().st_size - 4))


def _flip_at(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


LOSSES: dict[str, Callable[[Path], None]] = {
    "footer": flip_in_footer,
    "truncated": truncate,
    "missing": Path.unlink,
    "overwritten": overwrite,
}
"""What makes a file unreadable as a whole."""
