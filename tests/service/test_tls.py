"""The stream under Ray's own certificates."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from gym_capture.errors import ConfigError
from gym_capture.model.messages import MessageSplitter, Welcome, decode_from_owner
from gym_capture.service.settings import OwnerSettings
from gym_capture.service.tls import server_ssl_context
from tests.service.test_stream_server import Stand

CERTIFICATES = Path(__file__).parent / "certificates"


def environment(**changes: str) -> dict[str, str]:
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(CERTIFICATES / "node.pem"),
        "RAY_TLS_SERVER_KEY": str(CERTIFICATES / "node.key"),
        "RAY_TLS_CA_CERT": str(CERTIFICATES / "authority.pem"),
        **changes,
    }


def client_context(name: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "authority.pem"))
    if name is not None:
        context.load_cert_chain(CERTIFICATES / f"{name}.pem", CERTIFICATES / f"{name}.key")
    return context


def test_without_rays_tls_there_is_none() -> None:
    assert server_ssl_context({}) is None
    assert server_ssl_context({"RAY_USE_TLS": "0"}) is None


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="RAY_TLS_SERVER_KEY"):
        server_ssl_context(environment(RAY_TLS_SERVER_KEY=""))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        server_ssl_context(environment(RAY_TLS_SERVER_CERT="/nowhere.pem"))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        server_ssl_context(environment(RAY_TLS_SERVER_KEY=str(CERTIFICATES / "stranger.key")))


async def test_a_client_of_the_same_authority_is_welcome_and_no_other(tmp_path: Path) -> None:
    stand = Stand(tmp_path, OwnerSettings())
    stand.port = await stand.server.start(stand.service, "127.0.0.1", 0, server_ssl_context(environment()))
    await stand.service.open(listening=("127.0.0.1", stand.port), tls=True)
    assert stand.service.endpoint.tls is True
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", stand.port, ssl=client_context("node"))
        stand.writers.append(writer)
        writer.write(stand.hello())
        messages = MessageSplitter(1 << 20).feed(await reader.read(1 << 16))
        assert [type(decode_from_owner(head)) for head, _ in messages] == [Welcome]
        for name in (None, "stranger"):
            assert await talk(stand, client_context(name)) == b""
        reader, writer = await stand.open()
        writer.write(stand.hello())
        assert await answer_to(reader) == b""
        assert len(stand.service.connections.sessions) == 1
    finally:
        await stand.close()


async def talk(stand: Stand, context: ssl.SSLContext) -> bytes:
    """What the server says to a hello; nothing when it does not accept the certificate."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", stand.port, ssl=context)
    except OSError:
        return b""
    stand.writers.append(writer)
    writer.write(stand.hello())
    return await answer_to(reader)


async def answer_to(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(1 << 16)
    except OSError:
        return b""
