"""pyarrow, which an extra brings: the one place of this package that imports it."""

from __future__ import annotations

from gym_capture.errors import MissingExtra
from gym_capture.extras import how_to_install

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError as error:
    raise MissingExtra(
        "sealed datasets and tables need pyarrow, which is not installed. Nothing was changed; "
        f"{how_to_install('parquet')}"
    ) from error

__all__ = ["pa", "pc", "pq"]
