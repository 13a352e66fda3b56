"""How a command ends: its exit status, and errors as one clear message."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from enum import IntEnum
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from gym_capture.errors import ConfigError, DamagedLog, GymCaptureError, InputRowError, RolloutFunctionError
from gym_capture.reading.plain_json import json_document
from gym_capture.reading.plain_text import plain_block


class Exit(IntEnum):
    """Exit statuses; the same for every command."""

    OK = 0
    ERROR = 1
    """Something failed: rollouts without a try left, an owner that is not there, a file that cannot be written."""
    USAGE = 2
    """The command line, the configuration, the input or the rollout function is wrong; nothing was started."""
    EVIDENCE_MISSING = 3
    """All rollouts are finished, some have gaps, and `collect.require_complete` is set; or `check` misses evidence."""
    DAMAGE = 4
    """`verify` or `check` found bytes that cannot be read."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C; run again to go on."""
    TERMINATED = 143
    """Stopped by SIGTERM; run again to go on."""


class PlainFormatter(logging.Formatter):
    """A line of the log may quote what a model said, by way of a rollout function's error: it is shown as text."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        return plain_block(super().format(record))


class Screen:
    """Where a command writes.

    Args:
        as_json: stdout carries one JSON document and nothing else.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        for stream in (sys.stdout, sys.stderr):
            _escape_what_cannot_be_printed(stream)
        self.stdout: TextIO = sys.stdout
        self.err = Console(stderr=True, highlight=False)
        self.out = Console(file=self.stdout, highlight=False)

    def document(self, value: Any) -> None:
        """Write the JSON document."""
        self.stdout.write(json_document(value, indent=2) + "\n")
        self.stdout.flush()

    def line(self, value: Any) -> None:
        """Write one of several JSON documents, each on a line of its own."""
        self.stdout.write(json_document(value) + "\n")
        self.stdout.flush()


@contextmanager
def command(*, as_json: bool, debug: bool, judges: bool = False) -> Iterator[Screen]:
    """The frame of every command: logs on stderr, and a GymCaptureError as one message and an exit status.

    Args:
        as_json: what is printed meanwhile (by Ray, or a rollout function) goes to stderr as well.
        debug: let the traceback through, and log more.
        judges: the command's status says whether there is damage, also where nothing else can be said for it.
    """
    screen = Screen(as_json=as_json)
    _log_to(screen.err, debug)
    try:
        if as_json:
            with redirect_stdout(sys.stderr):
                yield screen
        else:
            yield screen
    except GymCaptureError as error:
        if as_json:
            screen.document({"error": {"type": type(error).__name__, "message": str(error)}})
        else:
            screen.err.print(Text.assemble(("error: ", "bold red"), plain_block(str(error))), soft_wrap=True)
        if debug:
            raise
        damaged = judges and isinstance(error, DamagedLog)
        raise typer.Exit(Exit.DAMAGE if damaged else status_of(error)) from error
    except KeyboardInterrupt:
        screen.err.print("interrupted")
        raise typer.Exit(Exit.INTERRUPTED) from None


def status_of(error: GymCaptureError) -> Exit:
    """The exit status that an error stands for."""
    return Exit.USAGE if isinstance(error, ConfigError | InputRowError | RolloutFunctionError) else Exit.ERROR


def _escape_what_cannot_be_printed(stream: TextIO) -> None:
    """A lone surrogate in a user's error, or any letter on an ASCII terminal, must not end a command half told."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
        stream.reconfigure(errors="backslashreplace")


def _log_to(console: Console, debug: bool) -> None:
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, markup=False)
        handler.setFormatter(PlainFormatter("%(message)s"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("gym_capture")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
