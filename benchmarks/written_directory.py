"""A capture directory of many calls, written as an owner writes it and synced once in a while."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.workload import exchange, text
from gym_capture.model.clock import SystemClock
from gym_capture.model.codec import FrameKind, FrameRef, PendingFrame, encode_rows
from gym_capture.model.exchange import seal
from gym_capture.model.ledger import Applied, Ledger
from gym_capture.model.rows import ClientRow, CommitRow, Part, rollouts_of
from gym_capture.storage.owner_file import OwnerIdentity
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.posix_files import PosixFiles, make_capture_directory
from gym_capture.storage.recovery import recover
from gym_capture.storage.run_marker import create_or_adopt_run

SIDE_BY_SIDE = 64
"""Rollouts that are under way at once: their calls alternate in the log."""

_CLIENT = uuid.UUID(int=1).bytes


def write_directory(directory: Path, rollouts: int, turns: int, turn_bytes: int) -> None:
    """Write `rollouts` of `turns` calls each; every request repeats its history and adds about `turn_bytes`."""
    make_capture_directory(directory)
    files = PosixFiles(directory)
    create_or_adopt_run(files)
    clock = SystemClock()
    ownership = Ownership.take(
        files, OwnerIdentity("benchmark"), clock, takeover=False, wait=lambda _s: None, new_token=lambda: "none"
    )
    ledger = Ledger()
    writer = recover(files, ownership, ledger).writer
    for number, calls in enumerate(_batches(rollouts, turns, turn_bytes), 1):
        rows: list[ClientRow] = []
        body: list[bytes] = []
        offset = 0
        for rollout, given in calls:
            sealed = seal(given)
            parts = [Part(p.kind, p.flags, p.offset + offset, p.length, p.raw, p.crc) for p in sealed.parts]
            rows.append(CommitRow(rollout, 0, sealed.model_call_id, sealed.digest, parts))
            body += sealed.body
            offset += sealed.body_bytes
        ref = FrameRef(ledger.last_sequence + 1, ownership.epoch)
        applied = ledger.apply_batch(_CLIENT, number, number - 1, rows, ref, clock.monotonic(), clock.time())
        assert isinstance(applied, Applied)
        frame = PendingFrame(
            FrameKind.BATCH, encode_rows(applied.rows), len(applied.rows), body, ref, rollouts=rollouts_of(applied.rows)
        )
        writer.append([frame])
        writer.sync()
        ledger.durable(ledger.last_sequence)
    writer.close()
    ownership.release(writer.segment.number, writer.position)


def _batches(rollouts: int, turns: int, turn_bytes: int) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    rng = random.Random(1)
    said = [text(rng, turn_bytes) for _ in range(32)]
    for first in range(0, rollouts, SIDE_BY_SIDE):
        here = range(first, min(first + SIDE_BY_SIDE, rollouts))
        histories: dict[int, list[dict[str, Any]]] = {
            number: [{"role": "system", "content": "You are an agent."}] for number in here
        }
        for turn in range(turns):
            batch = []
            for number in here:
                history = histories[number]
                history.append({"role": "user", "content": said[(number + turn) % 32]})
                call = exchange(rng, f"{number:08x}{turn:04x}", history, "Yes.")
                call["started_at"] += number + turn * 2.0
                call["completed_at"] += number + turn * 2.0
                call["latency_ms"] = rng.lognormvariate(7, 0.6)
                if rng.random() < 0.01:
                    call |= {"status_code": 429, "error_category": "rate_limit", "response": {"error": "slow down"}}
                batch.append((f"{number // 4}-{number % 4}", call))
                history.append({"role": "assistant", "content": "Yes."})
            yield batch
