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

from gym_capture.storage.owner_file import BEAT_S, OwnerIdentity
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.repair import RepairReport, repair

logger = logging.getLogger("gym_capture.directory")


def repair_at_rest(directory: str | Path) -> RepairReport:
    """Mend what is damaged in a directory at rest. Blocks, for some seconds more when its last owner died.

    Raises:
        As `storage.repair.repair`.
    """
    identity = OwnerIdentity(f"repair-{uuid.uuid4().hex}", "repair", "", socket.gethostname(), os.getpid())
    return repair(PosixFiles(directory), identity, _beating, wait=time.sleep)


@contextmanager
def _beating(ownership: Ownership) -> Iterator[None]:
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
