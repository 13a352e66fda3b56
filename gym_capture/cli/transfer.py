"""`gym-capture export` and `import`: captures in the formats of others, out of a directory and into one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gym_capture.cli.exits import Screen
from gym_capture.cli.opened import looking, writing
from gym_capture.cli.options import Debug, DirOption, Json, given_directory, local_directory
from gym_capture.cli.tables import status_view


def export(
    to: Annotated[Path, typer.Option("--to", help="A folder; for openai-chat a file.", show_default=False)],
    format_: Annotated[str, typer.Option("--format", help="nemo-gym, openai-chat or parquet.", show_default=False)],
    directory: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIR]",
            help="A capture directory, a sealed dataset, or a sealed run's URI; --dir too.",
            show_default=False,
        ),
    ] = None,
    dir_option: DirOption = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    Write what was captured in another format: NeMo Gym's capture files, conversations for training in OpenAI's chat
    format (one a line), or a sealed dataset. The directory is only read. What a format cannot hold is counted.

    `gym-capture export runs/local/model-calls --to out --format nemo-gym`

    `gym-capture export runs/local/model-calls --to train.jsonl --format openai-chat`
    """
    with looking(as_json=as_json, debug=debug) as screen:
        from gym_capture.transfer.export import export as export_captures

        source = given_directory(directory, dir_option)
        with writing(
            f"the export to {to}", f"{source} was only read; what is in the target may lack some. Run it again."
        ):
            exported = export_captures(source, local_directory(to), format_)
        _tell(screen, exported._asdict())


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="NeMo Gym's folder, a sealed dataset, a capture directory, or a sealed run's URI.",
            show_default=False,
        ),
    ],
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A capture directory at rest, or none yet.", show_default=False)
    ],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """
    Write captures into the log of a directory at rest. A live directory is refused, and so are rollouts of which it has
    other evidence; then no capture is written. Stopped or killed, it goes on when it is run again.

    `gym-capture import out runs/imported`
    """
    with looking(as_json=as_json, debug=debug) as screen:
        from gym_capture.transfer.importing import import_captures

        with writing(
            f"the import into {directory}", "What was written before that is there; run it again, it goes on."
        ):
            imported = import_captures(source, local_directory(directory))
        _tell(screen, imported._asdict())


def _tell(screen: Screen, told: dict[str, object]) -> None:
    if screen.as_json:
        screen.document(told)
    else:
        screen.out.print(status_view(told))
