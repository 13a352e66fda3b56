"""A TCP proxy that cuts connections after a random number of bytes, in either direction, mid-message as a rule."""

from __future__ import annotations

import asyncio
import random
import threading


class CuttingProxy(threading.Thread):
    """Forwards 127.0.0.1:`port` to the target; each connection lives for a random number of bytes.

    Args:
        target: the port of the owner.
        mean_bytes: how many bytes a connection carries before it is cut, on average.
    """

    def __init__(self, target: int, *, seed: int, mean_bytes: int) -> None:
        super().__init__(daemon=True)
        self._target = target
        self._rng = random.Random(seed)
        self._mean_bytes = mean_bytes
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._done = asyncio.Event()
        self.cutting = True
        self.cuts = 0
        self.port = 0
        self.start()
        assert self._listening.wait(30)

    def run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        async with server:
            await self._done.wait()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target)
        left = [1 + int(self._rng.expovariate(1 / self._mean_bytes))]
        both = [
            asyncio.create_task(self._pump(reader, upstream_writer, left)),
            asyncio.create_task(self._pump(upstream_reader, writer, left)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            # Not a polite end: what is under way in both directions is gone.
            for end in (writer, upstream_writer):
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int]) -> None:
        while data := await reader.read(1 << 16):
            if self.cutting and len(data) >= left[0]:
                # The part before the cut still gets through: half a message, mostly.
                writer.write(data[: left[0]])
                self.cuts += 1
                return
            left[0] -= len(data)
            writer.write(data)
            await writer.drain()

    def end(self) -> None:
        """Close everything."""
        self._loop.call_soon_threadsafe(self._done.set)
        self.join(30)
