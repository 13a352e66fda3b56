"""How the kernel ranks the owner's threads beside the workers that wait for them.

Ray starts its workers, and so the owner, at niceness 15 (`RAY_worker_niceness`), where ordinary processes are at 0. An
owner needs a small part of a core, but every call of the node's workers waits until it gets that part.
"""

from __future__ import annotations

import os

ORDINARY = 0
"""What a process has that nobody made nicer."""


def rank_as_ordinary() -> bool:
    """Put the calling thread, and those that it starts from now on, at the niceness of ordinary processes.

    Returns:
        False where it stays as it was: it takes a privilege (`CAP_SYS_NICE`, which root has in a container, or
        `RLIMIT_NICE`).
    """
    own = 0  # Linux: the calling thread; niceness is each thread's own there, and inherited
    try:
        if os.getpriority(os.PRIO_PROCESS, own) > ORDINARY:
            os.setpriority(os.PRIO_PROCESS, own, ORDINARY)
    except OSError:
        return False
    return True
