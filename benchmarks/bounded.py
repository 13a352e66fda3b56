"""What an owner holds in memory for each call, what a checkpoint costs its loop, and how long an opening takes.

`python -m benchmarks.bounded` writes directories of many calls as an owner's log does it (large groups, really synced),
without a service around it, and opens each in a process of its own: behind its last checkpoint, and from the whole log.
Times are CPU seconds of the process, so that a busy machine says the same.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gym_capture.model.clock import SystemClock
from gym_capture.model.codec import FrameKind, FrameRef, PendingFrame, checksum, encode_rows
from gym_capture.model.ledger import Applied, Ledger
from gym_capture.model.rows import ClaimRow, ClientRow, CommitRow, Part, PartKind, rollouts_of
from gym_capture.storage.owner_file import OwnerIdentity
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.recovery import recover
from gym_capture.storage.run_marker import create_or_adopt_run
from gym_capture.storage.segments import owner_frame

_BATCH_CALLS = 256
_AT_ONCE = 64
_CLIENT = b"benchmark-client"
_BODY = b"\x5a" * 96
_KINDS = (PartKind.RECORD, PartKind.META, PartKind.REQUEST, PartKind.RESPONSE)
_CRC = checksum(_BODY)


class Owner:
    """An owner without a loop: one batch, and one checkpoint, after the other."""

    def __init__(self, directory: Path, *, checkpoints: bool = True) -> None:
        self.files = PosixFiles(str(directory))
        create_or_adopt_run(self.files)
        self.ownership = Ownership.take(
            self.files,
            OwnerIdentity("benchmark", "capture", "gym_capture", "node", os.getpid()),
            SystemClock(),
            takeover=True,
            wait=time.sleep,
            new_token=lambda: "0" * 64,
        )
        self.ledger = Ledger()
        self.writer, self.report, self.checkpoints = recover(
            self.files, self.ownership, self.ledger, checkpoints=checkpoints
        )
        self.batch = max(self.ledger.clients[_CLIENT].answers, default=0) if _CLIENT in self.ledger.clients else 0

    def write(self, rows: list[ClientRow], merged: list[str]) -> None:
        """One batch, and the merges after it, as one group."""
        self.batch += 1
        ref = FrameRef(self.ledger.last_sequence + 1, self.ownership.epoch)
        applied = self.ledger.apply_batch(_CLIENT, self.batch, self.batch - 1, rows, ref, 0.0, 0.0)
        if not isinstance(applied, Applied):
            raise TypeError("a batch was applied before")
        body = _BODY * (len(_KINDS) * sum(1 for row in rows if type(row) is CommitRow))
        named = rollouts_of(applied.rows)
        encoded = encode_rows(applied.rows)
        frames = [PendingFrame(FrameKind.BATCH, encoded, len(applied.rows), (body,), ref, rollouts=named)]
        for rollout in merged:
            row = self.ledger.merge_row(rollout, 0)
            frame = owner_frame([row], self.ledger.last_sequence + 1, self.ownership.epoch)
            self.ledger.apply_owner_rows([row], frame.ref)
            frames.append(frame)
        self.writer.append(frames)
        self.writer.sync()
        self.ledger.durable(self.ledger.last_sequence)


def batches(calls: int, of_a_rollout: int) -> Iterator[tuple[list[ClientRow], list[str]]]:
    """Claims and commits of rollouts that run at the same time, and which of them are merged then."""
    rows: list[ClientRow] = []
    merged: list[str] = []
    claim, first = 0, 0
    while claim < calls:
        running = [f"{number}-0" for number in range(first, first + _AT_ONCE)]
        first += _AT_ONCE
        for turn in range(of_a_rollout):
            for rollout in running:
                claim += 1
                at = len(_KINDS) * len(_BODY) * (len(rows) // 2)
                parts = [
                    Part(kind, 0, at + index * len(_BODY), len(_BODY), len(_BODY), _CRC)
                    for index, kind in enumerate(_KINDS)
                ]
                call = f"{claim:032x}"
                rows.append(ClaimRow(rollout, claim, call))
                rows.append(CommitRow(rollout, claim, call, claim.to_bytes(16, "big"), parts))
                if turn == of_a_rollout - 1:
                    merged.append(rollout)
            if len(rows) >= 2 * _BATCH_CALLS:
                yield rows, merged
                rows, merged = [], []
    if rows:
        yield rows, merged


def fill(directory: Path, calls: int, of_a_rollout: int, checkpoint_rows: int) -> dict[str, Any]:
    """Write a directory of so many calls; 0 rows: without checkpoints."""
    owner = Owner(directory)
    gc.collect()
    before = resident_bytes()
    taken: list[float] = []
    dropped: list[float] = []
    written: list[float] = []
    began = time.process_time()
    for rows, merged in batches(calls, of_a_rollout):
        owner.write(rows, merged)
        if checkpoint_rows and owner.ledger.unsaved_rows >= checkpoint_rows:
            start = time.process_time()
            snapshot = owner.ledger.snapshot()
            taken.append(time.process_time() - start)
            start = time.process_time()
            pages = owner.checkpoints.write(snapshot, owner.writer.last)
            written.append(time.process_time() - start)
            start = time.process_time()
            owner.ledger.saved(snapshot, pages)
            dropped.append(time.process_time() - start)
            del snapshot, pages
    seconds = time.process_time() - began
    del rows, merged
    gc.collect()
    count = owner.ledger.counts["commits"]
    sizes = dict.fromkeys(("index", "segment"), 0)
    for name in owner.files.names():
        for kind in sizes:
            if name.startswith(kind):
                sizes[kind] += owner.files.size(name)
    return {
        "calls": count,
        "bytes_per_call": (resident_bytes() - before) / count,
        "rollouts_in_memory": len(owner.ledger.rollouts),
        "cpu_us_per_call": seconds / count * 1e6,
        "checkpoints": len(taken),
        "snapshot_ms": summary(taken),
        "evict_ms": summary(dropped),
        "write_cpu_ms": summary(written),
        "index_bytes_per_call": sizes["index"] / count,
        "segment_bytes_per_call": sizes["segment"] / count,
    }


def open_directory(directory: Path, *, checkpoints: bool) -> dict[str, Any]:
    """Open a directory up to the first accepted write."""
    gc.collect()
    before, began, wall = resident_bytes(), time.process_time(), time.perf_counter()
    owner = Owner(directory, checkpoints=checkpoints)
    owner.write([ClaimRow("first-write", 1 << 40)], [])
    return {
        "cpu_s": time.process_time() - began,
        "wall_s": time.perf_counter() - wall,
        "mb": (resident_bytes() - before) / 1e6,
        "found": owner.report.summary(),
    }


def summary(seconds: list[float]) -> dict[str, float]:
    """Median and worst, in milliseconds."""
    ordered = sorted(seconds) or [0.0]
    return {"median": 1000 * ordered[len(ordered) // 2], "worst": 1000 * ordered[-1]}


def resident_bytes() -> int:
    """What the process has in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def in_a_process(*arguments: str) -> dict[str, Any]:
    """One step in a process of its own, so that no other's memory is in its figures."""
    command = [sys.executable, "-m", "benchmarks.bounded", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Fill and open directories; figures as JSON, a line each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bounded", description=__doc__)
    parser.add_argument("step", nargs="?", choices=("all", "fill", "open", "open-whole"), default="all")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--of-a-rollout", type=int, nargs="*", default=[100, 1])
    parser.add_argument("--checkpoint-rows", type=int, default=8192)
    options = parser.parse_args()
    if options.step == "fill":
        print(json.dumps(fill(options.directory, options.calls, options.of_a_rollout[0], options.checkpoint_rows)))
    elif options.step != "all":
        print(json.dumps(open_directory(options.directory, checkpoints=options.step == "open")))
    else:
        for calls_each in options.of_a_rollout:
            with tempfile.TemporaryDirectory(prefix="gym-capture-bounded-", dir=options.directory) as made:
                workload = ["--directory", made, "--calls", str(options.calls), "--of-a-rollout", str(calls_each)]
                filled = in_a_process("fill", *workload, "--checkpoint-rows", str(options.checkpoint_rows))
                print(json.dumps({"calls_of_a_rollout": calls_each, **filled}), flush=True)
                for step in ("open", "open-whole"):
                    print(json.dumps({step: in_a_process(step, *workload)}), flush=True)


if __name__ == "__main__":
    main()
