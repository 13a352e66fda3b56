"""Which output a capture directory belongs to.

Another output knows nothing of what the first one finished: its run would clear those rollouts and collect them anew.
So the first run writes its output's path into the directory, and a run with another one is refused.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from gym_capture.errors import CaptureDirectoryError, ConfigError
from gym_capture.storage import names
from gym_capture.storage.posix_files import PosixFiles

logger = logging.getLogger(__name__)

_FAULT_POINT = "collect"


def check_output(directory: Path, output: Path) -> bool:
    """Whether the directory is bound to this output already; False when it is bound to none, or not there yet.

    Raises:
        ConfigError: it is another output's, or its file cannot be read. Nothing was changed.
    """
    mark = directory / names.COLLECT
    try:
        first = Path(json.loads(PosixFiles(directory).read(names.COLLECT))["output"])
    except (CaptureDirectoryError, FileNotFoundError):
        return False
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{mark}, which names the collect.output of these captures, cannot be read ({error}). Nothing was cleared "
            "or written; if no other output uses the directory, remove that file and run again, else give another "
            "model_call_capture_dir."
        ) from error
    if _is_one(first, output):
        return True
    raise ConfigError(
        f"{directory} holds the captures of {first}, and collect.output is {output}: this run would clear them. "
        "Nothing was cleared or written; give another model_call_capture_dir, or the first collect.output again. If "
        f"that file was moved here, remove {mark} and run again.",
        directory=str(directory),
        output=str(first),
    )


def bind_output(directory: Path, output: Path) -> None:
    """Make the directory this output's, before anything is cleared in it.

    Raises:
        ConfigError: another output was faster.
    """
    if check_output(directory, output):
        return
    content = json.dumps({"output": os.path.realpath(output)}).encode() + b"\n"
    try:
        PosixFiles(directory).create(names.COLLECT, content, _FAULT_POINT)
    except FileExistsError:
        check_output(directory, output)
    except OSError as error:
        logger.warning(
            "%s cannot be written (%s): see to it that no run with another collect.output uses this directory",
            directory / names.COLLECT,
            error,
        )


def holds_no_log(directory: Path) -> bool:
    """Whether nothing was ever captured there."""
    try:
        return not names.segments_in(PosixFiles(directory).names())
    except OSError:
        return True


def _is_one(first: Path, output: Path) -> bool:
    if os.path.realpath(output) == str(first):
        return True
    try:
        return os.path.samefile(first, output)
    except OSError:
        return False
