"""A TCP proxy on the way to an owner, wherever that is by then, which can cut, delay and swallow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class DisturbedPath:
    """Forwards connections, in a thread of its own.

    Args:
        target: where the owner listens now (host, port); may raise.

    Attributes:
        delay_s: what every piece waits, both ways.
        swallow: connections stay open and nothing passes. One that has swallowed anything never passes anything again,
            until it is cut: bytes do not vanish from within a stream.
        cut_after: bytes that still pass before every connection is cut; None: all.
    """

    def __init__(self, target: Callable[[], tuple[str, int]]) -> None:
        self.port = 0
        self.delay_s = 0.0
        self.swallow = False
        self.cut_after: int | None = None
        self.cuts = 0
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._closed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        self._listening.wait(10.0)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._closed.wait()
        server.close()
        self._cut()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            try:
                host, port = await asyncio.to_thread(self._target)
                far_reader, far_writer = await asyncio.open_connection(host, port)
            except Exception:  # noqa: BLE001 - no owner now: the connection is closed, the client comes again
                return
            self._writers.add(far_writer)
            try:
                dead = asyncio.Event()
                await asyncio.gather(self._pump(reader, far_writer, dead), self._pump(far_reader, writer, dead))
            finally:
                self._writers.discard(far_writer)
                far_writer.transport.abort()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dead: asyncio.Event) -> None:
        try:
            while data := await reader.read(1 << 16):
                if self.swallow or dead.is_set():
                    dead.set()
                    continue
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self.cut_after is not None and len(data) >= self.cut_after:
                    data, self.cut_after = data[: self.cut_after], None
                    writer.write(data)
                    await writer.drain()
                    self._cut()
                    return
                if self.cut_after is not None:
                    self.cut_after -= len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # cut
        finally:
            writer.transport.abort()

    def _cut(self) -> None:
        self.cuts += 1
        for writer in list(self._writers):
            writer.transport.abort()

    def cut(self) -> None:
        """Break every connection now."""
        self._loop.call_soon_threadsafe(self._cut)

    def close(self) -> None:
        """End the proxy."""
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join(10.0)
        if not self._thread.is_alive():
            self._loop.close()
