"""Exchanges through the log, out in each format, and in again: what comes back is what was captured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from gym_capture.directory import resting
from gym_capture.directory.sealing import seal_at_rest
from gym_capture.errors import (
    CaptureDirectoryError,
    ConfigError,
    DirectoryHeld,
    GymCaptureError,
    OwnerUnavailable,
)
from gym_capture.model.captured import CapturedCall
from gym_capture.model.shards import shard_of
from gym_capture.reading.health import check_health
from gym_capture.service.capture_service import CaptureService
from gym_capture.service.session import Session
from gym_capture.service.settings import OwnerSettings
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_layout import create_or_adopt_shards
from gym_capture.storage.sealed.writer import SealedWriter
from gym_capture.storage.store import CaptureStore
from gym_capture.transfer import batches
from gym_capture.transfer.export import export
from gym_capture.transfer.importing import Imported, import_captures
from gym_capture.transfer.owner_at_rest import OwnerAtRest
from tests.cases import read_cases
from tests.model.exact import exact
from tests.storage.captured_rollouts import HOSTILE, conversation, exchanges, rollout
from tests.storage.owners import OTHER_CLIENT, Batch, Owner

Json = dict[str, Any]
_numbers = itertools.count()
receive = Session.receive


def captured(folder: Path, rollouts: dict[str, Sequence[Json]], *batches: Batch) -> Path:
    """A directory at rest that holds these exchanges, their ids and dialects made up where they have none."""
    folder.mkdir()
    owner = Owner(PosixFiles(folder))
    batch = Batch()
    for rollout_id, given_exchanges in rollouts.items():
        for number, each in enumerate(given_exchanges):
            batch.commit(rollout_id, {"dialect": "chat", "model_call_id": f"{rollout_id}-{number}", **each})
    for number, each_batch in enumerate((batch, *batches), 1):
        owner.send(each_batch, number)
    owner.stop()
    return folder


def values(folder: Path) -> dict[str, Any]:
    """All exchanges, exactly."""
    store = CaptureStore(folder)
    return {each: exact(store.read(each)) for each in store.rollout_ids()}


def calls(folder: Path) -> dict[str, list[CapturedCall]]:
    """All exchanges, every byte."""
    store = CaptureStore(folder)
    return {each: list(store.captured(each).calls) for each in store.rollout_ids()}


def through(source: Path, format: str, folder: Path) -> Path:
    """The directory into which an export of the source was imported."""
    out, again = folder / "out", folder / "again"
    export(source, out, format)
    import_captures(out, again)
    return again


@settings(max_examples=8, deadline=None)
@given(exchanges, exchanges)
def test_any_exchanges_come_back(tmp_path_factory: pytest.TempPathFactory, one: Json, other: Json) -> None:
    folder = tmp_path_factory.mktemp(f"any-{next(_numbers)}")
    source = captured(folder / "source", {"a": [one, other], "b": [other]})
    (folder / "lines").mkdir()
    (folder / "sealed").mkdir()
    assert values(through(source, "nemo-gym", folder / "lines")) == values(source)
    assert calls(through(source, "parquet", folder / "sealed")) == calls(source)


@pytest.mark.parametrize("format", ["nemo-gym", "parquet"])
def test_what_is_hard_to_keep_and_what_is_missing_come_back(tmp_path: Path, format: str) -> None:
    marks = Batch().claim("hard", 1).release("hard", 1).claim("lost", 2).release("lost", 2, "refused")
    source = captured(tmp_path / "source", {"hard": HOSTILE, "long": conversation(5)}, marks)
    again = through(source, format, tmp_path)
    assert values(again) == values(source)
    store = CaptureStore(again)
    assert [store.is_incomplete(each) for each in ("hard", "long", "lost")] == [True, False, True]
    if format == "parquet":
        assert calls(again) == calls(source)
        assert store.captured("hard").reasons == {"released": 1}


def test_real_rollouts_come_back_byte_for_byte(tmp_path: Path) -> None:
    cases = read_cases("real_rollouts.jsonl")[:12]
    source = captured(tmp_path / "source", {f"r{number:02d}": case["exchanges"] for number, case in enumerate(cases)})
    (tmp_path / "lines").mkdir()
    (tmp_path / "sealed").mkdir()
    lines, sealed = through(source, "nemo-gym", tmp_path / "lines"), through(source, "parquet", tmp_path / "sealed")
    assert values(lines) == values(sealed) == values(source)
    assert calls(sealed) == calls(source)
    first = tmp_path / "lines" / "out"
    export(lines, tmp_path / "anew", "nemo-gym")
    assert {path.name: path.read_bytes() for path in (tmp_path / "anew").iterdir()} == {
        path.name: path.read_bytes() for path in first.iterdir()
    }


def test_a_second_import_writes_nothing(tmp_path: Path) -> None:
    source = captured(tmp_path / "source", {"a": conversation(2)}, Batch().claim("a", 1).release("a", 1))
    target = tmp_path / "target"
    assert import_captures(source, target) == Imported(1, 2, 0, 0)
    assert import_captures(source, target) == Imported(0, 0, 1, 0)
    assert calls(target) == calls(source)
    assert CaptureStore(target).captured("a").reasons == {"released": 1}


@pytest.mark.parametrize("stopped_after", [0, 1, 2, 3, 4])
def test_an_import_that_was_stopped_goes_on_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_after: int
) -> None:
    source = captured(
        tmp_path / "source", {"a": conversation(3), "b": conversation(2)}, Batch().claim("a", 1).release("a", 1)
    )
    target = tmp_path / "target"
    monkeypatch.setattr(batches, "BATCH_BYTES", 1)
    write = OwnerAtRest.batch
    left = [stopped_after]

    async def stopping(self: Any, rows: Any, body: bytes) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return await write(self, rows, body)

    with monkeypatch.context() as patched:
        patched.setattr(OwnerAtRest, "batch", stopping)
        with pytest.raises(KeyboardInterrupt):
            import_captures(source, target)
    assert sum(map(len, calls(target).values())) == stopped_after
    import_captures(source, target)
    assert calls(target) == calls(source)
    assert CaptureStore(target).captured("a").reasons == {"released": 1}


def test_other_evidence_of_a_rollout_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = captured(tmp_path / "source", {"a": conversation(2), "b": conversation(3)})
    target = captured(tmp_path / "target", {"b": conversation(4), "c": conversation(1)})
    before = calls(target)
    with pytest.raises(CaptureDirectoryError, match=r"other evidence of b\. No capture was written"):
        import_captures(source, target)
    assert calls(target) == before
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "a.capture.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(CaptureDirectoryError, match="other evidence of a"):
        import_captures(source, beside)


def watching_beats(monkeypatch: pytest.MonkeyPatch, wait: Callable[[float], None]) -> None:
    """Let an owner that wants a directory watch another's beat in no time."""
    made = CaptureService.__init__

    def watched(self: Any, *args: Any, **fields: Any) -> None:
        made(self, *args, **fields, wait=wait)

    monkeypatch.setattr(CaptureService, "__init__", watched)


def test_an_import_that_was_killed_goes_on_whatever_of_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = captured(tmp_path / "source", {"a": conversation(3)}, Batch().claim("a", 1).release("a", 1))
    target = tmp_path / "target"
    monkeypatch.setattr(batches, "BATCH_BYTES", 1)
    write = OwnerAtRest.batch
    kept: list[dict[str, bytes]] = []

    async def watched(self: Any, rows: Any, body: bytes) -> Any:
        answer = await write(self, rows, body)
        kept.append({path.name: path.read_bytes() for path in target.iterdir()})
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(OwnerAtRest, "batch", watched)
        import_captures(source, target)
    watching_beats(monkeypatch, lambda _seconds: None)
    assert len(kept) == 3
    for number, files in enumerate(kept):
        killed = tmp_path / f"killed-{number}"
        killed.mkdir()
        for name, data in files.items():
            (killed / name).write_bytes(data)
        # The end of a write that was under way when it was killed.
        [segment] = killed.glob("segment-*.log")
        segment.write_bytes(segment.read_bytes() + b"\x00torn")
        import_captures(source, killed)
        assert calls(killed) == calls(source)
        assert CaptureStore(killed).captured("a").reasons == {"released": 1}


def test_a_marker_alone_is_imported_once(tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.mkdir()
    (source / "r.capture.incomplete").touch()
    assert import_captures(source, tmp_path / "target") == Imported(1, 0, 0, 0)
    assert import_captures(source, tmp_path / "target") == Imported(0, 0, 1, 0)
    assert CaptureStore(tmp_path / "target").is_incomplete("r")


def test_a_rollout_that_was_begun_and_captured_nothing_is_so_wherever_it_is_taken(tmp_path: Path) -> None:
    source = captured(tmp_path / "source", {"a": conversation(1)}, Batch().clear("b", "retry"))
    assert import_captures(source, tmp_path / "direct") == Imported(2, 1, 0, 0)
    seal_at_rest(source)
    (tmp_path / "lines").mkdir()
    (tmp_path / "sealed").mkdir()
    taken = [through(source, "nemo-gym", tmp_path / "lines"), through(source, "parquet", tmp_path / "sealed")]
    for each in (source, tmp_path / "direct", *taken):
        assert check_health(CaptureStore(each)).counts == {"observed": 1, "open": 0, "incomplete": 0, "unobserved": 1}
    assert import_captures(source, tmp_path / "direct") == Imported(0, 0, 2, 0)


def test_what_a_rollout_captured_after_it_was_imported_as_begun_is_imported_then(tmp_path: Path) -> None:
    source = captured(tmp_path / "source", {}, Batch().clear("a", "first").clear("b", "first"))
    target = tmp_path / "target"
    assert import_captures(source, target) == Imported(2, 0, 0, 0)
    owner = Owner(PosixFiles(source))
    batch = Batch().claim("b", 1).release("b", 1)
    for number, each in enumerate(conversation(2)):
        batch.commit("a", {"dialect": "chat", "model_call_id": f"a-{number}", **each})
    owner.send(batch, 1, OTHER_CLIENT)
    owner.stop()
    assert import_captures(source, target) == Imported(2, 2, 0, 0)
    assert calls(target)["a"] == calls(source)["a"]
    assert CaptureStore(target).captured("b").reasons == {"released": 1}
    assert import_captures(source, target) == Imported(0, 0, 2, 0)


def test_a_rollout_that_was_begun_only_contradicts_nothing(tmp_path: Path) -> None:
    begun = captured(tmp_path / "begun", {"b": conversation(1)}, Batch().clear("a", "first"))
    whole = captured(tmp_path / "whole", {"a": conversation(2)})
    target = tmp_path / "target"
    for source in (begun, whole, begun):
        import_captures(source, target)
    assert {rollout: len(each) for rollout, each in calls(target).items()} == {"a": 2, "b": 1}
    other = captured(tmp_path / "other", {}, Batch().clear("a", "attempt"))
    assert import_captures(begun, other) == Imported(1, 1, 1, 0)


def test_a_rollout_that_an_owner_began_is_other_evidence(tmp_path: Path) -> None:
    source = captured(tmp_path / "source", {"a": conversation(2)})
    target = captured(tmp_path / "target", {}, Batch().clear("a", "attempt"))
    with pytest.raises(CaptureDirectoryError, match="other evidence of a"):
        import_captures(source, target)


@pytest.mark.parametrize("there", [1, 2])
def test_calls_that_are_the_same_and_marks_that_are_not_are_other_evidence(tmp_path: Path, there: int) -> None:
    source = captured(tmp_path / "source", {"a": conversation(2)})
    target = captured(tmp_path / "target", {"a": conversation(there)}, Batch().claim("a", 1).release("a", 1))
    with pytest.raises(CaptureDirectoryError, match="other evidence of a"):
        import_captures(source, target)
    assert len(calls(target)["a"]) == there


def test_a_claim_that_was_open_is_evidence_that_is_missing(tmp_path: Path) -> None:
    source = captured(tmp_path / "source", {"a": conversation(1)}, Batch().claim("a", 1))
    import_captures(source, tmp_path / "target")
    found = CaptureStore(tmp_path / "target").captured("a")
    assert (found.reasons, found.outstanding) == ({"unsettled": 1}, 0)
    export(source, tmp_path / "out", "nemo-gym")
    assert (tmp_path / "out" / "a.capture.incomplete").read_bytes() == b""


def test_an_exchange_that_an_owner_does_not_take_ends_the_import_with_its_rollouts_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = captured(tmp_path / "source", {"a": conversation(1), "b": conversation(1, 40_000)})
    monkeypatch.setattr(resting, "OwnerSettings", partial(OwnerSettings, max_exchange_bytes=4000))
    with pytest.raises(GymCaptureError, match=r"rollout b was refused \(too_large\)"):
        import_captures(source, tmp_path / "target")
    assert calls(tmp_path / "target")["a"] == calls(source)["a"]


def test_an_owner_that_loses_its_directory_ends_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = captured(tmp_path / "source", {"a": conversation(1)})
    monkeypatch.setattr(Session, "receive", lambda self, *_: self.end() if self.client else receive(self, *_))
    with pytest.raises(OwnerUnavailable):
        import_captures(source, tmp_path / "target")


def test_a_live_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = captured(tmp_path / "source", {"a": conversation(1)})
    target = tmp_path / "target"
    target.mkdir()
    owner = Owner(PosixFiles(target))

    def beating(_seconds: float) -> None:
        owner.ownership.beat()

    watching_beats(monkeypatch, beating)
    with pytest.raises(DirectoryHeld):
        import_captures(source, target)
    assert CaptureStore(target).rollout_ids() == []


def test_ids_that_a_line_lacks_or_repeats_are_made_up_and_nothing_is_lost(tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.mkdir()
    lines = ['{"request": {"n": 1}}', '{"model_call_id": "x", "request": 1}', '{"model_call_id": "x", "request": 2}']
    (source / "r.capture.jsonl").write_text("\n".join([*lines, lines[1], "torn"]), encoding="utf-8")
    assert import_captures(source, tmp_path / "target") == Imported(1, 3, 0, 0)
    assert import_captures(source, tmp_path / "target") == Imported(0, 0, 1, 0)
    store = CaptureStore(tmp_path / "target")
    assert [each["request"] for each in store.read("r")] == [{"n": 1}, 1, 2]
    assert store.captured("r").reasons == {"unreadable": 1}


def test_the_last_generation_that_is_sealed_is_taken(tmp_path: Path) -> None:
    sealed = tmp_path / "sealed"
    sealed.mkdir()
    writer = SealedWriter(PosixFiles(sealed))
    writer.add(rollout("r", conversation(3), 0))
    writer.add(rollout("r", conversation(1), 4))
    writer.commit()
    assert import_captures(sealed, tmp_path / "target") == Imported(1, 1, 0, 1)
    assert export(sealed, tmp_path / "lines", "nemo-gym").notes == {"earlier_generations": 1}
    assert (tmp_path / "lines" / "r.capture.jsonl").read_bytes().count(b"\n") == 1


def test_an_export_counts_and_marks_what_cannot_be_read(tmp_path: Path) -> None:
    source = captured(tmp_path / "source", {"a": conversation(2), "nan": [{"request": {"n": float("nan")}}]})
    [segment] = source.glob("segment-*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"turn 0 ") + 20] ^= 1
    segment.write_bytes(data)
    out = tmp_path / "out"
    exported = export(source, out, "nemo-gym")
    assert exported == (2, 2, {"damaged_calls": 1, "nonstandard_lines": 1})
    files = ["a.capture.incomplete", "a.capture.jsonl", "nan.capture.jsonl"]
    assert sorted(path.name for path in out.iterdir()) == files
    (out / "nan.capture.incomplete").touch()  # of an earlier export, when the rollout was not whole
    assert export(source, out, "nemo-gym") == exported
    assert sorted(path.name for path in out.iterdir()) == files


def test_an_export_goes_nowhere_near_captures(tmp_path: Path) -> None:
    source = captured(tmp_path / "source", {"a": conversation(1)})
    other = captured(tmp_path / "other", {"b": conversation(1)})
    for format_ in ("nemo-gym", "parquet"):
        for target in (source, other):
            with pytest.raises(ConfigError, match="is a capture directory"):
                export(source, target, format_)
    with pytest.raises(ConfigError, match="nemo-gym, openai-chat, parquet"):
        export(source, tmp_path / "out", "csv")
    export(source, tmp_path / "out", "parquet")
    with pytest.raises(ConfigError, match="holds a sealed dataset already"):
        export(source, tmp_path / "out", "parquet")
    with pytest.raises(ConfigError, match="what is to be imported"):
        import_captures(source, source)


def test_each_rollout_is_imported_into_its_own_shard_and_found_there(tmp_path: Path) -> None:
    target = tmp_path / "shards"
    target.mkdir()
    create_or_adopt_shards(str(target), 2)
    rollouts: dict[str, Sequence[Json]] = {f"r-{number}": conversation(2) for number in range(5)}
    source = captured(tmp_path / "source", rollouts)
    assert import_captures(source, target) == (5, 10, 0, 0)
    assert import_captures(source, target) == (0, 0, 5, 0)
    store = CaptureStore(target)
    assert {each: store.read(each) for each in store.rollout_ids()} == {
        each: CaptureStore(source).read(each) for each in rollouts
    }
    for shard in range(2):
        log = b"".join(path.read_bytes() for path in (target / f"shard-00{shard}").glob("segment-*"))
        theirs = {each for each in rollouts if shard_of(each, 2) == shard}
        assert {each for each in rollouts if each.encode() in log} == theirs
    assert export(target, tmp_path / "out", "nemo-gym") == (5, 10, {})


def test_other_evidence_in_one_shard_leaves_all_of_them_as_they_were(tmp_path: Path) -> None:
    target = tmp_path / "shards"
    target.mkdir()
    create_or_adopt_shards(str(target), 2)
    first, second = (next(f"r-{n}" for n in range(9) if shard_of(f"r-{n}", 2) == shard) for shard in range(2))
    import_captures(captured(tmp_path / "there", {second: conversation(1)}), target)
    source = captured(tmp_path / "source", {first: conversation(1), second: conversation(2)[1:]})
    with pytest.raises(CaptureDirectoryError, match=second):
        import_captures(source, target)
    assert CaptureStore(target).rollout_ids() == [second]
