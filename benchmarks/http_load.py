"""The callers of the overhead benchmark, a process of its own: `python -m benchmarks.http_load`.

For each JSON line on standard input (`Load`'s fields) it keeps so many calls in flight, and prints what it saw as one
line (`Seen`'s fields). No HTTP library: what a caller costs has to be little beside what is measured.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httptools

from benchmarks.model_server import response_of
from benchmarks.workload import text
from gym_capture.asgi.proxy_server import run_in_loop

REQUEST_BYTES = 4096
SECRET = "Authorization: Bearer sk-0123456789abcdef0123456789abcdef"
TERMINAL = b"data: [DONE]\n\n"


@dataclass
class Load:
    """What is asked for.

    Args:
        port: of the server, on loopback.
        path: of each request; `{lane}` in it becomes the connection's number.
        query: what the app is asked for.
        size: bytes of a whole body.
        lanes: connections, one call in flight on each.
        seconds: how long calls are begun.
        calls: how many calls a lane makes at most; 0: any number.
        ramp_s: over how long the lanes' first calls are spread.
    """

    port: int
    path: str
    query: str
    size: int
    lanes: int
    seconds: float
    calls: int = 0
    ramp_s: float = 0.0


@dataclass
class Seen:
    """What came. `first_ms`: until the body's first bytes; `late_ms`: from the last bytes before a stream's terminal
    event until that; `total_ms`: until the response was complete; `warm`: calls before, one a lane, not measured."""

    warm: int = 0
    seconds: float = 0.0
    first_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    total_ms: list[float] = field(default_factory=list)


class _Lane(asyncio.Protocol):
    """One connection, asking again as soon as it is answered."""

    def __init__(self, load: Load, number: int) -> None:
        self._load = load
        self._number = number
        self._text = text(random.Random(number), REQUEST_BYTES)
        self._seen = Seen()
        self._left = 0
        self._until = 0.0
        self._now = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def begin(self, seen: Seen, query: str, size: int, calls: int, until: float, ended: asyncio.Future[None]) -> None:
        """Ask `calls` times (0: any number), or until then."""
        self._seen, self._size_wanted, self._ended = seen, size, ended
        self._left, self._until = calls or -1, until
        messages = [{"role": "user", "content": self._text}]
        body = json.dumps({"model": "policy-8b", "messages": messages, "stream": "events=" in query}).encode()
        path = f"{self._load.path.replace('{lane}', str(self._number))}?{query}"
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n{SECRET}\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        self._ask()

    def _ask(self) -> None:
        self._left -= 1
        self._parser = httptools.HttpResponseParser(self)
        self._size = 0
        self._first = self._before = self._latest = 0.0
        self._tail = b""
        self._begun = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        self._first = self._first or self._now
        self._before, self._latest = self._latest, self._now
        self._tail = data

    def on_message_complete(self) -> None:
        seen = self._seen
        if self._parser.get_status_code() != 200 or self._size != self._size_wanted:
            self._fail(f"answered {self._parser.get_status_code()} with {self._size} bytes: {self._tail[:200]!r}")
            return
        seen.first_ms.append((self._first - self._begun) * 1e3)
        seen.total_ms.append((self._now - self._begun) * 1e3)
        # A terminal event that comes in one read with what was before it is not late.
        seen.late_ms.append((self._latest - self._before) * 1e3 if self._tail == TERMINAL else 0.0)
        if self._left == 0 or time.perf_counter() >= self._until:
            self._ended.set_result(None)
        else:
            asyncio.get_running_loop().call_soon(self._ask)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection was lost: {exc!r}")

    def close(self) -> None:
        self._transport.close()

    def _fail(self, why: str) -> None:
        if not self._ended.done():
            self._ended.set_exception(RuntimeError(why))


async def apply(load: Load) -> Seen:
    """One load from its first call to its last answer."""
    loop = asyncio.get_running_loop()
    seen = Seen()
    lanes = [_Lane(load, number) for number in range(load.lanes)]
    for lane in lanes:
        await loop.create_connection(partial(_same, lane), "127.0.0.1", load.port)
    # One call each first: what a new connection costs on the way is not a call's.
    size = len(response_of(REQUEST_BYTES))
    await asyncio.gather(*(_begun(lane, Seen(), f"bytes={REQUEST_BYTES}", size, 1, 0.0) for lane in lanes))
    seen.warm = len(lanes)
    start = time.perf_counter()
    ends = []
    for number, lane in enumerate(lanes):
        until = start + load.seconds
        pause = load.ramp_s / load.lanes if number else 0.0
        if pause:
            await asyncio.sleep(max(0.0, start + number * pause - time.perf_counter()))
        ends.append(_begun(lane, seen, load.query, load.size, load.calls, until))
    await asyncio.gather(*ends)
    seen.seconds = time.perf_counter() - start
    for lane in lanes:
        lane.close()
    return seen


def _begun(lane: _Lane, seen: Seen, query: str, size: int, calls: int, until: float) -> asyncio.Future[None]:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    lane.begin(seen, query, size, calls, until, ended)
    return ended


def _same(lane: _Lane) -> _Lane:
    return lane


async def main() -> None:
    """Do as the lines say until there are no more."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(dataclasses.asdict(await apply(Load(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    run_in_loop(main())
