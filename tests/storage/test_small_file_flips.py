"""Every single flipped bit of the small files: none is taken for what their writer wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gym_capture.directory.locate import endpoint_of, owner_of
from gym_capture.errors import CaptureDirectoryError, OwnerUnavailable
from gym_capture.model.client_settings import ClientSettings
from gym_capture.model.redaction_rules import RedactionRules
from gym_capture.storage import names
from gym_capture.storage.closing import ClosingNote, close_log
from gym_capture.storage.file_checks import check_files
from gym_capture.storage.files import Files
from gym_capture.storage.owner_file import Endpoint, read_owner, read_token
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_layout import create_or_adopt_shards, run_marker, shards_of
from gym_capture.storage.run_marker import create_or_adopt_run, read_run
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import FaultyDisk
from gym_capture.testing.manual_clock import ManualClock
from tests.storage.owners import identity

CLIENTS = ClientSettings(patience_s=7.0, redact=RedactionRules(("$..api_key",), ("sk-\\w+",)))


@pytest.fixture
def disk() -> FaultyDisk:
    """A run of one shard whose owner is listening, and whose third epoch closes the log."""
    disk = FaultyDisk()
    create_or_adopt_run(disk.view())
    Ownership.take(disk.view(), identity("first"), ManualClock(), client=CLIENTS).release(0, 0)
    owner = Ownership.take(disk.view(), identity("second"), ManualClock())
    owner.publish(Endpoint("10.0.0.1", 4242))
    owner.release(0, 0)
    close_log(disk.view(), 3, ClosingNote("seal-1", "sealed-00000002"))
    assert check_files(disk.view(), owner.run.bytes) == []
    return disk


def damaged(files: Files) -> list[str]:
    return [each.file for each in check_files(files, None)]


@pytest.mark.parametrize(
    ("name", "read"),
    [
        (names.RUN, read_run),
        (names.OWNER, read_owner),
        (names.token_file(2), lambda files: read_token(files, 2)),
        (names.epoch_file(2), None),
        (names.epoch_file(3), None),
    ],
)
def test_every_bit_is_told_and_nothing_is_read_from_what_is_damaged(
    disk: FaultyDisk, name: str, read: Callable[[Files], object] | None
) -> None:
    bits = len(disk.content(name)) * 8
    assert bits > 300
    files = disk.view()
    for bit in range(bits):
        disk.flip_bit(name, bit)
        assert damaged(files) == [name], bit
        if read is not None:
            with pytest.raises(CaptureDirectoryError, match="cannot be read"):
                read(files)
        disk.flip_bit(name, bit)
    assert damaged(files) == []


def test_every_bit_of_a_runs_marker_leaves_its_shards_to_be_read_and_is_told(tmp_path: Path) -> None:
    create_or_adopt_shards(str(tmp_path), 2)
    marker, files = tmp_path / names.RUN, PosixFiles(tmp_path)
    whole = marker.read_bytes()
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        marker.write_bytes(flipped)
        with pytest.raises(CaptureDirectoryError, match=r"cannot be read.*gym-capture verify --repair"):
            run_marker(files)
        with pytest.raises(CaptureDirectoryError, match="cannot be read"):
            create_or_adopt_shards(str(tmp_path), 1)
        shards = [tmp_path / "shard-000", tmp_path / "shard-001"]
        assert [each.directory for each in shards_of(files)] == list(map(str, shards)), bit
        assert [each.file for each in CaptureStore(tmp_path).verify().files] == [names.RUN], bit


def test_every_bit_of_a_shards_marker_is_told(tmp_path: Path) -> None:
    create_or_adopt_shards(str(tmp_path), 2)
    marker = tmp_path / "shard-001" / names.RUN
    whole = marker.read_bytes()
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        marker.write_bytes(flipped)
        assert [each.file for each in CaptureStore(tmp_path).verify().files] == [names.RUN], bit


def test_who_connects_by_the_directory_goes_by_nothing_that_is_damaged(tmp_path: Path) -> None:
    create_or_adopt_run(PosixFiles(tmp_path))
    owner = Ownership.take(PosixFiles(tmp_path), identity(), ManualClock(), client=CLIENTS)
    owner.publish(Endpoint("10.0.0.1", 4242))
    token = tmp_path / names.token_file(1)
    token.write_bytes(token.read_bytes()[1:])
    with pytest.raises(OwnerUnavailable, match=r"token-00000001 .* does not match its checksum"):
        endpoint_of(tmp_path)
    file = tmp_path / names.OWNER
    file.write_bytes(file.read_bytes().replace(b'"redact"', b'"redacu"'))
    with pytest.raises(CaptureDirectoryError, match="cannot be read"):
        owner_of(tmp_path)
