"""Descriptors that stay open read what the directory has, and are given back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gym_capture.storage import held_files
from gym_capture.storage.held_files import HeldFiles


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_pieces_of_many_files_are_read_with_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_files, "_OPEN_FILES", 3)
    for number in range(5):
        (tmp_path / f"f{number}").write_bytes(b"%d23456789" % number)
    before = descriptors()
    with HeldFiles(str(tmp_path)) as files:
        for _ in range(2):
            for number in range(5):
                assert files.read_at(f"f{number}", 0, 3) == b"%d23" % number
                assert descriptors() <= before + 3
        assert files.read_at("f4", 7, 5) == b"89"
        assert files.read_at("f4", 20, 5) == b""
        with pytest.raises(FileNotFoundError):
            files.read_at("absent", 0, 1)
    assert descriptors() == before


def test_what_was_appended_since_is_read(tmp_path: Path) -> None:
    grown = tmp_path / "grown"
    grown.write_bytes(b"one")
    with HeldFiles(str(tmp_path)) as files:
        assert files.read_at("grown", 0, 9) == b"one"
        with grown.open("ab") as file:
            file.write(b"two")
        assert files.read_at("grown", 2, 9) == b"etwo"
