"""Running the command line as a user does: a process of its own, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cases import ROOT

PATIENCE_S = 110


def environment() -> dict[str, str]:
    """This process's, with the checkout importable from any folder."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def gym_capture(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "gym_capture", *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def local_run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run what `make run` runs: a model server beside `gym-capture run`."""
    return subprocess.run(
        [sys.executable, "-m", "gym_capture.examples.local_run", *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def started(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, as a terminal does."""
    with (cwd / "stderr.log").open("w") as stderr:
        return subprocess.Popen(
            [sys.executable, "-m", "gym_capture", *arguments],
            cwd=cwd,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )


def document(ran: subprocess.CompletedProcess[str]) -> Any:
    """The one JSON document on stdout."""
    try:
        return json.loads(ran.stdout)
    except ValueError:
        raise AssertionError(f"no JSON on stdout: {ran.stdout[:500]!r}\n{ran.stderr[-3000:]}") from None


def records(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSONL file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
