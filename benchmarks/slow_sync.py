"""A disk whose sync takes longer: the same delay, in process, for the owner and for the file store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def slowed(sync: Callable[[int], None], seconds: float) -> Callable[[int], None]:
    """`sync`, which takes `seconds` longer. The thread sleeps, as it does in a sync: others go on."""

    def slow(descriptor: int) -> None:
        time.sleep(seconds)
        sync(descriptor)

    return slow if seconds else sync


def slow_this_process(seconds: float) -> None:
    """Make every sync of this process slower, of files and of directories."""
    setattr(os, "fsync", slowed(os.fsync, seconds))  # noqa: B010 - what the owner calls is the module's attribute
    setattr(os, "fdatasync", slowed(os.fdatasync, seconds))  # noqa: B010 - the same
