"""What a run captured as tables of rollouts, calls and messages, for programs: `open_tables(directory)`.

Arrow record batches, streamed; pandas, Polars and DuckDB take them from there (`docs/tables.md`). Needs pyarrow (the
extra `parquet`), which is loaded when a table is asked for.
"""

from __future__ import annotations

from gym_capture.tables.tables import LEVELS, Tables, open_tables

__all__ = ["LEVELS", "Tables", "open_tables"]
