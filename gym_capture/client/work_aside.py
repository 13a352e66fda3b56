"""Work on the payloads of large calls, aside from the loops that serve: a few threads for the whole process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from weakref import WeakKeyDictionary

from gym_capture.client.blocking_mode import is_blocking

_THREADS = 2


class _Aside:
    """The threads, started by the first work, and what is not done yet of each host's."""

    def __init__(self) -> None:
        self.threads: ThreadPoolExecutor | None = None
        self.undone: WeakKeyDictionary[object, set[Future[None]]] = WeakKeyDictionary()

    def submit(self, work: Callable[[], None]) -> Future[None]:
        if self.threads is None:
            self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gym_capture-aside")
        return self.threads.submit(work)


_aside = _Aside()


def run_aside(host: object, work: Callable[[], None]) -> Future[None]:
    """Run work aside, in no order; at once where the interpreter ends and starts no threads any more.

    Args:
        host: whose closing waits for it.
        work: it must not raise.
    """
    try:
        future = _aside.submit(work)
    except RuntimeError:
        future = Future()
        work()
        future.set_result(None)
        return future
    undone = _aside.undone.setdefault(host, set())
    undone.add(future)
    future.add_done_callback(undone.discard)
    return future


async def work_done(host: object, timeout_s: float) -> None:
    """Wait until none of a host's work is left, at most `timeout_s`."""
    undone = list(_aside.undone.get(host, ()))
    if not undone:
        return
    if is_blocking():
        wait(undone, timeout_s)
    else:
        await asyncio.wait([asyncio.wrap_future(future) for future in undone], timeout=timeout_s)


def _after_fork() -> None:
    global _aside
    _aside = _Aside()  # the threads are the parent's, and so is their work


os.register_at_fork(after_in_child=_after_fork)
