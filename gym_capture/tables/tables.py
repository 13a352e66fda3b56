"""`Tables`: the three tables of one directory, a capture directory or a sealed dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gym_capture.errors import ConfigError, MissingExtra
from gym_capture.extras import how_to_install
from gym_capture.storage.captured_source import RolloutSource, open_captured

LEVELS = ("rollouts", "calls", "messages")
"""The tables, by what one row of each is."""


class Tables:
    """The tables of a directory, each read anew when it is asked for. Not safe for threads.

    Args:
        rollouts: where their rows come from.
    """

    def __init__(self, rollouts: RolloutSource) -> None:
        self._rollouts = rollouts

    def batches(self, level: str) -> Any:
        """A table as a `pyarrow.RecordBatchReader`: a stream, in bounded memory, to be gone through once.

        Args:
            level: one of `LEVELS`.

        Raises:
            ConfigError: there is no such table.
            MissingExtra: pyarrow is not installed.
        """
        from gym_capture.storage.sealed.arrow import pa

        schema, build = _builder(level)
        return pa.RecordBatchReader.from_batches(schema, build(self._rollouts(level == "messages")))

    def schema(self, level: str) -> Any:
        """A table's `pyarrow.Schema`."""
        return _builder(level)[0]

    def table(self, level: str) -> Any:
        """A table as a `pyarrow.Table`, whole in memory."""
        return self.batches(level).read_all()

    def dataset(self, level: str) -> Any:
        """A table as a `pyarrow.dataset.Dataset`, which can be filtered and projected again and again."""
        table = self.table(level)
        import pyarrow.dataset

        return pyarrow.dataset.dataset(table)

    def to_pandas(self, level: str) -> Any:
        """A table as a pandas data frame; integers that may be unknown stay integers.

        Raises:
            MissingExtra: pandas is not installed.
        """
        pandas = _frames("pandas")
        return self.table(level).to_pandas(types_mapper=pandas.ArrowDtype)

    def to_polars(self, level: str) -> Any:
        """A table as a Polars data frame.

        Raises:
            MissingExtra: polars is not installed.
        """
        return _frames("polars").from_arrow(self.table(level))


def open_tables(directory: str | Path) -> Tables:
    """The tables of a capture directory (at rest, live or damaged; NeMo Gym's files count) or of a sealed dataset.

    They say what was there when this was called; open them again to see what came since.

    Raises:
        CaptureDirectoryError: the path is absent, is no directory, or has neither of them in it.
        DamagedLog, FormatError: its log or manifest cannot be read.
    """
    return Tables(open_captured(directory))


def _builder(level: str) -> Any:
    if level not in LEVELS:
        raise ConfigError(f"there is no table {level!r}; the tables are {', '.join(LEVELS)}")
    from gym_capture.tables.builders import BUILDERS

    return BUILDERS[level]


def _frames(package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtra(f"{package} is not installed. Nothing was read; {how_to_install('frames')}") from error
