"""The real files: permissions, exclusiveness, short writes, and a whole life of an owner in a directory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from gym_capture.errors import CaptureDirectoryError
from gym_capture.storage import fault_points, names
from gym_capture.storage.posix_files import PosixFiles, make_capture_directory
from gym_capture.storage.run_marker import create_or_adopt_run
from gym_capture.storage.store import CaptureStore
from tests.storage.owners import Batch, Owner, calls, exchange


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def batch(number: int) -> Batch:
    return Batch().commit("r", exchange(f"call-{number}"))


def test_only_the_user_may_read_what_is_captured(tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "42"
    old = os.umask(0)
    try:
        make_capture_directory(directory)
        owner = Owner(PosixFiles(directory))
        owner.send(batch(1), 1)
        owner.ownership.release(0, owner.writer.position)
    finally:
        os.umask(old)
    assert mode(directory) == 0o700
    files = {path.name: mode(path) for path in directory.iterdir()}
    assert set(files.values()) == {0o600}
    assert files.keys() == {
        names.RUN,
        names.OWNER,
        names.epoch_file(1),
        names.beat_file(1),
        names.token_file(1),
        names.SegmentName(1, 0).file,
    }


def test_a_life_in_a_real_directory(tmp_path: Path) -> None:
    points: list[str] = []
    owner = Owner(PosixFiles(tmp_path, points.append), segment_bytes=1200)
    for number in range(1, 6):
        owner.send(batch(number), number)
    owner.checkpoint()
    owner.append(batch(6), 6)
    owner.writer.abandon()
    again = Owner(PosixFiles(tmp_path, points.append), segment_bytes=1200)
    again.send(batch(7), 7)
    again.stop()
    assert calls(again.ledger, "r") == [f"call-{number}" for number in range(1, 8)]
    store = CaptureStore(tmp_path)
    assert store.read("r") == [exchange(f"call-{number}") for number in range(1, 8)]
    assert store.verify().sound
    # The same steps in the same order as the faulty files announce them.
    assert set(points) == set(fault_points.ALL)
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")] == []


def test_many_buffers_and_short_writes_end_up_whole_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers = [bytes([number % 256]) * (number % 7) for number in range(3000)]
    real = os.writev
    asked: list[int] = []

    def short(descriptor: int, given: list[bytes]) -> int:
        asked.append(len(given))
        return real(descriptor, [b"".join(given)[: 1 + len(asked) * 100]])

    monkeypatch.setattr(os, "writev", short)
    file = PosixFiles(tmp_path).create_append("x", "append")
    file.append(buffers, "append")
    file.sync("sync")
    assert file.size == sum(map(len, buffers))
    file.close()
    assert (tmp_path / "x").read_bytes() == b"".join(buffers)
    assert max(asked) <= 1024


def test_a_descriptor_whose_close_failed_is_not_closed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, closed = os.close, []

    def fails(descriptor: int) -> None:
        closed.append(descriptor)
        real(descriptor)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    file = PosixFiles(tmp_path).create_append("x", "append")
    with monkeypatch.context() as patched:
        patched.setattr(os, "close", fails)
        with pytest.raises(OSError, match="quota"):
            file.close()
        file.close()
    assert len(closed) == 1


def test_what_exists_is_not_created_again(tmp_path: Path) -> None:
    files = PosixFiles(tmp_path)
    files.create("a", b"first", "run")
    with pytest.raises(FileExistsError):
        files.create("a", b"second", "run")
    with pytest.raises(FileExistsError):
        files.create_append("a", "segment")
    assert files.read("a") == b"first"
    assert files.names() == ["a"]


def test_without_hard_links_a_file_is_created_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: str, target: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    files = PosixFiles(tmp_path)
    files.create("a", b"content", "run")
    with pytest.raises(FileExistsError):
        files.create("a", b"second", "run")
    assert files.read("a") == b"content"
    assert files.names() == ["a"]


def test_a_link_whose_answer_was_lost_counts_as_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def link_twice(source: str, target: str) -> None:
        real(source, target)
        real(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    files = PosixFiles(tmp_path)
    files.create("a", b"content", "run")
    assert files.read("a") == b"content"


def test_replacing_and_overwriting_leave_only_the_new_content(tmp_path: Path) -> None:
    files = PosixFiles(tmp_path)
    files.replace("a", b"a long first content", "owner")
    files.replace("a", b"second", "owner")
    files.overwrite("b", b"a long first content", "beat")
    files.overwrite("b", b"second", "beat")
    assert (files.read("a"), files.read("b")) == (b"second", b"second")
    assert (files.read_at("a", 1, 3), files.read_at("a", 4, 100), files.read_at("a", 9, 5)) == (b"eco", b"nd", b"")
    assert files.size("a") == 6
    files.remove("a")
    files.remove("a")
    assert files.names() == ["b"]
    with pytest.raises(FileNotFoundError):
        files.read("a")


@pytest.mark.parametrize("point", [fault_points.before("owner-rename"), fault_points.after("owner-rename")])
def test_a_replacement_that_fails_leaves_nothing_beside_the_file(tmp_path: Path, point: str) -> None:
    def fails(at: str) -> None:
        if at == point:
            raise OSError(errno.EIO, "Input/output error")

    PosixFiles(tmp_path).replace("a", b"first", "owner")
    with pytest.raises(OSError, match="Input/output"):
        PosixFiles(tmp_path, fails).replace("a", b"second", "owner")
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("call", ["replace", "link"])
def test_what_failed_is_told_also_where_what_was_written_aside_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def read_only(path: str, target: str = "") -> None:
        raise OSError(errno.EROFS if target else errno.EBUSY, "Read-only file system" if target else "busy")

    monkeypatch.setattr(os, call, read_only)
    monkeypatch.setattr(os, "unlink", read_only)
    files = PosixFiles(tmp_path)
    with pytest.raises(OSError, match="Read-only file system"):
        (files.replace if call == "replace" else files.create)("a", b"content", "owner")


def test_a_directory_that_cannot_be_used_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CaptureDirectoryError, match="give an absolute path"):
        PosixFiles("relative/path")
    with pytest.raises(CaptureDirectoryError, match="give an absolute path"):
        make_capture_directory("relative/path")
    with pytest.raises(CaptureDirectoryError, match=r"does not exist.*mounted"):
        PosixFiles(tmp_path / "absent")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CaptureDirectoryError, match="is not a directory"):
        PosixFiles(tmp_path / "file")
    with pytest.raises(CaptureDirectoryError, match="cannot be made"):
        make_capture_directory(tmp_path / "file" / "below")


def test_a_directory_that_cannot_be_written_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def read_only(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(CaptureDirectoryError, match="write permission"):
        create_or_adopt_run(PosixFiles(tmp_path))
    assert list(tmp_path.iterdir()) == []
