"""Repairing a directory that has no owner, with the machine's clock and files."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gym_capture.storage.closing import dataset_of
from gym_capture.storage.owner_file import BEAT_S, OwnerIdentity
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.repair import RepairReport, repair, repair_marker
from gym_capture.storage.run_layout import run_marker, shards_of

logger = logging.getLogger("gym_capture.directory")


def repair_at_rest(directory: str | Path) -> dict[str, RepairReport]:
    """Mend what is damaged in a run's directory at rest. Blocks, for some seconds more when its last owner died.

    What was sealed has no log to mend.

    Returns:
        What was done to each shard, under the path that its files have in the directory: `shard-000/`, or nothing.

    Raises:
        As `storage.repair.repair` and `storage.run_layout.shards_of`.
    """
    run = PosixFiles(directory)
    identity = OwnerIdentity(f"repair-{uuid.uuid4().hex}", "repair", "", socket.gethostname(), os.getpid())
    paths = [each.directory for each in shards_of(run)]
    if len(paths) == 1:
        if dataset_of(run) is not None:
            return {"": RepairReport()}
        return {"": repair(run, identity, beating, wait=time.sleep)}
    done = {"": repair_marker(run)}
    named = run_marker(run).run
    for shard, path in enumerate(paths):
        if dataset_of(PosixFiles(path)) is not None:
            continue
        report = repair(PosixFiles(path), identity, beating, wait=time.sleep, shard=shard, shards=len(paths), run=named)
        done[f"{os.path.basename(path)}/"] = report
    return done


@contextmanager
def beating(ownership: Ownership) -> Iterator[None]:
    """Move the beat from a thread of its own: a long read must not look like an owner that died."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_S):
            try:
                ownership.beat()
            except OSError as error:
                logger.warning("the beat of this repair could not be written (%s); it is tried again", error)

    thread = threading.Thread(target=beat, name="capture-repair-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
