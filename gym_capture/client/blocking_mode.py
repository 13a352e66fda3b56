"""Running the client's coroutines for a caller that blocks: the same code, without a loop.

Everything that the client awaits goes through `Host.perform` and `Host.foreign`, which in blocking mode wait on a lock
instead of a future, or through a reader of the directory, which reads in the calling thread then. So a coroutine runs
through without ever being suspended.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_mode = threading.local()


def is_blocking() -> bool:
    """Whether this thread runs a coroutine in blocking mode."""
    return getattr(_mode, "depth", 0) > 0


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the client to its end in this thread, whatever loop runs here or none."""
    _mode.depth = getattr(_mode, "depth", 0) + 1
    try:
        work.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        _mode.depth -= 1
    work.close()
    raise RuntimeError("a client coroutine awaited something that is no operation")
