"""What passes through the proxy, byte for byte, and what a client hears when the upstream misbehaves."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from gym_capture.asgi.proxy_app import ProxyApp
from gym_capture.asgi.proxy_errors import UpstreamBroken
from gym_capture.asgi.proxy_upstream import parse_upstream
from gym_capture.asgi.routed_scope import NOTES_KEY
from gym_capture.config import ProxyConfig
from gym_capture.errors import ConfigError
from tests.asgi.raw_http import (
    UpstreamConnection,
    answering,
    client_of,
    raw_upstream,
    roundtrip,
    running_proxy,
)

CERTIFICATES = Path(__file__).parents[1] / "service" / "certificates"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSE = b"Connection: close\r\n"


def head_lines(head: bytes) -> list[bytes]:
    return head.removesuffix(b"\r\n\r\n").split(b"\r\n")


def split(answer: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Status line, header lines, body as it came."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    return first, lines, body


# -- what passes ---------------------------------------------------------------------------------------------------


async def test_a_request_arrives_with_its_raw_path_its_headers_and_nothing_of_this_hop() -> None:
    async with raw_upstream(answering(OK)) as upstream, running_proxy(upstream.url + "/base/") as port:
        answer = await roundtrip(
            port,
            b"GET /v1/a%2Fb/../%7e;x//y?q=%20a+b&&empty= HTTP/1.1\r\nHost: proxy.example\r\nAuthorization: Bearer s\r\n"
            b"X-Twice: 1\r\nConnection: close, X-Mine\r\nX-Mine: gone\r\nX-Twice: 2\r\nKeep-Alive: 5\r\n"
            b"TE: trailers\r\n"
            b"X-NG-Verifier-Name: judge\r\nProxy-Authorization: Basic x\r\nX-Text: caf\xc3\xa9\r\nCookie: a=b\r\n\r\n",
        )
        request = head_lines(upstream.connections[0].heads[0])
    assert request == [
        b"GET /base/v1/a%2Fb/../%7e;x//y?q=%20a+b&&empty= HTTP/1.1",
        f"Host: 127.0.0.1:{upstream.port}".encode(),
        b"authorization: Bearer s",
        b"x-twice: 1",
        b"x-twice: 2",
        b"x-text: caf\xc3\xa9",
        b"cookie: a=b",
    ]
    assert split(answer)[2] == b"ok"


async def test_an_answer_arrives_with_its_headers_in_order_and_none_added() -> None:
    sent = (
        b"HTTP/1.1 201 Made\r\nServer: model/1\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nSet-Cookie: a=1\r\n"
        b"X-Latin: caf\xe9\r\nSet-Cookie: b=2\r\nKeep-Alive: timeout=5\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
        b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x00\xff"
    )
    async with raw_upstream(answering(sent)) as upstream, running_proxy(upstream.url) as port:
        status, lines, body = split(await roundtrip(port, b"GET / HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n"))
    assert status == b"HTTP/1.1 201 Created"
    assert lines == [
        b"server: model/1",
        b"date: Thu, 01 Jan 1970 00:00:00 GMT",
        b"set-cookie: a=1",
        b"x-latin: caf\xe9",
        b"set-cookie: b=2",
        b"content-encoding: gzip",
        b"content-length: 4",
        b"connection: close",
    ]
    assert body == b"\x1f\x8b\x00\xff"


async def test_each_piece_of_a_stream_passes_before_the_next_is_sent() -> None:
    go = asyncio.Event()

    async def script(connection: UpstreamConnection) -> None:
        await connection.head()
        await connection.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b"data: 1\n\n", b"data: 2\n\n"):
            await connection.say(b"%x\r\n%s\r\n" % (len(piece), piece))
            await go.wait()
            go.clear()
        await connection.say(b"0\r\n\r\n")

    async with raw_upstream(script) as upstream, running_proxy(upstream.url) as port, client_of(port) as client:
        await client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert await client.head() == (200, [(b"transfer-encoding", b"chunked")])
        assert await client.exactly(14) == b"9\r\ndata: 1\n\n\r\n"
        go.set()
        assert await client.exactly(14) == b"9\r\ndata: 2\n\n\r\n"
        go.set()
        assert await client.exactly(5) == b"0\r\n\r\n"


async def test_each_piece_of_a_request_passes_before_the_next_is_sent() -> None:
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def script(connection: UpstreamConnection) -> None:
        await connection.head()
        for size in (3, 4):
            got.put_nowait(await connection.reader.readexactly(size))
        await connection.say(OK)

    async with raw_upstream(script) as upstream, running_proxy(upstream.url) as port, client_of(port) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\nabc")
        async with asyncio.timeout(60):
            assert await got.get() == b"abc"
        await client.send(b"defg")
        async with asyncio.timeout(60):
            assert await got.get() == b"defg"
        assert (await client.head())[0] == 200
        assert b"Content-Length: 7" in head_lines(upstream.connections[0].heads[0])


async def test_a_chunked_request_is_passed_on_chunked() -> None:
    seen: list[bytes] = []

    async def script(connection: UpstreamConnection) -> None:
        await connection.head()
        seen.append(await connection.reader.readuntil(b"0\r\n\r\n"))
        await connection.say(OK)

    async with raw_upstream(script) as upstream, running_proxy(upstream.url) as port, client_of(port) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        async with upstream.arrived:
            await upstream.arrived.wait_for(lambda: len(upstream.connections) == 1)
        await client.send(b"2\r\nde\r\n0\r\n\r\n")
        assert (await client.head())[0] == 200
        head = head_lines(upstream.connections[0].heads[0])
    assert b"Transfer-Encoding: chunked" in head
    assert not any(line.lower().startswith(b"content-length") for line in head)
    assert seen == [b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (b"HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
        (b"GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"GET", b'HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\nETag: "x"\r\n\r\n'),
    ],
)
async def test_answers_without_a_body_end_with_their_head_and_keep_both_connections(
    method: bytes, answer: bytes
) -> None:
    request = method + b" / HTTP/1.1\r\nHost: x\r\n\r\n"
    async with (
        raw_upstream(answering(answer, answer)) as upstream,
        running_proxy(upstream.url) as port,
        client_of(port) as client,
    ):
        for _ in range(2):
            await client.send(request)
            status, headers = await client.head()
            assert status == int(answer.split()[1])
            assert (b"transfer-encoding", b"chunked") not in headers
        assert len(upstream.connections) == 1
        if method == b"HEAD":
            assert (b"content-length", b"1000") in headers


async def test_interim_answers_are_not_taken_for_the_answer() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    async with raw_upstream(answering(early + OK)) as upstream, running_proxy(upstream.url) as port:
        status, _, body = split(await roundtrip(port, b"GET / HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n"))
    assert (status, body) == (b"HTTP/1.1 200 OK", b"ok")


async def test_a_client_that_waits_for_100_continue_is_told_to_go_on() -> None:
    async def script(connection: UpstreamConnection) -> None:
        await connection.head()
        assert await connection.reader.readexactly(3) == b"abc"
        await connection.say(OK)

    async with raw_upstream(script) as upstream, running_proxy(upstream.url) as port, client_of(port) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert (await client.head())[0] == 100
        await client.send(b"abc")
        assert (await client.head())[0] == 200
        assert b"expect" not in upstream.connections[0].heads[0].lower()


async def test_redirects_are_passed_on_and_point_at_the_proxy() -> None:
    async def script(connection: UpstreamConnection) -> None:
        line = (await connection.head()).split()[1]
        to = {
            b"/base/1": f"http://127.0.0.1:{upstream.port}/base/v1/models?a=1#x",
            b"/base/2": "http://elsewhere.example/base/v1",
            b"/base/3": "/base/v1/models/",
            b"/base/4": f"http://127.0.0.1:{upstream.port}/other",
            b"/base/5": "next",
        }[line]
        await connection.say(f"HTTP/1.1 307 T\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode())

    async with raw_upstream(script) as upstream, running_proxy(upstream.url + "/base") as port:
        found = []
        for number in b"12345":
            answer = await roundtrip(port, b"GET /%c HTTP/1.1\r\nHost: x\r\n%s\r\n" % (number, CLOSE))
            found += [line.partition(b": ")[2] for line in split(answer)[1] if line.startswith(b"location")]
    assert found == [
        b"/v1/models?a=1#x",
        b"http://elsewhere.example/base/v1",
        b"/v1/models/",
        f"http://127.0.0.1:{upstream.port}/other".encode(),
        b"next",
    ]


# -- framing that two servers could read differently ----------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-length", b"3"), (b"content-length", b"4")],
        [(b"content-length", b"3, 4")],
        [(b"content-length", b"3"), (b"transfer-encoding", b"chunked")],
        [(b"transfer-encoding", b"gzip, chunked")],
        [(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")],
        [(b"content-length", b"+3")],
        [(b"content-length", b"0x3")],
        [(b"content-length", b"4")],
        [(b"x", b"\xff")],
    ],
)
async def test_a_request_whose_length_is_not_clear_is_refused_and_not_forwarded(
    headers: list[tuple[bytes, bytes]],
) -> None:
    """In process: a server in front may refuse some of these before the proxy sees them."""
    notes: dict[str, Any] = {}
    sent = await asked(ProxyApp("http://127.0.0.1:1"), b"/v1/chat/completions", headers, b"abc", notes)
    assert sent[0]["status"] == 400
    assert json.loads(sent[1]["body"])["error"]["type"] == "invalid_request_error"
    assert (notes["upstream_attempted"], notes["response_source"]) == (False, "local")


@pytest.mark.parametrize("path", [b"*", b"http://x/", b"/a b", b"/a\r\nX: y", b"/\xc3\xa9", b"/a#b"])
async def test_a_path_that_cannot_stand_in_a_request_line_is_refused(path: bytes) -> None:
    sent = await asked(ProxyApp("http://127.0.0.1:1"), path, [], b"", {})
    assert sent[0]["status"] == 400


async def asked(
    app: ProxyApp, path: bytes, headers: list[tuple[bytes, bytes]], body: bytes, notes: dict[str, Any]
) -> list[Any]:
    """What an app sends for one POST, called in process."""
    sent: list[Any] = []
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        return await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": b"",
        "headers": headers,
        NOTES_KEY: notes,
    }
    try:
        await app(scope, receive, send)
    finally:
        await app.close()
    return sent


# -- an upstream that fails -----------------------------------------------------------------------------------------


async def test_an_upstream_that_is_not_there_is_a_502_in_the_openai_form() -> None:
    async with raw_upstream(answering()) as upstream:
        gone = upstream.url
    notes: dict[str, Any] = {}
    sent = await asked(ProxyApp(gone), b"/v1/chat/completions", [], b"", notes)
    assert sent[0]["status"] == 502
    error = json.loads(sent[1]["body"])["error"]
    assert (error["type"], error["code"]) == ("upstream_error", "upstream_unreachable")
    assert gone in error["message"]
    assert notes == {
        "upstream_attempted": True,
        "response_source": "local",
        "local_response_reason": "upstream_unreachable",
        "error_category": "connection",
    }


async def test_a_slow_first_byte_is_a_504_in_the_anthropic_form_and_the_call_is_given_up() -> None:
    async def script(connection: UpstreamConnection) -> None:
        await connection.head()
        await connection.closed()

    async with raw_upstream(script) as upstream, running_proxy(upstream.url, idle_timeout_s=1.0) as port:
        request = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n" + CLOSE + b"\r\n{}"
        status, _, body = split(await roundtrip(port, request))
        await upstream.connections[0].ended.wait()
    assert status == b"HTTP/1.1 504 Gateway Timeout"
    told = json.loads(body)
    assert (told["type"], told["error"]["type"]) == ("error", "timeout_error")


async def test_an_https_upstream_is_verified_by_the_authorities_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATES / "node.pem", CERTIFICATES / "node.key")
    request = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n"
    async with raw_upstream(answering(OK), tls) as upstream:
        assert upstream.url.startswith("https://")
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "stranger.pem"))
        async with running_proxy(upstream.url) as port:
            status, _, body = split(await roundtrip(port, request))
        assert status == b"HTTP/1.1 502 Bad Gateway"
        assert json.loads(body)["error"]["code"] == "upstream_unreachable"
        assert "CERTIFICATE_VERIFY_FAILED" in json.loads(body)["error"]["message"]
        assert [connection.heads for connection in upstream.connections if connection.heads] == []
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "authority.pem"))
        async with running_proxy(upstream.url) as port:
            status, _, body = split(await roundtrip(port, request))
    assert (status, body) == (b"HTTP/1.1 200 OK", b"ok")


async def test_an_upstream_that_hangs_up_before_it_answers_is_a_502() -> None:
    async def script(connection: UpstreamConnection) -> None:
        await connection.head()

    async with raw_upstream(script) as upstream, running_proxy(upstream.url) as port:
        answer = await roundtrip(
            port, b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n" + CLOSE + b"\r\n"
        )
    assert split(answer)[0] == b"HTTP/1.1 502 Bad Gateway"
    assert json.loads(split(answer)[2])["error"]["code"] == "upstream_disconnected"
    # Not tried again: the model may have been called.
    assert len(upstream.connections) == 1


@pytest.mark.parametrize("answer", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 777 Odd\r\nContent-Length: 0\r\n\r\n"])
async def test_what_is_no_http_answer_is_a_502(answer: bytes) -> None:
    async with raw_upstream(answering(answer)) as upstream, running_proxy(upstream.url) as port:
        got = await roundtrip(port, b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n")
    assert split(got)[0] == b"HTTP/1.1 502 Bad Gateway"


CUTS = {
    "content-length": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart",
    "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
    "inside a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\npart",
}


@pytest.mark.parametrize("name", CUTS)
async def test_a_body_that_is_cut_is_cut_for_the_client_too(name: str) -> None:
    async def script(connection: UpstreamConnection) -> None:
        await connection.head()
        await connection.say(CUTS[name])

    async with raw_upstream(script) as upstream, running_proxy(upstream.url) as port:
        # A keep-alive client: it is the server that has to close.
        answer = await roundtrip(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    _, lines, body = split(answer)
    if b"content-length: 100" in lines:
        assert body == b"part"
    else:
        assert body == b"4\r\npart\r\n"


async def broken(upstream: str, **settings: Any) -> tuple[UpstreamBroken, dict[str, Any]]:
    """How a call to an upstream that breaks off ends for the application around the proxy."""
    notes: dict[str, Any] = {}
    app = ProxyApp(upstream, ProxyConfig(**settings))
    with pytest.raises(UpstreamBroken) as raised:
        await asked(app, b"/v1/chat/completions", [], b"", notes)
    return raised.value, notes


async def test_what_surrounds_the_proxy_is_told_why_an_answer_broke() -> None:
    async def cut(connection: UpstreamConnection) -> None:
        await connection.head()
        await connection.say(CUTS["chunked"])

    async def reset(connection: UpstreamConnection) -> None:
        await connection.head()
        await connection.say(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\npart")
        connection.reset()

    async def silent(connection: UpstreamConnection) -> None:
        await connection.head()
        await connection.say(CUTS["chunked"])
        await connection.closed()

    found = []
    for script, idle_timeout_s in ((cut, 60.0), (reset, 60.0), (silent, 1.0)):
        async with raw_upstream(script) as upstream:
            error, notes = await broken(upstream.url, idle_timeout_s=idle_timeout_s)
            found.append(error.error_category)
            assert notes == {
                "upstream_attempted": True,
                "response_source": "upstream",
                "upstream_status_code": 200,
            }
    assert found == ["stream_truncated", "connection", "timeout"]


async def test_a_body_that_only_its_end_delimits_is_passed_on_whole() -> None:
    async def script(connection: UpstreamConnection) -> None:
        await connection.head()
        await connection.say(b"HTTP/1.0 200 OK\r\n\r\nall of it")

    async with raw_upstream(script) as upstream, running_proxy(upstream.url) as port:
        answer = await roundtrip(port, b"GET / HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n")
    assert split(answer)[2] == b"9\r\nall of it\r\n0\r\n\r\n"


# -- a client that goes, or is slow ---------------------------------------------------------------------------------


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_goes_ends_the_call_to_the_upstream_at_once(begun: bool) -> None:
    heard = asyncio.Event()

    async def script(connection: UpstreamConnection) -> None:
        await connection.head()
        if begun:
            await connection.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n")
        heard.set()
        await connection.closed()

    async with raw_upstream(script) as upstream, running_proxy(upstream.url) as port, client_of(port) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        await heard.wait()
        if begun:
            await client.head()
        client.close()
        async with asyncio.timeout(60):
            await upstream.connections[0].ended.wait()


async def test_a_client_that_goes_within_its_request_ends_the_call_too() -> None:
    async def script(connection: UpstreamConnection) -> None:
        await connection.head()
        await connection.closed()

    async with raw_upstream(script) as upstream, running_proxy(upstream.url) as port, client_of(port) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{}")
        async with upstream.arrived:
            await upstream.arrived.wait_for(lambda: len(upstream.connections) == 1)
        client.close()
        async with asyncio.timeout(60):
            await upstream.connections[0].ended.wait()


async def test_an_upstream_that_takes_no_more_of_a_request_is_a_504() -> None:
    never = asyncio.Event()

    async def script(connection: UpstreamConnection) -> None:
        await connection.head()
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await never.wait()

    async with raw_upstream(script) as upstream, running_proxy(upstream.url, idle_timeout_s=0.3) as port:
        async with client_of(port) as client:
            await client.send(b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n")
            writing = asyncio.create_task(_flood(client.writer))
            status, _ = await client.head()
            writing.cancel()
        never.set()
    assert status == 504


async def _flood(writer: asyncio.StreamWriter) -> None:
    try:
        for _ in range(1_500):
            writer.write(b"x" * (1 << 16))
            await writer.drain()
    except ConnectionError:
        pass


async def test_a_slow_client_slows_the_upstream_down() -> None:
    """The upstream offers far more than buffers hold; it gets stuck, and goes on once the client reads."""
    sent = 0
    total = 64 << 20
    stuck = asyncio.Event()

    async def script(connection: UpstreamConnection) -> None:
        nonlocal sent
        await connection.head()
        await connection.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        while sent < total:
            connection.writer.write(b"x" * (1 << 18))
            sent += 1 << 18
            try:
                async with asyncio.timeout(0.5):
                    await connection.writer.drain()
            except TimeoutError:
                stuck.set()
                await connection.writer.drain()

    async with raw_upstream(script) as upstream, running_proxy(upstream.url) as port, client_of(port) as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(60):
            await stuck.wait()
        assert sent < total / 2
        await client.head()
        left = total
        while left:
            left -= len(await client.exactly(min(left, 1 << 20)))
    assert sent == total


async def test_websockets_are_declined_and_lifespans_answered() -> None:
    app = ProxyApp("http://127.0.0.1:1")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    def receiving(*messages: Any) -> Any:
        left = list(messages)

        async def receive() -> Any:
            return left.pop(0)

        return receive

    await app({"type": "websocket"}, receiving({"type": "websocket.connect"}), send)
    await app({"type": "lifespan"}, receiving({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}), send)
    assert sent == ["websocket.close", "lifespan.startup.complete", "lifespan.shutdown.complete"]


# -- where it forwards to -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("10.0.0.7:8000", "does not begin with http"),
        ("ftp://x", "does not begin with http"),
        ("http://", "names no host"),
        ("http://:80", "names no host"),
        ("http://x:99999", "[Pp]ort"),
        ("http://x:0", "port 0"),
        ("http://x/?a=1", "no query"),
        ("http://x/#a", "no query"),
        ("http://x/v1", "ends in /v1"),
        ("http://x/api/v1/", "ends in /v1"),
        ("http://x/a b", "percent-encoded"),
        ("http://exa mple/", "characters that a host cannot have"),
        ("", "does not begin with http"),
    ],
)
def test_an_upstream_that_cannot_be_is_refused_with_the_reason(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_upstream(url)


def test_credentials_in_an_upstream_are_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="credentials") as raised:
        parse_upstream("http://user:hunter2@x")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("HTTP://Model.Example:80/", "http://model.example"),
        ("https://x:443/a/", "https://x/a"),
        ("https://x:80", "https://x:80"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_an_upstream_is_put_in_its_plainest_form(url: str, plain: str) -> None:
    assert parse_upstream(url).url == plain
