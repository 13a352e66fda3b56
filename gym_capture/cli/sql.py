"""`gym-capture sql`: a question to the tables, ready or one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from gym_capture.cli.exits import Screen
from gym_capture.cli.opened import looking
from gym_capture.cli.options import Debug, DirOption, Json, given_directory, is_place
from gym_capture.errors import ConfigError
from gym_capture.reading.plain_text import plain_block, plain_line

if TYPE_CHECKING:
    from gym_capture.tables.sql import Answer


def sql(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[QUERY] [DIR]", help="One SELECT, and the directory; --dir too.", show_default=False),
    ] = None,
    dir_option: DirOption = None,
    ready: Annotated[
        str | None, typer.Option("--question", help="A ready question instead of QUERY.", show_default=False)
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the ready questions with their SQL.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    Ask what was captured in SQL: a SELECT (DuckDB's dialect) over the tables `rollouts`, `calls` and `messages` of a
    capture directory, live or at rest, or of a sealed dataset. It sees no file and no network, and changes nothing.

    `gym-capture sql "select model, count(*) from calls group by model" runs/local/model-calls`

    `gym-capture sql --question slowest-calls runs/local/model-calls`

    `gym-capture sql --list`
    """
    with looking(as_json=as_json, debug=debug) as screen:
        if listing:
            _list(screen)
            return
        query, given = _asked(words or [], ready, dir_option)
        directory = given_directory(given, dir_option)
        from gym_capture.tables import open_tables
        from gym_capture.tables.sql import ask

        answer = ask(open_tables(directory), query)
        if as_json:
            screen.document({"columns": list(answer.columns), "rows": [list(row) for row in answer.rows]})
        else:
            screen.out.print(_view(answer))


def _asked(words: list[str], ready: str | None, option: str | None) -> tuple[str, str | None]:
    """The query, and the directory if the words have it.

    Raises:
        ConfigError: there are too many words or no query, or there is no question of that name.
    """
    if ready is None and (is_place(words[0]) if len(words) == 1 else not words and option is not None):
        raise ConfigError(
            'which query? Nothing was read; gym-capture sql "select count(*) from calls" DIR, or one that is ready: '
            "--question NAME, which --list lists."
        )
    wanted = ["DIR"] if ready is not None else ["QUERY", "DIR"]
    if not len(wanted) - 1 <= len(words) <= len(wanted):
        raise ConfigError(
            f"needed: {' and '.join(wanted)}; given: {len(words)} arguments (quote the query). Nothing was read; "
            'gym-capture sql "select count(*) from calls" DIR'
        )
    from gym_capture.tables.questions import QUESTIONS, question

    if ready is None:
        return words[0], words[1] if len(words) > 1 else None
    found = question(ready)
    if found is None:
        names = ", ".join(each.name for each in QUESTIONS)
        raise ConfigError(f"there is no question {ready!r}; the questions are {names}. Nothing was read.")
    return found.sql, words[0] if words else None


def _list(screen: Screen) -> None:
    from gym_capture.tables.questions import QUESTIONS

    if screen.as_json:
        screen.document([{"name": each.name, "asks": each.asks, "sql": each.sql.strip()} for each in QUESTIONS])
        return
    for each in QUESTIONS:
        screen.out.print(Text.assemble((each.name, "bold"), f": {each.asks}\n", each.sql.strip(), "\n"), soft_wrap=True)


def _view(answer: Answer) -> Table:
    table = Table()
    for number, name in enumerate(answer.columns):
        numeric = any(isinstance(row[number], int | float) for row in answer.rows)
        table.add_column(Text(plain_line(name)), justify="right" if numeric else "left", overflow="fold")
    for row in answer.rows:
        table.add_row(*(Text(_shown(value)) for value in row))
    table.caption = f"{len(answer.rows)} row{'' if len(answer.rows) == 1 else 's'}"
    return table


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return plain_block(", ".join(map(str, value)) if isinstance(value, list) else str(value))
