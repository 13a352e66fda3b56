"""SQL over the tables, by DuckDB: it sees the three tables and nothing else, neither files nor the network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from gym_capture.errors import ConfigError, MissingExtra
from gym_capture.extras import how_to_install
from gym_capture.reading.plain_text import plain_block
from gym_capture.tables.tables import LEVELS, Tables


class Answer(NamedTuple):
    """What a query gave. Fields: the `columns`' names, and the `rows`' values in their order."""

    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]


def ask(tables: Tables, query: str) -> Answer:
    """The answer to one SELECT over `rollouts`, `calls` and `messages`. Only the tables that it names are read.

    Raises:
        ConfigError: the query is not one that can be answered; the message says why.
        MissingExtra: duckdb is not installed.
    """
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtra(
            f"SQL over the tables needs duckdb, which is not installed. Nothing was read; {how_to_install('frames')}"
        ) from error
    try:
        query.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the query is not UTF-8 ({error.reason} at character {error.start}). Nothing was read; write it anew."
        ) from error
    # Shut off for good: files, the network, and names of this process as tables. One SELECT cannot turn it on again.
    connection = duckdb.connect(
        ":memory:",
        config={
            "enable_external_access": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        },
    )
    try:
        statements = connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise ConfigError(
                "a query is one SELECT (or WITH … SELECT); what was captured is only read. Nothing was done; "
                "`gym-capture sql --list` shows examples."
            )
        # The word alone says it: to read a table for nothing costs time, and no answer.
        for level in LEVELS:
            named = re.search(rf"\b{level}\b", query, re.IGNORECASE)
            connection.register(level, tables.table(level) if named else tables.schema(level).empty_table())
        found = connection.execute(query)
        return Answer([column[0] for column in found.description or ()], found.fetchall())
    except duckdb.Error as error:
        # It quotes the query, and what was captured.
        raise ConfigError(
            f"the query cannot be answered: {plain_block(str(error))}. The tables are {', '.join(LEVELS)}; "
            "their columns stand in docs/tables.md, and `describe calls` as a subquery shows them: "
            "select * from (describe calls)."
        ) from error
    finally:
        connection.close()
