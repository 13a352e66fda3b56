"""A model server in a process of its own: `python -m tests.crash.stream_server`.

It answers each chat request with the stream of its `number` (`tests.crash.model_streams`). Prints `{"port": …}`, and
one JSON line for each line on standard input:

- `hold N` → `{"holding": N}`; the next streams stop before their last piece, and once N of them have got there it
  prints `{"begun": N}`
- `go` → `{"going": true}`; held streams send their last piece, later ones are not held
- `asked` → `{"asked": [number…]}`, of every request that came
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from tests.crash.model_streams import pieces_of

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def say(**message: Any) -> None:
    """One line to the test, in one write."""
    os.write(1, (json.dumps(message) + "\n").encode())


class StreamServer:
    """Streams that wait for each other."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.go = asyncio.Event()
        self.go.set()
        self._expected = 0
        self._begun = 0

    def hold(self, expected: int) -> None:
        """Hold what comes from now on before its last piece."""
        self.go = asyncio.Event()
        self._expected, self._begun = expected, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split()[0])
                number = json.loads(await reader.readexactly(length))["number"]
                self.asked.append(number)
                await self._answer(number, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, number: int, writer: asyncio.StreamWriter) -> None:
        go = self.go
        *pieces, last = pieces_of(number)
        writer.write(HEAD)
        for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0)
        if not go.is_set():
            self._begun += 1
            if self._begun == self._expected:
                say(begun=self._begun)
            await go.wait()
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(last), last))
        await writer.drain()


async def main() -> None:
    """Serve until the input ends."""
    streams = StreamServer()
    server = await asyncio.start_server(streams.serve, "127.0.0.1", 0, backlog=4096)
    say(port=server.sockets[0].getsockname()[1])
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command, _, number = line.strip().partition(" ")
        if command == "hold":
            streams.hold(int(number))
            say(holding=int(number))
        elif command == "go":
            streams.go.set()
            say(going=True)
        else:
            say(asked=streams.asked)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
