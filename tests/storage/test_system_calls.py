"""The syncs are really made, and in the order that durability rests on; without any of them these tests are red."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gym_capture.storage.posix_files import PosixFiles
from tests.storage.owners import Batch, Owner, exchange
from tests.storage.system_calls import BREAKS, SystemCalls


def write_everything(directory: Path, calls: SystemCalls) -> dict[str, list[str]]:
    """Each kind of durable write once; what it asked of the system."""
    files = PosixFiles(directory)
    seen: dict[str, list[str]] = {}

    def note(what: str) -> None:
        calls.answer()
        seen[what] = calls.log[:-1]
        calls.log.clear()

    files.create("a", b"content", "run")
    note("create")
    files.replace("a", b"other content", "owner")
    note("replace")
    file = files.create_append("s", "segment")
    note("create_append")
    file.append([b"x", b"y"], "append")
    file.sync("sync")
    note("append and sync")
    file.close()
    return seen


def test_what_is_written_is_synced_before_it_is_named_and_its_entry_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = SystemCalls(tmp_path, monkeypatch)
    assert write_everything(tmp_path, calls) == {
        "create": ["open a.tmp", "write a.tmp", "fsync a.tmp", "link a", "fsync ."],
        "replace": ["open a.tmp", "write a.tmp", "fsync a.tmp", "replace a", "fsync ."],
        "create_append": ["open s", "fsync ."],
        "append and sync": ["write s", "fdatasync s"],
    }
    assert calls.breaches == []


def test_a_file_created_in_place_is_synced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    calls = SystemCalls(tmp_path, monkeypatch)
    PosixFiles(tmp_path).create("a", b"content", "run")
    calls.answer()
    assert calls.log[3:] == ["open a", "write a", "fsync a", "fsync .", "answer"]
    assert calls.breaches == []


def live(directory: Path, calls: SystemCalls) -> None:
    """An owner's life from a fresh directory to a clean stop, then a second one's."""
    for actor in ("first", "second"):
        owner = Owner(PosixFiles(directory), actor, segment_bytes=1500)
        calls.answer()
        for number in range(1, 5):
            owner.send(Batch().commit("r", exchange(f"{actor}-{number}")), number, actor.encode().ljust(16))
            calls.answer()
        owner.stop()
        calls.answer()


def test_a_life_of_owners_names_and_promises_nothing_that_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = SystemCalls(tmp_path, monkeypatch)
    live(tmp_path, calls)
    assert calls.breaches == []
    assert calls.log.count("answer") == 12
    assert "open segment-00000001-00000001.log" in calls.log
    sealed = max(index for index, each in enumerate(calls.log) if each.startswith("fdatasync segment-00000001"))
    assert sealed < calls.log.index("replace beat-00000001"), "the note of the stop comes when the log is on disk"


@pytest.mark.parametrize("without", BREAKS)
def test_a_sync_that_is_not_made_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str) -> None:
    said = {
        "fdatasync": "answered while segment-00000001-00000000.log was not synced",
        "fsync of a file": "RUN named before its content was synced",
        "fsync of the directory": "answered while the entry of RUN was not synced",
    }
    calls = SystemCalls(tmp_path, monkeypatch, without)
    live(tmp_path, calls)
    assert said[without] in calls.breaches
