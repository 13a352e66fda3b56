"""Durable lines: what is reported is on disk, and a kill at any byte loses nothing else."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gym_capture.collect.jsonl_file import DurableLines
from gym_capture.errors import OutputError


def lines_of(path: Path) -> list[bytes]:
    seen: list[bytes] = []
    file = DurableLines(path, seen.append)
    asyncio.run(file.close())
    return seen


async def test_appended_lines_are_there_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "out.jsonl"
    file = DurableLines(path, lambda line: None)
    await file.append(b'{"a": 1}')
    await file.append(b'{"a": 2}')
    await file.close()
    assert path.read_bytes() == b'{"a": 1}\n{"a": 2}\n'


async def test_a_line_is_reported_only_after_its_sync(tmp_path: Path) -> None:
    entered, may_sync = threading.Event(), threading.Event()
    synced: list[bytes] = []

    def sync(descriptor: int) -> None:
        entered.set()
        assert may_sync.wait(30)
        synced.append((tmp_path / "out.jsonl").read_bytes())

    file = DurableLines(tmp_path / "out.jsonl", lambda line: None, sync)
    appended = asyncio.create_task(file.append(b"{}"))
    await asyncio.to_thread(entered.wait, 30)
    assert not appended.done()
    may_sync.set()
    await appended
    assert synced == [b"{}\n"]
    await file.close()


async def test_lines_that_arrive_during_a_sync_share_the_next(tmp_path: Path) -> None:
    first_entered, may_go_on = threading.Event(), threading.Event()

    def sync(descriptor: int) -> None:
        first_entered.set()
        assert may_go_on.wait(30)

    file = DurableLines(tmp_path / "out.jsonl", lambda line: None, sync)
    first = asyncio.create_task(file.append(b"1"))
    await asyncio.to_thread(first_entered.wait, 30)
    rest = [asyncio.create_task(file.append(b"%d" % number)) for number in range(2, 50)]
    await asyncio.sleep(0)
    may_go_on.set()
    await asyncio.gather(first, *rest)
    assert file.syncs == 2
    await file.close()


async def test_a_cancelled_callers_line_still_lands(tmp_path: Path) -> None:
    may_sync = threading.Event()

    def sync(descriptor: int) -> None:
        assert may_sync.wait(30)

    file = DurableLines(tmp_path / "out.jsonl", lambda line: None, sync)
    appended = asyncio.create_task(file.append(b"{}"))
    await asyncio.sleep(0)
    appended.cancel()
    may_sync.set()
    await file.close()
    assert (tmp_path / "out.jsonl").read_bytes() == b"{}\n"


WHOLE = b'{"_ng_task_index": 0}\n{"_ng_task_index": 1}\n'


@pytest.mark.parametrize("cut", range(len(WHOLE) + 1))
def test_a_file_torn_at_any_byte_opens_with_its_whole_lines(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(WHOLE[:cut])
    # A line is whole when only its newline is missing: then it is ended, not lost.
    expected = sum(cut >= end for end in (21, 43))
    assert len(lines_of(path)) == expected
    assert path.read_bytes() == WHOLE[: (0, 22, 44)[expected]]


def test_a_tail_of_zeros_after_a_power_cut_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"{}\n" + bytes(100))
    assert lines_of(path) == [b"{}"]
    assert path.read_bytes() == b"{}\n"


def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"my notes")
    with pytest.raises(OutputError, match="which no collector wrote"):
        lines_of(path)
    assert path.read_bytes() == b"my notes"


def test_a_line_that_does_not_belong_is_named_and_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"{}\nbad\n{")

    def read(line: bytes) -> None:
        if line == b"bad":
            raise ValueError("not a JSON object")

    with pytest.raises(OutputError, match="line 2: not a JSON object") as caught:
        DurableLines(path, read)
    assert caught.value.line == 2
    assert path.read_bytes() == b"{}\nbad\n{"


async def test_two_runs_cannot_write_one_output(tmp_path: Path) -> None:
    first = DurableLines(tmp_path / "out.jsonl", lambda line: None)
    with pytest.raises(OutputError, match="another run is writing"):
        DurableLines(tmp_path / "out.jsonl", lambda line: None)
    await first.close()
    await DurableLines(tmp_path / "out.jsonl", lambda line: None).close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=r"cannot open .*file/out\.jsonl"):
        DurableLines(tmp_path / "file" / "out.jsonl", lambda line: None)


def failing(times: list[OSError | None]) -> Callable[[int], None]:
    def sync(descriptor: int) -> None:
        error = times.pop(0)
        if error is not None:
            raise error

    return sync


async def test_a_failed_sync_is_told_and_leaves_only_what_was_synced(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    file = DurableLines(path, lambda line: None, failing([None, full]))
    await file.append(b'{"kept": 1}')
    with pytest.raises(OutputError, match="No space left"):
        await file.append(b'{"kept": 0}')
    with pytest.raises(OutputError, match="No space left"):
        await file.append(b'{"kept": 0}')
    await file.close()
    assert path.read_bytes() == b'{"kept": 1}\n'
