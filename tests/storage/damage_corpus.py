"""Logs with everything in them, and every way in which their bytes may be damaged."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

from gym_capture.model.codec import SEGMENT_HEAD_BYTES, FrameRef
from gym_capture.model.ledger import Ledger
from gym_capture.model.rows import CommitRow, LossRow, MarkRow, Row
from gym_capture.storage import names
from gym_capture.storage.log_reader import Frame
from gym_capture.storage.log_scan import LogScan, replay_log, scan_log
from gym_capture.storage.names import SegmentName
from gym_capture.storage.repair import RepairReport, repair
from gym_capture.storage.segments import owner_frame
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import FaultyDisk
from gym_capture.testing.manual_clock import ManualClock
from tests.storage.owners import OTHER_CLIENT, Batch, Owner, identity

ROLLOUTS = ("a", "b", "c", "d")
EXHAUSTIVE = bool(os.environ.get("GYM_CAPTURE_EXHAUSTIVE"))
"""Every case, not a sample of them: `make damage`."""


def tiny(call: str) -> dict[str, str]:
    return {"model_call_id": call, "dialect": "chat", "request": "q" + call, "response": "r" * 70}


def owner_rows(owner: Owner, *rows: Row) -> None:
    """Rows of the owner's own, as the service writes losses and merges."""
    sequence = max(owner.ledger.last_sequence, owner.writer.last_sequence) + 1
    owner.ledger.apply_owner_rows(rows, FrameRef(sequence, owner.ownership.epoch))
    owner.writer.append([owner_frame(rows, sequence, owner.ownership.epoch)])
    owner.writer.sync()
    owner.ledger.durable(sequence)


def merge(owner: Owner, rollout: str) -> None:
    owner_rows(owner, owner.ledger.merge_row(rollout, 0))


def written(*, stopped: bool = True, checkpoints: bool = False) -> FaultyDisk:
    """Three epochs: one that died, one of several segments, one of several segments that stopped (or died).

    `a` is in all of them, `b` is cleared in the second, `c` loses a claim and is marked, `d` is in the last one only.
    With `checkpoints`, two of each epoch; the log is the same.
    """

    def checkpoint(owner: Owner) -> None:
        if checkpoints:
            owner.checkpoint()
            owner.bring_back(*owner.ledger.archived)

    disk = FaultyDisk()
    first = Owner(disk.view())
    first.send(Batch().commit("a", tiny("a0")).claim("b", 1), 1)
    checkpoint(first)
    first.send(Batch().commit("b", tiny("old"), 1), 2)
    checkpoint(first)
    first.send(Batch().claim("c", 1), 1, OTHER_CLIENT)
    second = Owner(disk.view(), segment_bytes=900)
    second.send(Batch().clear("b", "clear-b").commit("a", tiny("a1")), 3)
    second.send(Batch().commit("b", tiny("b0")).commit("c", tiny("c0")), 4)
    owner_rows(second, LossRow("c", 0, OTHER_CLIENT, 1))
    checkpoint(second)
    merge(second, "a")
    second.send(Batch().commit("a", tiny("a2")), 5)
    checkpoint(second)
    second.stop()
    third = Owner(disk.view(), segment_bytes=900)
    checkpoint(third)
    third.send(Batch().claim("d", 2).claim("d", 3).commit("a", tiny("a3")), 6)
    owner_rows(third, MarkRow("c", "dropped", 2, 0))
    third.send(Batch().commit("d", tiny("d0"), 2).release("d", 3).commit("b", tiny("b1")), 7)
    checkpoint(third)
    third.send(Batch().commit("d", tiny("d1")).commit("d", tiny("d2")), 8)
    if stopped:
        third.stop()
    assert len(segments(disk)) >= 6
    return disk


WHOLE = {"a": ["a0", "a1", "a2", "a3"], "b": ["b0", "b1"], "c": ["c0"], "d": ["d0", "d1", "d2"]}


def segments(disk: FaultyDisk) -> list[SegmentName]:
    return names.segments_in(disk.view().names())


def frames_of(disk: FaultyDisk) -> list[Frame]:
    """The frames that count, in replay order."""
    return [item for item in scan_log(disk.view()) if isinstance(item, Frame)]


class Damage(NamedTuple):
    """One way in which a directory is damaged."""

    label: str
    file: str
    apply: Callable[[FaultyDisk], None]


def rewritten(label: str, file: str, change: Callable[[bytes], bytes]) -> Damage:
    def apply(disk: FaultyDisk) -> None:
        disk.put(file, change(disk.content(file)))

    return Damage(f"{label} {file}", file, apply)


def removed(file: str) -> Damage:
    return Damage(f"remove {file}", file, lambda disk: disk.view().remove(file))


def _flipped(at: int, mask: int = 0xFF) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def _zeroed(at: int, length: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes(min(length, len(data) - at)) + data[at + length :]


def _swapped(one: int, other: int, length: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        first, second = data[one : one + length], data[other : other + length]
        changed = bytearray(data)
        changed[one : one + length], changed[other : other + length] = second, first
        return bytes(changed)

    return change


def _doubled(start: int, end: int, at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + data[start:end] + data[at:]


def byte_damages(disk: FaultyDisk, file: str) -> Iterator[Damage]:
    """Cut off at, and flipped at, every byte of a file; nothing left of it; not there."""
    size = len(disk.content(file))
    for at in range(size):
        yield rewritten(f"truncate to {at}", file, lambda data, at=at: data[:at])  # type: ignore[misc]
        yield rewritten(f"flip byte {at}", file, _flipped(at))
    for at in range(0, size, 7):
        yield rewritten(f"flip bit {at}", file, _flipped(at, 1))
    yield rewritten("zero all of", file, lambda data: bytes(len(data)))
    yield rewritten("prepend to", file, lambda data: b"\0" + data)
    yield rewritten("append to", file, lambda data: data + b"\xff")
    yield removed(file)


def block_damages(disk: FaultyDisk, name: SegmentName, block: int) -> Iterator[Damage]:
    """Blocks of a segment zeroed, and two of them exchanged."""
    size = len(disk.content(name.file))
    for at in range(0, size, block // 2):
        yield rewritten(f"zero {block} bytes at {at} of", name.file, _zeroed(at, block))
    for one in range(0, size - block, block):
        for other in range(one + block, size - block + 1, block):
            yield rewritten(f"swap {block} bytes at {one} and {other} of", name.file, _swapped(one, other, block))


def frame_damages(disk: FaultyDisk, name: SegmentName) -> Iterator[Damage]:
    """Each frame of a segment doubled (behind itself, at the start, at the end) and cut out; neighbours exchanged."""
    mine = [frame for frame in frames_of(disk) if (frame.ref.epoch, frame.ref.segment) == name]
    size = len(disk.content(name.file))
    for frame in mine:
        for at in (frame.end, SEGMENT_HEAD_BYTES, size):
            yield rewritten(
                f"double the frame at {frame.offset} at {at} of", name.file, _doubled(frame.offset, frame.end, at)
            )
        yield rewritten(
            f"cut out the frame at {frame.offset} of",
            name.file,
            lambda data, frame=frame: data[: frame.offset] + data[frame.end :],  # type: ignore[misc]
        )
    for first, second in pairwise(mine):
        yield rewritten(
            f"exchange the frames at {first.offset} and {second.offset} of",
            name.file,
            lambda data, f=first, s=second: (  # type: ignore[misc]
                data[: f.offset]
                + data[s.offset : s.end]
                + data[f.end : s.offset]
                + data[f.offset : f.end]
                + data[s.end :]
            ),
        )


def log_damages(disk: FaultyDisk) -> list[Damage]:
    """Everything that is done to segments."""
    found: list[Damage] = []
    for name in segments(disk):
        found += byte_damages(disk, name.file)
        for block in (32, 64, 200):
            found += block_damages(disk, name, block)
        found += frame_damages(disk, name)
    return found


def small_file_damages(disk: FaultyDisk) -> list[Damage]:
    """Everything that is done to the other files."""
    others = [name for name in disk.view().names() if not name.startswith("segment-")]
    assert {each.split("-")[0] for each in others} == {"RUN", "OWNER", "epoch", "beat", "token"}
    return [damage for name in others for damage in byte_damages(disk, name)]


def sampled(cases: list[Damage], count: int) -> list[Damage]:
    """Every case when all are asked for, else so many of them, evenly spread and always the same."""
    if EXHAUSTIVE or count >= len(cases):
        return cases
    # A step without common divisors, so that no kind of case is passed over for its place.
    step = len(cases) / count
    return [cases[int(index * step + index * 7 % step)] for index in range(count)]


class Known(NamedTuple):
    """What a sound log holds of one exchange: where its bytes lie, and what comes back of it."""

    rollout: str
    generation: int
    call_index: int
    head: tuple[SegmentName, int, int]
    parts: list[tuple[int, int]]
    exchange: dict[str, Any]


def known_exchanges(disk: FaultyDisk) -> list[Known]:
    """Every exchange of a current generation in a sound log."""
    store = CaptureStore(disk.view())
    exchanges = {(r, index): each for r in ROLLOUTS for index, each in store.read_indexed(r)[0]}
    found = []
    for frame in frames_of(disk):
        for row in frame.rows:
            if isinstance(row, CommitRow) and row.generation == store.generation(row.rollout):
                place = (SegmentName(frame.ref.epoch, frame.ref.segment), frame.offset, frame.ref.body_offset)
                parts = [
                    (frame.ref.body_offset + part.offset, frame.ref.body_offset + part.offset + part.length)
                    for part in row.parts
                ]
                exchange = exchanges[row.rollout, row.call_index]
                found.append(Known(row.rollout, row.generation, row.call_index, place, parts, exchange))
    return found


def is_intact(known: Known, before: FaultyDisk, after: FaultyDisk) -> bool:
    """Whether every byte of an exchange stands where it stood."""
    segment, start, end = known.head
    if segment.file not in after.view().names():
        return False
    old, new = before.content(segment.file), after.content(segment.file)
    return all(old[i:j] == new[i:j] for i, j in [(start, end), *known.parts])


def check_reader(damage: Damage, before: FaultyDisk, after: FaultyDisk, known: list[Known]) -> None:
    """Whether a reader of a damaged directory gives what is intact, and tells what is lost."""
    store = CaptureStore(after.view())
    report = store.verify()
    for rollout in ROLLOUTS:
        exchanges, damaged = store.read_indexed(rollout)
        found = dict(exchanges)
        expected = {each.call_index: each.exchange for each in known if each.rollout == rollout}
        incomplete = set(store.evidence(rollout).incomplete or ())
        marked = "damaged" in incomplete
        for each in known:
            if each.rollout == rollout and is_intact(each, before, after):
                assert found.get(each.call_index) == each.exchange, f"{damage.label}: an intact exchange is hidden"
        if store.generation(rollout) == next(each.generation for each in known if each.rollout == rollout):
            assert found.items() <= expected.items(), f"{damage.label}: something is there that was not"
            lost = len(expected) - len(found)
            # A lost end of indexes is not known as a number; the mark says that something may be gone.
            told = damaged == lost or (marked and damaged < lost)
            assert told, f"{damage.label}: {rollout} {damaged} of {lost}"
        else:
            assert marked or damaged, f"{damage.label}: the loss of a clear is not told"
        if damaged or marked:
            # Bytes that moved are not where a checkpoint says; the log finds them again.
            assert not report.sound or report.checkpoints, f"{damage.label}: verify says sound"
    if not report.sound:
        places = [*report.log.damages, *report.log.headers, *report.broken, *report.files]
        assert places, f"{damage.label}: unsound, and nowhere"


def mend(disk: FaultyDisk) -> RepairReport:
    """A repair of the directory at rest."""
    clock = ManualClock()
    return repair(
        disk.view(),
        identity("repair"),
        lambda _: nullcontext(),
        clock=clock,
        wait=clock.advance,
        new_token=lambda: "secret",
    )


def said(ledger: Ledger) -> dict[str, object]:
    """What a fold of the log says of each rollout, in comparable values."""
    return {rollout: said_of(ledger, rollout) for rollout in [*ROLLOUTS, "nowhere"]}


def said_of(ledger: Ledger, rollout: str) -> object:
    view = ledger.view(rollout)
    entries = [(entry.call_index, entry.model_call_id, entry.digest) for entry in view.entries]
    return entries, view.holes, view.generation, view.outstanding, set(view.reasons or ())


def fold(disk: FaultyDisk) -> tuple[Ledger, LogScan]:
    scan = LogScan(disk.view())
    ledger = Ledger()
    replay_log(scan, ledger)
    return ledger, scan
