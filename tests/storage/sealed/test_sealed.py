"""The sealed dataset: exchanges come back byte for byte, one rollout without the others, only what is listed counts."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_capture.errors import DamagedLog, DirectoryHeld, FormatError
from gym_capture.model.captured import CapturedRollout
from gym_capture.model.exchange import Text
from gym_capture.model.rows import PartKind
from gym_capture.storage import fault_points
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.sealed.manifest import MANIFEST, part_files_in, read_manifest
from gym_capture.storage.sealed.reader import SealedReader
from gym_capture.storage.sealed.schema import CALLS
from gym_capture.storage.sealed.writer import SealedWriter
from gym_capture.testing.faulty_files import CrashMode, FaultyDisk, FaultyFiles, Stopped
from tests.storage.captured_rollouts import HOSTILE, call, conversation, exchanges, listed, rollout


def sealed(files: FaultyFiles, *rollouts: CapturedRollout, **limits: int) -> SealedReader:
    """A reader of a folder to which these rollouts were added and committed."""
    writer = SealedWriter(files, **limits)
    for each in rollouts:
        writer.add(each)
    writer.commit()
    return SealedReader(files)


def test_what_is_hard_to_keep_comes_back_byte_for_byte() -> None:
    given = rollout("r", HOSTILE, 3, indexes=9, reasons={"lost": 2, "": 1}, outstanding=1)
    reader = sealed(FaultyDisk().view(), given)
    found = listed(reader.rollout("r"))
    assert found == given
    assert [each.exchange().keys() for each in found.calls] == [each.exchange().keys() for each in given.calls]
    assert next(iter(found.calls)).exchange()["request"]["n"] == 2**200


@settings(max_examples=25, deadline=None)
@given(st.lists(exchanges, max_size=4), st.integers(0, 2**63 - 1), st.sampled_from([1, 300, 10**6]))
def test_any_exchanges_come_back_wherever_groups_and_parts_end(
    given_exchanges: list[dict[str, object]], generation: int, limit: int
) -> None:
    rollouts = [rollout("a", given_exchanges, generation), rollout("b", [], 0), rollout("c", given_exchanges)]
    limits = {"part_bytes": limit, "group_bytes": limit, "large_group_bytes": limit}
    reader = sealed(FaultyDisk().view(), *rollouts, **limits)
    assert [listed(each) for each in reader.rollouts()] == rollouts
    assert [listed(reader.rollout(each.rollout_id, each.generation)) for each in rollouts] == rollouts
    assert reader.rollout_ids() == ["a", "b", "c"]
    assert reader.verify() == []


def test_a_rollout_larger_than_a_part_lies_in_several() -> None:
    given = rollout("long", conversation(12))
    before, behind = rollout("before", conversation(1)), rollout("zz", conversation(1))
    files = FaultyDisk().view()
    reader = sealed(files, before, given, behind, part_bytes=1, group_bytes=1, large_group_bytes=6000)
    assert len(reader.manifest.parts) > 4
    assert listed(reader.rollout("long")) == given
    assert [each.rollout_id for each in reader.rollouts()] == ["before", "long", "zz"]


def test_one_rollout_is_read_without_the_others() -> None:
    rollouts = [rollout(f"r{number:03d}", conversation(5, 4000)) for number in range(40)]
    files = _Counted(FaultyDisk())
    sealed(files, *rollouts, group_bytes=1, part_bytes=1 << 30)
    whole = sum(files.size(name) for name in part_files_in(files.names()))
    reader = SealedReader(files)
    listed(reader.rollout("r001"))  # the footers are read with the first
    files.read_bytes = 0
    assert listed(reader.rollout("r017")) == rollouts[17]
    assert 0 < files.read_bytes < whole / 20


class _Counted(FaultyFiles):
    def __init__(self, disk: FaultyDisk) -> None:
        super().__init__(disk)
        self.read_bytes = 0

    def read_at(self, name: str, offset: int, length: int) -> bytes:
        data = super().read_at(name, offset, length)
        self.read_bytes += len(data)
        return data


def test_history_that_repeats_is_stored_once_even_where_it_is_longer_than_zstd_looks_back() -> None:
    given = CapturedRollout("b", 0, [call(turn, {"request": _noise(turn), "response": {}}) for turn in range(6)], 6)
    reader = sealed(FaultyDisk().view(), given)
    assert reader.manifest.parts[0].calls.size < reader.manifest.parts[0].raw_bytes / 5
    assert listed(reader.rollout("b")) == given


def _noise(turn: int) -> bytes:
    """A body of 3 MB that zstd finds nothing in, longer than it looks back at this level, which grows at its end."""
    return random.Random(5).randbytes(3_000_000) + b" %d" % turn


def test_readers_see_what_the_manifest_lists_and_nothing_else() -> None:
    files = FaultyDisk().view()
    reader = sealed(files, rollout("a", conversation(2)))
    writer = SealedWriter(files)
    writer.add(rollout("b", conversation(1)))
    assert SealedReader(files).rollout_ids() == ["a"]
    writer.commit()
    assert reader.rollout("b") is None
    reader.refresh()
    assert reader.rollout_ids() == ["a", "b"]
    assert [name.rpartition("/")[2] for name in reader.call_files] == [
        "part-00000001.calls.parquet",
        "part-00000002.calls.parquet",
    ]


def test_generations_are_kept_apart_and_the_last_is_given() -> None:
    first, second = rollout("a", conversation(2)), rollout("a", conversation(1), 4)
    reader = sealed(FaultyDisk().view(), first, second)
    assert reader.generations("a") == [0, 4]
    assert listed(reader.rollout("a")) == second
    assert listed(reader.rollout("a", 0)) == first
    assert reader.rollout("a", 1) is None
    assert reader.rollout("b") is None


def test_what_was_sealed_twice_is_there_once_and_later_calls_are_added() -> None:
    whole = rollout("a", conversation(4), reasons={"lost": 1})
    calls = list(whole.calls)
    files = FaultyDisk().view()
    sealed(files, whole._replace(calls=calls[:2], indexes=2, reasons=None))
    reader = sealed(files, whole._replace(calls=calls[1:]))
    assert listed(reader.rollout("a")) == whole
    assert [listed(each) for each in reader.rollouts()] == [whole]


def test_rollouts_come_in_order() -> None:
    writer = SealedWriter(FaultyDisk().view())
    writer.add(rollout("b", []))
    with pytest.raises(ValueError, match="sealed in order"):
        writer.add(rollout("a", []))


POINTS = [
    point for name in fault_points.SEALING_STEPS for point in (fault_points.before(name), fault_points.after(name))
]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("mode", list(CrashMode), ids=lambda mode: mode.value)
def test_killed_at_any_step_each_exchange_is_there_once_and_the_next_writer_removes_what_is_not_listed(
    point: str, mode: CrashMode
) -> None:
    disk = FaultyDisk()
    old, new = rollout("a", conversation(2)), rollout("b", HOSTILE)
    sealed(disk.view(), old)
    files = disk.view()
    files.stop_at(point)
    with pytest.raises(Stopped):
        sealed(files, new)
    disk.crash(mode)
    found = [listed(each) for each in SealedReader(disk.view()).rollouts()]
    committed = [old, new]
    assert found in ([old], committed)
    if point == "after sealed-manifest-directory-sync":
        assert found == committed
    last = rollout("c", conversation(1))
    reader = sealed(disk.view(), last)
    assert [listed(each) for each in reader.rollouts()] == [*found, last]
    listed_names = {file.name for part in reader.manifest.parts for file in part.files}
    assert set(part_files_in(disk.view().names())) == listed_names


def test_every_step_of_sealing_is_announced() -> None:
    disk = FaultyDisk()
    seen: list[str] = []
    files = disk.view()
    for point in POINTS:
        files.run_at(point, lambda point=point: seen.append(point))  # type: ignore[misc]
    sealed(files, rollout("a", HOSTILE))
    assert set(seen) == set(POINTS)


def test_what_was_abandoned_leaves_no_file() -> None:
    files = FaultyDisk().view()
    sealed(files, rollout("a", conversation(1)))
    names = files.names()
    writer = SealedWriter(files, part_bytes=1, group_bytes=1)
    writer.add(rollout("b", conversation(2)))
    writer.add(rollout("c", conversation(2)))
    writer.abandon()
    assert files.names() == names


def test_a_second_writer_is_refused_and_the_first_one_stands() -> None:
    disk = FaultyDisk()
    slow, fast = SealedWriter(disk.view()), SealedWriter(disk.view())
    fast.add(rollout("a", conversation(1)))
    fast.commit()
    with pytest.raises(DirectoryHeld, match="another writer"):
        slow.add(rollout("b", conversation(1)))
    slow.abandon()
    assert SealedReader(disk.view()).rollout_ids() == ["a"]


def test_a_writer_whose_files_another_one_removed_makes_nothing_part_of_the_dataset() -> None:
    disk = FaultyDisk()
    slow = SealedWriter(disk.view())
    slow.add(rollout("b", conversation(1)))
    fast = SealedWriter(disk.view())
    fast.add(rollout("a", conversation(1)))
    with pytest.raises(DirectoryHeld, match="another writer"):
        slow.commit()
    fast.commit()
    assert SealedReader(disk.view()).rollout_ids() == ["a"]


@pytest.mark.parametrize(
    ("which", "column_index"), [("calls", CALLS.get_field_index("request")), ("rollouts", 0)], ids=["calls", "rollouts"]
)
def test_a_flipped_bit_is_seen_and_named(which: str, column_index: int) -> None:
    disk = FaultyDisk()
    sealed(disk.view(), rollout("a", conversation(3)))
    name = f"part-00000001.{which}.parquet"
    column = pq.ParquetFile(io.BytesIO(disk.content(name))).metadata.row_group(0).column(column_index)
    disk.flip_bit(name, 8 * (column.data_page_offset + column.total_compressed_size - 1))
    reader = SealedReader(disk.view())
    assert reader.verify() == [name]
    with pytest.raises(DamagedLog, match=f"{name} in /capture is damaged"):
        listed(reader.rollout("a"))


def test_a_file_that_is_gone_or_short_is_damage_and_the_others_are_read() -> None:
    disk = FaultyDisk()
    sealed(disk.view(), rollout("a", conversation(1)))
    sealed(disk.view(), rollout("b", conversation(1)))
    disk.put("part-00000001.calls.parquet", b"PAR1")
    disk.view().remove("part-00000001.rollouts.parquet")
    reader = SealedReader(disk.view())
    assert reader.verify() == ["part-00000001.calls.parquet", "part-00000001.rollouts.parquet"]
    with pytest.raises(DamagedLog, match=r"part-00000001\.rollouts\.parquet"):
        reader.rollout("a")
    assert listed(reader.rollout("b")) == rollout("b", conversation(1))


def test_a_manifest_of_another_version_or_damaged_is_refused() -> None:
    disk = FaultyDisk()
    sealed(disk.view(), rollout("a", []))
    disk.put(MANIFEST, disk.content(MANIFEST).replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(FormatError, match="format 2"):
        SealedWriter(disk.view())
    disk.put(MANIFEST, b"{")
    with pytest.raises(DamagedLog, match="cannot be read"):
        read_manifest(disk.view())


def test_any_parquet_reader_gets_the_fields_and_the_texts(tmp_path: Path) -> None:
    files = PosixFiles(tmp_path)
    writer = SealedWriter(files)
    writer.add(rollout("a", [*conversation(2), HOSTILE[4]]))
    writer.commit()
    [name] = SealedReader(files).call_files
    rows = pq.read_table(name).to_pylist()
    assert [(row["rollout_id"], row["call_index"], row["tokens_in"], row["tokens_out"]) for row in rows] == [
        ("a", 0, 0, 3),
        ("a", 1, 10, 3),
        ("a", 2, None, None),
    ]
    assert rows[0]["request"].startswith(b'{"model":"m","messages":[{"role":"user","content":"turn 0 ')
    assert rows[2]["status_code"] is None  # more than 64 bits: its record has it
    assert call(2, HOSTILE[4]).fields()["status_code"] == 2**70
    assert rows[2]["record"] == call(2, HOSTILE[4]).record


def test_a_call_says_its_bytes() -> None:
    assert call(0, {"request": b"12345"}).texts[PartKind.REQUEST] == Text(b"12345", 2)


def test_a_writer_whose_files_another_made_anew_alike_lists_nothing() -> None:
    files = FaultyDisk().view()
    first = SealedWriter(files, part_bytes=1, group_bytes=1)
    first.add(rollout("r", conversation(1)))
    sealed(files, rollout("r", conversation(1)), part_bytes=1, group_bytes=1)  # removes what is not listed yet
    with pytest.raises(DirectoryHeld):
        first.commit()
    assert len(read_manifest(files).parts) == 1


def test_a_file_of_another_dataset_in_a_files_place_is_damage() -> None:
    disk, other = FaultyDisk(), FaultyDisk()
    sealed(disk.view(), rollout("r", conversation(2)))
    reader = sealed(other.view(), rollout("r", conversation(3)))
    name = reader.manifest.parts[0].calls.name
    disk.put(name, other.content(name))
    with pytest.raises(DamagedLog, match="bytes that the manifest says"):
        listed(SealedReader(disk.view()).rollout("r"))
