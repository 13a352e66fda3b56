"""Sealing a run's directory that has no owner, with the machine's clock and files."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path

from gym_capture.directory.locate import Liveness, liveness
from gym_capture.directory.repairing import beating
from gym_capture.errors import DirectoryHeld
from gym_capture.storage.owner_file import OwnerIdentity
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_layout import run_marker, shards_of
from gym_capture.storage.sealing import SealReport, require_settled, seal_log


def seal_at_rest(directory: str | Path, *, as_it_is: bool = False) -> dict[str, SealReport]:
    """Seal a run whose directory is at rest, for good. Blocks. Stopped or killed, it goes on when it is run again.

    Args:
        as_it_is: also what has open claims or damage; see `storage.sealing.seal_log`.

    Returns:
        What was done to each shard, under the path that its files have in the directory: `shard-000/`, or nothing.

    Raises:
        As `storage.sealing.seal_log` and `storage.run_layout.shards_of`. Open claims and damaged
        heads of any shard are found before one is sealed. Shards that were sealed before one that could not be for
        another reason stay so; each is read from where it is.
    """
    run = PosixFiles(directory)
    run_marker(run)
    if liveness(directory) != Liveness.AT_REST:
        raise DirectoryHeld(
            f"{run.directory} has a live owner, and a run is sealed at rest only. Nothing was changed; stop the owner "
            "(gym-capture stop) and seal it then."
        )
    identity = OwnerIdentity(f"seal-{uuid.uuid4().hex}", "seal", "", socket.gethostname(), os.getpid())
    paths = [each.directory for each in shards_of(run)]
    keys = [""] if len(paths) == 1 else [f"{os.path.basename(path)}/" for path in paths]
    if len(paths) > 1 and not as_it_is:
        # A run of which one shard is sealed does not go on: so none is, if it can be known that another will not be.
        for path in paths:
            require_settled(PosixFiles(path))
    return {
        key: seal_log(PosixFiles(path), identity, beating, as_it_is=as_it_is)
        for key, path in zip(keys, paths, strict=True)
    }


__all__ = ["seal_at_rest"]
