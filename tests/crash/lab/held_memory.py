"""What the memory of a process is made of, as the process itself can tell: Python's objects, and what C code asked for.

Memory of its own that grows in neither is what allocators keep for later.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

FOLDER = "held"
"""Beside the capture directory; a file for each process, named for its pid."""

PERIOD_S = 2.5


class Held(NamedTuple):
    """What a process holds.

    Fields: `blocks`, memory blocks of Python's own allocator that are in use (a number, not bytes); `allocated` and
    `spare`, bytes that the C library's allocator has given out, and that it keeps (`mallinfo2` of the GNU C library,
    all arenas). Larger Python objects are among `allocated`, and so is all that Ray's C++ core holds.
    """

    blocks: int
    allocated: int
    spare: int


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    )  # fmt: skip


def held_here() -> Held:
    """What this process holds now."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    found = mallinfo2()
    return Held(sys.getallocatedblocks(), found.uordblks + found.hblkhd, found.fordblks)


def tell_what_is_held(directory: str) -> None:
    """Write it down now and then, from a thread, for as long as this process lives.

    Args:
        directory: the capture directory.
    """
    folder = Path(directory).parent / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / str(os.getpid())

    def tell() -> None:
        while folder.exists():
            written = path.with_suffix(".new")
            try:
                written.write_text(json.dumps(held_here()))
                written.replace(path)
            except OSError:
                return  # the run's folder is gone, and the run with it
            time.sleep(PERIOD_S)

    threading.Thread(target=tell, name="held-memory", daemon=True).start()


def held_by(directory: Path, pid: int) -> Held | None:
    """What a process last wrote; None when it never did."""
    try:
        return Held(*json.loads((directory.parent / FOLDER / str(pid)).read_text()))
    except (OSError, ValueError):
        return None
