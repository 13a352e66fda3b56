"""What commands have in common: their options, and which directory is meant."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar, overload

import typer

from gym_capture.api import DIRECTORY_VARIABLE
from gym_capture.errors import ConfigError
from gym_capture.model.ids import is_rollout_id
from gym_capture.reading.plain_text import plain_line
from gym_capture.storage.remote.run_uri import is_uri, shown, uri_of

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout; everything else goes to stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Log more, and show the traceback of an error.")]
Dir = Annotated[
    str | None, typer.Argument(metavar="[DIR]", help="The run's capture directory; --dir too.", show_default=False)
]
DirOption = Annotated[
    str | None, typer.Option("--dir", help="The run's capture directory, as an option.", show_default=False)
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


def one_directory(argument: str | None, option: str | None) -> str | None:
    """The directory that was given in either form, or the URI of a sealed run.

    Raises:
        ConfigError: two were given.
    """
    if argument is not None and option is not None and _place(argument) != _place(option):
        raise ConfigError(
            f"two directories are given, {argument} and {option} (--dir). Nothing was changed; give the one that is "
            "meant."
        )
    return option if argument is None else argument


def given_directory(argument: str | None, option: str | None) -> str:
    """The same, or what the environment names where neither is given: for a command that opens it by itself.

    Raises:
        ConfigError: none was given, or two.
    """
    given = one_directory(argument, option) or directory_of_the_environment(DIRECTORY_VARIABLE)
    if given is None:
        raise ConfigError(
            f"which directory? Nothing was read; give it as DIR or --dir DIR, or set {DIRECTORY_VARIABLE}."
        )
    return given


def _place(given: str) -> str | Path:
    return given if is_uri(given) else Path(given).absolute()


@overload
def local_directory(given: str | Path) -> Path: ...
@overload
def local_directory(given: str | Path | None) -> Path | None: ...
def local_directory(given: str | Path | None) -> Path | None:
    """The directory that a command needs which does not go by URIs.

    Raises:
        ConfigError: a URI was given.
    """
    if given is None:
        return None
    path = Path(given)
    uri = str(given) if is_uri(given) else uri_of(path)
    if uri is not None:
        raise ConfigError(
            f"{shown(uri)} is a URI, and this command needs a run's directory. Nothing was changed; a sealed "
            "run that lies elsewhere is only read: by ls, show, stats, diff, check, view, verify, spans, sql, export "
            "and import."
        )
    return path


def directory_and_ids(words: list[str], option: str | None, ids: int) -> tuple[str | None, list[str]]:
    """Which of a command's words is the directory (or a URI): the first, if there is one more than ids are wanted.

    Raises:
        ConfigError: there are more or fewer words than that, or two directories.
    """
    if option is None and 0 < len(words) <= ids and is_place(words[0]):
        # What could be an id is one, where the environment says which directory is meant.
        may_be_id = directory_of_the_environment(DIRECTORY_VARIABLE) is not None and is_rollout_id(words[0])
        if len(words) < ids or not may_be_id:
            raise _ids_wanted(words[0], ids)
    if len(words) == ids:
        return option, words
    if len(words) == ids + 1:
        return one_directory(words[0], option), words[1:]
    wanted = "one rollout id" if ids == 1 else f"{ids} rollout ids"
    raise ConfigError(
        f"{wanted} is wanted, after the directory or with --dir DIR: {len(words)} words were given "
        f"({' '.join(words)}). Nothing was read."
    )


def is_place(word: str) -> bool:
    """Whether a word of a command names a directory that is there, or a URI."""
    return is_uri(word) or os.path.isdir(word)


def _ids_wanted(directory: str, ids: int) -> ConfigError:
    wanted = "which rollout?" if ids == 1 else "diff takes two rollouts."
    place = plain_line(shlex.quote(shown(directory)) if is_uri(directory) else shlex.quote(directory))
    return ConfigError(f"{wanted} Nothing was read; `gym-capture ls {place}` lists them.")


def directory_of_the_environment(variable: str) -> str | None:
    """The directory that an environment variable names."""
    return os.environ.get(variable) or None
