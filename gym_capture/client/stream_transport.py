"""The stream: one TCP (or TLS) connection from this process to the owner's."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

from gym_capture.client.transport import Message
from gym_capture.errors import HandshakeRefused, OwnerUnavailable, ProtocolError
from gym_capture.model.endpoint import Endpoint
from gym_capture.model.messages import MAX_BODY_BYTES, MAX_HEAD_BYTES, MessageSplitter

CONNECT_TIMEOUT_S = 5.0

_JOIN_BYTES = 64 * 1024
"""Larger buffers are written by themselves; joining them would only copy them."""


class Locator(Protocol):
    """Finds the owner, anew for every link: it may have moved."""

    async def locate(self) -> Endpoint:
        """Where the owner listens now. What blocks is to run in an executor of the locator's own.

        Raises:
            OwnerUnavailable: not to be found now; it is asked again.
            OwnerNotFound, MissingRunMarker: there is none.
        """


class Connector(Protocol):
    """Opens connections; a simulation brings its own."""

    async def connect(self, endpoint: Endpoint, make: Callable[[], asyncio.Protocol]) -> None:
        """Connect a protocol to the endpoint. Raises OSError or TimeoutError."""


class TcpConnector:
    """Sockets of the running loop.

    Args:
        timeout_s: how long one attempt may take.
        environment: where Ray's TLS variables stand.
    """

    def __init__(self, timeout_s: float = CONNECT_TIMEOUT_S, environment: Mapping[str, str] | None = None) -> None:
        self._timeout_s = timeout_s
        self._environment = os.environ if environment is None else environment

    async def connect(self, endpoint: Endpoint, make: Callable[[], asyncio.Protocol]) -> None:
        """Connect a protocol to the endpoint."""
        tls = client_ssl_context(self._environment) if endpoint.tls else None
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._timeout_s):
            await loop.create_connection(
                make, endpoint.host, endpoint.port, ssl=tls, server_hostname="" if tls else None
            )


def client_ssl_context(environment: Mapping[str, str]) -> ssl.SSLContext:
    """TLS with Ray's own certificates, each side proving itself to the other by Ray's authority (as Ray's gRPC does).

    Args:
        environment: the process's, with Ray's variables (docs.ray.io, "TLS authentication").

    Raises:
        HandshakeRefused: the variables are not set here, or the files cannot be loaded.
    """
    try:
        authority = environment["RAY_TLS_CA_CERT"]
        certificate, key = environment["RAY_TLS_SERVER_CERT"], environment["RAY_TLS_SERVER_KEY"]
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
        # Names differ from node to node; that the authority signed it is what Ray goes by as well.
        context.check_hostname = False
        context.load_cert_chain(certificate, key)
    except (KeyError, OSError, ssl.SSLError) as error:
        raise HandshakeRefused(
            f"the capture owner speaks TLS, but Ray's certificates cannot be used in this process ({error!r}). Set "
            "RAY_TLS_CA_CERT, RAY_TLS_SERVER_CERT and RAY_TLS_SERVER_KEY where this process starts."
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class StreamLink(asyncio.Protocol):
    """One connection. Made by `StreamTransport`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.token = endpoint.token
        self.run = endpoint.run
        self._where = f"{endpoint.host}:{endpoint.port}"
        self._splitter = MessageSplitter(MAX_HEAD_BYTES + MAX_BODY_BYTES)
        self._inbox: list[Message] = []
        self._take: Callable[[list[Message]], None] | None = None
        self._news: asyncio.Future[None] | None = None
        self._broken: str | None = None
        self._transport: asyncio.Transport | None = None
        self._written = 0
        self._read = 0

    # -- Link ---------------------------------------------------------------------------------------------------

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send one encoded message. It leaves at once: the core has formed its batch already."""
        transport = self._transport
        if transport is None:
            return
        small: list[bytes | memoryview] = []
        for buffer in buffers:
            self._written += len(buffer)
            if len(buffer) < _JOIN_BYTES:
                small.append(buffer)
                continue
            if small:
                transport.write(b"".join(small))
                small = []
            transport.write(buffer)
        if small:
            transport.write(b"".join(small))

    async def receive(self) -> list[Message]:
        """The next messages, at least one."""
        while not self._inbox:
            if self._broken is not None:
                raise OwnerUnavailable(f"the connection to the capture owner at {self._where} is closed{self._broken}")
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        messages, self._inbox = self._inbox, []
        return messages

    def push_to(self, take: Callable[[list[Message]], None]) -> None:
        """Hand over what comes in the turn in which it comes."""
        self._take = take
        messages, self._inbox = self._inbox, []
        if messages:
            take(messages)

    def close(self) -> None:
        """Let go of the connection, after what was sent."""
        transport = self._transport
        self._end("")
        if transport is not None:
            transport.close()

    @property
    def progress(self) -> int:
        """Bytes that came, and those of a message under way that the network has taken.

        What went out whole does not count: the kernel takes the beats to a frozen owner, too.
        """
        transport = self._transport
        left = transport.get_write_buffer_size() if transport is not None else 0
        return self._read + (self._written - left if left else 0)

    # -- asyncio's callbacks ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if self._broken is not None:
            return
        self._read += len(data)
        try:
            messages = self._splitter.feed(data)
        except ProtocolError as error:
            transport = self._transport
            self._end(f": {error}")
            if transport is not None:
                transport.abort()
            return
        if not messages:
            return
        if self._take is not None:
            self._take(messages)
        else:
            self._inbox += messages
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f": {exc}" if exc is not None else "")

    # -- inside -------------------------------------------------------------------------------------------------

    def _end(self, why: str) -> None:
        self._transport = None
        if self._broken is None:
            self._broken = why
        self._wake()

    def _wake(self) -> None:
        news = self._news
        if news is not None and not news.done():
            news.set_result(None)


class StreamTransport:
    """Connections to wherever the locator says that the owner listens. Holds none itself, so forks share it.

    Args:
        locator: finds the owner.
        connector: opens connections; None: sockets.
    """

    name = "stream"

    def __init__(self, locator: Locator, connector: Connector | None = None) -> None:
        self._locator = locator
        self._connector = connector or TcpConnector()

    async def connect(self) -> StreamLink:
        """Find the owner and connect.

        Raises:
            OwnerUnavailable: it is not there, or its port cannot be reached from here.
            OwnerNotFound, HandshakeRefused, MissingRunMarker: trying again cannot help.
        """
        endpoint = await self._locator.locate()
        if not endpoint.port:
            raise OwnerUnavailable("the capture owner has no stream; its Ray methods carry everything.")
        link = StreamLink(endpoint)
        try:
            await self._connector.connect(endpoint, lambda: link)
        except (OSError, TimeoutError) as error:
            raise OwnerUnavailable(
                f"the capture owner's port {endpoint.host}:{endpoint.port} cannot be reached ({error or 'timeout'})"
            ) from error
        return link
