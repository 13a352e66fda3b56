"""The one store that a process has of a directory, shared by its threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from gym_capture.directory import stores
from gym_capture.directory.stores import open_store
from gym_capture.storage.store import CaptureStore

WAIT_S = 30.0


def test_a_thread_that_waited_for_a_refresh_that_failed_gets_a_store_that_was_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_store(tmp_path)
    assert open_store(tmp_path) is first
    under_way, waiting = threading.Event(), threading.Event()
    refreshed: list[CaptureStore] = []
    real = stores.reading

    def refresh(store: CaptureStore) -> None:
        refreshed.append(store)
        if len(refreshed) == 1:
            under_way.set()
            assert waiting.wait(WAIT_S)
            raise OSError("half read")

    @contextmanager
    def reading(store: CaptureStore) -> Iterator[CaptureStore]:
        if under_way.is_set():
            waiting.set()
        with real(store) as alone:
            yield alone

    monkeypatch.setattr(CaptureStore, "refresh", refresh)
    monkeypatch.setattr(stores, "reading", reading)
    with ThreadPoolExecutor(2) as threads:
        failing = threads.submit(open_store, tmp_path)
        assert under_way.wait(WAIT_S)
        other = threads.submit(open_store, tmp_path)
        with pytest.raises(OSError, match="half read"):
            failing.result(WAIT_S)
        assert other.result(WAIT_S) is not first
    assert refreshed == [first]
