"""Capture directories that this process reads: each opened once, and refreshed instead of opened again."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gym_capture.storage.store import CaptureStore

_stores: dict[str, CaptureStore] = {}
_locks: weakref.WeakKeyDictionary[CaptureStore, threading.RLock] = weakref.WeakKeyDictionary()
_registry = threading.Lock()


def open_store(directory: str | Path) -> CaptureStore:
    """The process's one store of a directory, as it is now.

    Raises:
        CaptureDirectoryError: the path is relative, absent, or no directory.
        FormatError: the log is of another version.
        OSError: it cannot be read.
    """
    real = os.path.realpath(directory) if os.path.isabs(directory) else str(directory)
    while True:
        with _registry:
            store = _stores.get(real)
            if store is None:
                store = _stores[real] = CaptureStore(real)
                return store
        with reading(store):
            if _stores.get(real) is not store:
                continue  # a refresh failed while this thread waited for its turn
            try:
                store.refresh()
            except BaseException:
                # Half refreshed, it would answer from a state that never was.
                with _registry:
                    _stores.pop(real, None)
                raise
        return store


@contextmanager
def reading(store: CaptureStore) -> Iterator[CaptureStore]:
    """Use a store alone: it is shared by the threads of this process and does not lock by itself."""
    with _registry:
        lock = _locks.setdefault(store, threading.RLock())
    with lock:
        yield store


def _after_fork() -> None:
    # A lock that another thread held at the fork would never be released in the child.
    global _registry
    _registry = threading.Lock()
    _locks.clear()
    _stores.clear()


os.register_at_fork(after_in_child=_after_fork)
