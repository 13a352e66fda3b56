"""What commands have in common: their options, and which directory is meant."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from gym_capture.errors import ConfigError

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout; everything else goes to stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Log more, and show the traceback of an error.")]
Dir = Annotated[
    Path | None, typer.Argument(metavar="[DIR]", help="The run's capture directory; --dir too.", show_default=False)
]
DirOption = Annotated[
    Path | None, typer.Option("--dir", help="The run's capture directory, as an option.", show_default=False)
]


_Word = TypeVar("_Word", bound=str)


def one_of(words: Sequence[_Word], given: str, option: str) -> _Word:
    """The word among `words` that an option was given.

    Raises:
        ConfigError: it is none of them; the message has them all.
    """
    for word in words:
        if word == given:
            return word
    raise ConfigError(f"{option} {given!r} is not known; give one of {', '.join(words)}. Nothing was read.")


def one_directory(argument: Path | None, option: Path | None) -> Path | None:
    """The directory that was given in either form.

    Raises:
        ConfigError: two were given.
    """
    if argument is not None and option is not None and argument.absolute() != option.absolute():
        raise ConfigError(
            f"two directories are given, {argument} and {option} (--dir). Nothing was changed; give the one that is "
            "meant."
        )
    return option if argument is None else argument


def directory_and_ids(words: list[str], option: Path | None, ids: int) -> tuple[Path | None, list[str]]:
    """Which of a command's words is the directory: the first, if there is one more than ids are wanted.

    Raises:
        ConfigError: there are more or fewer words than that, or two directories.
    """
    if len(words) == ids:
        return option, words
    if len(words) == ids + 1:
        return one_directory(Path(words[0]), option), words[1:]
    wanted = "one rollout id" if ids == 1 else f"{ids} rollout ids"
    raise ConfigError(
        f"{wanted} is wanted, after the directory or with --dir DIR: {len(words)} words were given "
        f"({' '.join(words)}). Nothing was read."
    )


def directory_of_the_environment(variable: str) -> Path | None:
    """The directory that an environment variable names."""
    given = os.environ.get(variable)
    return Path(given) if given else None
