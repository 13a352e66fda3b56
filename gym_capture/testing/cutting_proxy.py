"""A TCP proxy that breaks connections when it is told to, or after so many bytes."""

from __future__ import annotations

import asyncio
import threading


class CuttingProxy:
    """Forwards connections to `target`, in a thread of its own.

    Attributes:
        host, port: where it listens.
        target: where connections go; None: they are closed at once.
        cut_after: how many more bytes to let through, both ways together, before every connection is cut; None: all.
    """

    def __init__(self) -> None:
        self.host, self.port = "127.0.0.1", 0
        self.target: tuple[str, int] | None = None
        self.cut_after: int | None = None
        self.cuts = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._closed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        self._listening.wait(10.0)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._forward, self.host, 0)
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
            if self.target is None:
                return
            try:
                far_reader, far_writer = await asyncio.open_connection(*self.target)
            except OSError:
                return
            self._writers.add(far_writer)
            try:
                await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
            finally:
                self._writers.discard(far_writer)
                far_writer.transport.abort()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                if self.cut_after is not None:
                    if len(data) >= self.cut_after:
                        data, self.cut_after = data[: self.cut_after], None
                        writer.write(data)
                        await writer.drain()
                        self._cut()
                        return
                    self.cut_after -= len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # cut
        finally:
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    def _cut(self) -> None:
        self.cuts += 1
        for writer in list(self._writers):
            writer.transport.abort()

    def cut(self) -> None:
        """Break every connection now."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._cut_now(), self._loop).result(10.0)

    async def _cut_now(self) -> None:
        self._cut()

    def close(self) -> None:
        """End the proxy."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closed.set)
            self._thread.join(10.0)
            self._loop.close()
