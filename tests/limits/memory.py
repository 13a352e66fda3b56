"""What an owner and a client hold in memory, measured. Sizes are parameters: small in the tests, full in the lab."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

from gym_capture.client.options import ClientOptions
from gym_capture.model.ledger import Ledger
from gym_capture.model.messages import Quiesce
from gym_capture.model.rows import ClaimRow, CommitRow, Part
from gym_capture.storage.log_scan import LogScan, replay_log
from gym_capture.testing.faulty_files import FaultyDisk
from tests.client.harness import Harness, exchange, incompressible
from tests.service.harness import Bench, serving
from tests.service.raw_client import RawClient, sealed

ROWS = 500
CALLS_OF_A_ROLLOUT = 50


def held(bench: Bench | None = None) -> int:
    """Bytes of Python objects now, without the disk that a test keeps in memory."""
    gc.collect()
    disk = sum(len(bench.disk.content(name)) for name in bench.disk.view().names()) if bench else 0
    return tracemalloc.get_traced_memory()[0] - 2 * disk


@asynccontextmanager
async def traced() -> AsyncIterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


async def _claims(client: RawClient, count: int) -> list[ClaimRow]:
    rows = [client.claim_row(f"rollout-{number // CALLS_OF_A_ROLLOUT}") for number in range(count)]
    for start in range(0, count, ROWS):
        await client.batch(rows[start : start + ROWS])
    return rows


async def bytes_per_open_claim(count: int) -> float:
    """An owner's bytes for each claim that is open; also checks that all are gone once they are closed."""
    async with traced(), serving() as bench:
        client = await bench.client()
        await _claims(client, 1)
        before = held(bench)
        rows = await _claims(client, count)
        used = held(bench) - before
        assert bench.service.ledger.outstanding == count + 1
        del rows
        return used / count


async def bytes_per_waiter(count: int) -> float:
    """An owner's and its clients' bytes for each caller that waits for quiescence."""
    async with traced(), serving() as bench:
        client = await bench.client()
        await client.claim("r")
        before = held(bench)
        calls = [client.call(Quiesce("r", 1000.0)) for _ in range(count)]
        await client.beat()
        assert bench.service.waiters.count == count
        used = held(bench) - before
        for call in calls:
            call.cancel()
        return used / count


async def bytes_per_call(count: int) -> tuple[float, float]:
    """What an owner holds for each call that was captured, and what a reader of the directory holds for each.

    Every exchange has the same small payloads; the log's bytes are not in these figures, its index in memory is.
    """
    one = sealed("c")
    disk = FaultyDisk()
    async with traced(), serving(disk) as bench:
        client = await bench.client()
        await client.claim("warm")
        before = held(bench)
        for start in range(0, count, ROWS):
            rows, body = [], bytearray()
            for number in range(start, min(count, start + ROWS)):
                parts = [
                    Part(part.kind, part.flags, part.offset + len(body), part.length, part.raw, part.crc)
                    for part in one.parts
                ]
                digest = number.to_bytes(16, "big")
                rows.append(CommitRow(f"rollout-{number // CALLS_OF_A_ROLLOUT}", 0, f"{number:032x}", digest, parts))
                body += b"".join(one.body)
            await client.batch(rows, bytes(body))
        del rows, body, parts, digest
        owner = (held(bench) - before) / count
        assert bench.service.ledger.counts["commits"] == count
    async with traced():
        before = held()
        ledger = Ledger()
        replay_log(LogScan(disk.view()), ledger)
        assert ledger.counts["commits"] == count
        reader = (held() - before) / count
    return owner, reader


class Pressure(NamedTuple):
    """What a disk that takes nothing for a while left behind: bytes, and exchanges given and on disk at the end."""

    in_buffer: int
    in_all: int
    given: int
    landed: int


async def a_disk_that_stands_still(writers: int, each: int, exchange_bytes: int, capacity: int) -> Pressure:
    """Writers that produce without a pause while no sync ends; then the disk goes on.

    Args:
        writers: how many write at a time, each the next exchange once the last one is durable.
        each: exchanges of each writer.
        exchange_bytes: of one exchange; it does not compress.
        capacity: `client_buffer_bytes`.
    """
    text = incompressible(exchange_bytes)
    disk = FaultyDisk()
    async with traced(), serving(disk) as bench:
        made = Harness(cast(Any, bench.transport), ClientOptions(client_buffer_bytes=capacity))
        await made.client.record("r", exchange("first"))
        before = held(bench)
        bench.executor.hold()

        async def write(writer: int) -> None:
            for number in range(each):
                await made.client.record(f"r{writer}", exchange(f"c{number}", text))

        tasks = [asyncio.ensure_future(write(writer)) for writer in range(writers)]
        for _ in range(3000):
            await asyncio.sleep(0)
        in_buffer, in_all = made.core.buffer.held, held(bench) - before
        assert not any(task.done() for task in tasks)
        bench.executor.let_go()
        await asyncio.gather(*tasks)
        landed = bench.service.ledger.counts["commits"] - 1
        made.core.close()
        await asyncio.wait([made.host.task])
    return Pressure(in_buffer, in_all, writers * each, landed)
