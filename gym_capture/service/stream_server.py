"""The owner's stream: an asyncio server that carries messages between sockets and sessions.

Protocols and not streams: a message costs one callback each way. Answers that are given in one step of the loop leave
in two writes at most.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import cast

from gym_capture.errors import ProtocolError
from gym_capture.model.messages import MAX_HELLO_BYTES, PREFIX_BYTES, MessageSplitter, message_bytes
from gym_capture.service.capture_service import CaptureService
from gym_capture.service.settings import OwnerSettings

_JOIN_BYTES = 64 * 1024
"""Larger buffers are written by themselves; joining them would only copy them."""
_DROP_FACTOR = 4
_CLOSING_TURNS = 3
"""Of the loop. What asyncio has accepted it sets up in a task of its own: that runs in the next turn, the connection is
made in the one after, and one that is closed is lost one turn later. A server that was closed in between, or a loop
that ended, would leave the socket open (Python 3.11 asserts in that task that the server still listens)."""


class StreamServer:
    """Listens for clients of one service. `start`, then `close`."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def start(
        self, service: CaptureService, host: str, port: int = 0, ssl_context: ssl.SSLContext | None = None
    ) -> int:
        """Listen; returns the port. May be called before the service is open: clients are refused until it is.

        Raises:
            OSError: the address cannot be used.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(service, self._connections),
            host,
            port,
            ssl=ssl_context,
            backlog=1024,
            ssl_handshake_timeout=service.settings.hello_s if ssl_context else None,
        )
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    async def close(self) -> None:
        """Listen no more, and close every connection, also one that was accepted a moment ago."""
        server = self._server
        loop = asyncio.get_running_loop()
        for listening in server.sockets if server is not None else ():
            loop.remove_reader(listening.fileno())
        for _ in range(_CLOSING_TURNS):
            for connection in list(self._connections):
                connection.close()
            await asyncio.sleep(0)
        if server is not None:
            server.close()
            await server.wait_closed()


class _Connection(asyncio.Protocol):
    """One socket and its session."""

    def __init__(self, service: CaptureService, connections: set[_Connection]) -> None:
        self._service = service
        self._settings: OwnerSettings = service.settings
        self._connections = connections
        self._session = service.connect(self._send, self.close, self._hold)
        self._splitter: MessageSplitter | None = None
        self._early = bytearray()
        self._out: list[bytes | memoryview] = []
        self._flushing = False
        self._held = False
        self._stuck = False
        self._closing = False
        self._watch: asyncio.TimerHandle | None = None

    # -- asyncio's callbacks ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._connections.add(self)
        self._transport.set_write_buffer_limits(high=self._settings.send_buffer_bytes)
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._watch = self._loop.call_later(self._settings.hello_s, self._hello_is_late)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._session.heard = True
        splitter = self._splitter
        try:
            if splitter is None:
                splitter, data = self._first_message(data)
                if splitter is None:
                    return
            for head, body in splitter.feed(data):
                self._session.receive(head, body)
        except ProtocolError as error:
            self._session.broken(error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """The client does not read its replies: take no more work from it, and see whether it moves at all."""
        self._stuck = True
        self._reading()
        self._stuck_bytes = self._transport.get_write_buffer_size()
        self._rewatch(self._settings.lease_s, self._still_stuck)

    def resume_writing(self) -> None:
        self._stuck = False
        self._reading()
        self._rewatch(0, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._rewatch(0, None)
        self._connections.discard(self)
        self._session.lost()

    # -- the session's callbacks --------------------------------------------------------------------------------

    def _send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Answers of one group leave together. Of other messages the first of a step of the loop leaves at once, the
        others of that step together after it."""
        self._out += buffers
        if self._flushing:
            return
        self._flushing = True
        if not self._service.connections.gathered(self._flush):
            self._write()
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """End the connection after what was sent; a client that reads none of it is cut off."""
        if self._closing:
            return
        self._write()
        self._closing = True
        self._transport.close()
        self._rewatch(self._settings.hello_s, self._transport.abort)

    def _hold(self, paused: bool) -> None:
        self._held = paused
        self._reading()

    # -- reading ------------------------------------------------------------------------------------------------

    def _first_message(self, data: bytes) -> tuple[MessageSplitter | None, bytes]:
        """Take the hello, which has a bound of its own; returns the splitter for what follows, and its beginning."""
        early = self._early
        early += data
        if len(early) < PREFIX_BYTES:
            return None, b""
        size = message_bytes(early)
        if size > MAX_HELLO_BYTES:
            raise ProtocolError(f"a hello of {size} bytes was announced, at most {MAX_HELLO_BYTES} are accepted")
        if len(early) < size:
            return None, b""
        rest = bytes(early[size:])
        for head, body in MessageSplitter(MAX_HELLO_BYTES).feed(bytes(early[:size])):
            self._session.receive(head, body)
        early.clear()
        if self._session.ended:
            return None, b""
        self._rewatch(0, None)
        self._splitter = MessageSplitter(self._settings.max_message_bytes)
        return self._splitter, rest

    def _reading(self) -> None:
        if self._closing:
            return
        if self._held or self._stuck:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _hello_is_late(self) -> None:
        self._session.broken(ProtocolError(f"no hello within {self._settings.hello_s} s"))

    # -- writing ------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._flushing = False
        self._write()

    def _write(self) -> None:
        out, self._out = self._out, []
        if not out or self._closing:
            return
        small: list[bytes | memoryview] = []
        for buffer in out:
            if len(buffer) < _JOIN_BYTES:
                small.append(buffer)
                continue
            if small:
                self._transport.write(b"".join(small))
                small = []
            self._transport.write(buffer)
        if small:
            self._transport.write(b"".join(small))
        bound = _DROP_FACTOR * self._settings.send_buffer_bytes + self._settings.read_bytes
        if self._transport.get_write_buffer_size() > bound:
            self._drop()

    def _still_stuck(self) -> None:
        left = self._transport.get_write_buffer_size()
        if left >= self._stuck_bytes:
            self._drop()
        else:
            self._stuck_bytes = left
            self._rewatch(self._settings.lease_s, self._still_stuck)

    def _drop(self) -> None:
        self._service.connections.counts["dropped_connections"] += 1
        self._transport.abort()

    def _rewatch(self, delay_s: float, callback: object) -> None:
        """The connection's one timer: late hello, stuck writing, or late closing."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if callable(callback):
            self._watch = self._loop.call_later(delay_s, callback)
