"""What a model said may stand in an error, a log line or a table: it is shown as text, and steers no terminal."""

from __future__ import annotations

import io
import logging

import pytest
import typer
from rich.console import Console, RenderableType

from gym_capture.cli.exits import command
from gym_capture.cli.tables import failed_table, gaps_table, pairs, status_view
from gym_capture.collect.summary import FailedRollout, FinishedRollout
from gym_capture.errors import GymCaptureError

HOSTILE = "\x1b]0;owned\x07 [bold]x[/bold] \u202etxt"
SHOWN = "\\x1b]0;owned\\x07 [bold]x[/bold] \\u202etxt"


def test_an_error_that_quotes_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), command(as_json=False, debug=False):
        raise GymCaptureError(f"the answer was {HOSTILE}\nnothing was changed")
    assert capsys.readouterr().err == f"error: the answer was {SHOWN}\nnothing was changed\n"


def test_a_log_line_that_quotes_it(capsys: pytest.CaptureFixture[str]) -> None:
    with command(as_json=False, debug=False):
        logging.getLogger("gym_capture.collect").warning("rollout failed (%s)", HOSTILE)
    assert capsys.readouterr().err.endswith(f"rollout failed ({SHOWN})\n")


@pytest.mark.parametrize(
    "table",
    [
        pairs([(HOSTILE, HOSTILE)]),
        status_view({"counts": {HOSTILE: HOSTILE}}),
        failed_table([FailedRollout(HOSTILE, "ValueError", HOSTILE, 1)]),
        gaps_table([FinishedRollout(HOSTILE, 1, 0, (), (("code", HOSTILE),))]),
    ],
    ids=["pairs", "status", "failed", "gaps"],
)
def test_a_table_that_names_it(table: RenderableType) -> None:
    written = io.StringIO()
    Console(file=written, width=400, force_terminal=True, color_system=None).print(table)
    assert SHOWN in written.getvalue()
    assert not set(written.getvalue()) & set("\x1b\x07\u202e")
