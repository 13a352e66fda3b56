"""What storing messages once is worth: bytes on disk, and the client's CPU, with history and without.

No Ray: one owner in a thread, one client over a stream; the CPU is that of freezing and packing alone (text, record,
messages, compression, checksums), which is where all of a client's work on an exchange is done.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.file_store import FileStore
from benchmarks.workload import growing_rollout, single_turns
from gym_capture.client.client import CaptureClient
from gym_capture.client.history_book import FirstRequest, HistoryBook
from gym_capture.client.host import CoreHost
from gym_capture.client.options import ClientOptions
from gym_capture.model.exchange import pack, snapshot
from gym_capture.model.rows import PartKind
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.threaded_owner import ThreadedOwner

Rollouts = Sequence[Sequence[dict[str, Any]]]

_NOT_COMPLETED = ("dialect", "model_call_id")


def history_workloads(real_rollouts: Path | None) -> dict[str, Rollouts]:
    """What is compared, by title.

    Args:
        real_rollouts: JSONL with the `exchanges` of a rollout a line, or None.
    """
    found: dict[str, Rollouts] = {
        "1 rollout of 100 turns": [growing_rollout(1, 100, 19_500_000)],
        "20 rollouts of 10 turns": [growing_rollout(seed, 10, 600_000) for seed in range(20)],
        "60 single turns of 64 KB": [[next(single_turns(seed, 64 << 10))] for seed in range(60)],
    }
    if real_rollouts is not None:
        lines = real_rollouts.read_text(encoding="utf-8").splitlines()
        found[f"{len(lines)} real rollouts"] = [json.loads(line)["exchanges"] for line in lines]
    return found


def compare_history(base: Path, rollouts: Rollouts, repeats: int) -> dict[str, dict[str, float]]:
    """Bytes on disk and CPU of both, and of the plain file store; everything is read back and compared."""
    files = FileStore(base / "files")
    for number, exchanges in enumerate(rollouts):
        for exchange in exchanges:
            files.append(f"r{number}", exchange)
    plain = sum(path.stat().st_size for path in files.directory.iterdir())
    shutil.rmtree(files.directory)
    rows: dict[str, dict[str, float]] = {"file store": {"bytes": plain, "times_fewer": 1}}
    cpu: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(repeats):  # by turns, so that both see the same machine
        for history in (False, True):
            cpu[history].append(pack_us(rollouts, history=history))
    for history in (False, True):
        directory = base / f"capture-{history}"
        asyncio.run(_capture(directory, rollouts, history=history))
        _compare(directory, rollouts)
        stored = sum(path.stat().st_size for path in directory.glob("segment-*.log"))
        rows["with history" if history else "every request whole"] = {
            "bytes": stored,
            "times_fewer": plain / stored,
            "client_us": statistics.median(cpu[history]),
        }
        shutil.rmtree(directory)
    return rows


async def _capture(directory: Path, rollouts: Rollouts, *, history: bool) -> None:
    owner = ThreadedOwner(directory)
    owner.start()
    client = CaptureClient(CoreHost(owner.stream_transport(), ClientOptions(history=history)))
    for number, exchanges in enumerate(rollouts):
        rollout = client.rollout(f"r{number}")
        for exchange in exchanges:
            async with rollout.claim(dialect=exchange["dialect"], model_call_id=exchange["model_call_id"]) as call:
                call.complete(**given(exchange))
            if call.outcome != "durable":
                raise RuntimeError(f"an exchange was {call.outcome}")
    await client.close()
    owner.close()


def _compare(directory: Path, rollouts: Rollouts) -> None:
    store = CaptureStore(directory)
    for number, exchanges in enumerate(rollouts):
        for found, exchange in zip(store.read(f"r{number}"), exchanges, strict=True):
            if (found["request"], found["response"]) != (exchange["request"], exchange["response"]):
                raise RuntimeError("what was read back is not what was captured")


def given(exchange: dict[str, Any]) -> dict[str, Any]:
    """An exchange's fields as `complete` takes them."""
    return {key: value for key, value in exchange.items() if key not in _NOT_COMPLETED and value is not None}


def pack_us(rollouts: Rollouts, *, history: bool) -> float:
    """Microseconds of CPU an exchange for freezing and packing it."""
    book = HistoryBook()
    calls = 0
    started = time.thread_time()
    for number, exchanges in enumerate(rollouts):
        rollout = f"r{number}"
        for exchange in exchanges:
            calls += 1
            frozen = snapshot(exchange)
            request = frozen.texts[PartKind.REQUEST].data
            turn = book.turn(rollout, 0, request) if history else None
            if turn is not None:
                turn.rows(rollout, 0, turn.pack(frozen))
                turn.end()
                continue
            sealed = pack(frozen)
            if history:
                book.sent_whole(rollout, 0, FirstRequest(sealed.model_call_id, sealed.digest, request))
    return (time.thread_time() - started) / calls * 1e6
