"""Hostile HTTP at a capturing proxy: whatever reaches the model under a rollout is captured, or the rollout says so."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_capture.asgi.middleware import CaptureMiddleware
from gym_capture.asgi.proxy_app import ProxyApp
from gym_capture.asgi.proxy_server import ProxyServer
from gym_capture.config import ProxyConfig
from gym_capture.recording.routes import find_route
from gym_capture.storage.store import CaptureStore
from tests.asgi.raw_http import WITHIN_S, UpstreamConnection, client_of, raw_upstream
from tests.asgi.served_app import Run, a_run

BODY = b'{"n":1}'
CHUNKED = b"7\r\n" + BODY + b"\r\n0\r\n\r\n"
ANSWER = b'{"id":"r","choices":[]}'
CHAT = b"/ng-rollout/%b/v1/chat/completions"
TARGET = CHAT % b"r-0"
LENGTH = b"Content-Length: 7\r\n"
TE = b"Transfer-Encoding: chunked\r\n"


def post(
    target: bytes, headers: bytes = LENGTH, body: bytes = BODY, *, version: bytes = b"1.1", close: bool = True
) -> bytes:
    """A request; the connection is closed after its answer."""
    last = b"Connection: close\r\n" if close else b""
    return b"POST %b HTTP/%b\r\nHost: x\r\n%b%b\r\n%b" % (target, version, headers, last, body)


NEXT = post(CHAT % b"smuggled-0")
"""What follows a request whose end is unclear: nobody may take it for a request of its own, or part of one."""

REFUSED = {
    "both framings": post(TARGET, LENGTH + TE, CHUNKED),
    "both framings, the other way round": post(TARGET, TE + LENGTH, CHUNKED),
    "both, chunked by a tab": post(TARGET, LENGTH + b"Transfer-Encoding:\tchunked\r\n", CHUNKED),
    "both, a vertical tab": post(TARGET, LENGTH + b"Transfer-Encoding: \x0bchunked\r\n"),
    "both, a space before the colon": post(TARGET, LENGTH + b"Transfer-Encoding : chunked\r\n", CHUNKED),
    "an unknown coding": post(TARGET, b"Transfer-Encoding: xchunked\r\n", CHUNKED),
    "identity and a length": post(TARGET, b"Transfer-Encoding: identity\r\n" + LENGTH),
    "chunked is not last": post(TARGET, b"Transfer-Encoding: chunked, identity\r\n", CHUNKED),
    "chunked twice": post(TARGET, TE + TE, CHUNKED),
    "a coding before chunked": post(TARGET, b"Transfer-Encoding: gzip, chunked\r\n", CHUNKED),
    "two lengths": post(TARGET, LENGTH + b"Content-Length: 8\r\n"),
    "a length twice": post(TARGET, LENGTH + LENGTH),
    "a list of lengths": post(TARGET, b"Content-Length: 7, 7\r\n"),
    "a signed length": post(TARGET, b"Content-Length: +7\r\n"),
    "a negative length": post(TARGET, b"Content-Length: -7\r\n"),
    "a hexadecimal length": post(TARGET, b"Content-Length: 0x7\r\n"),
    "a length beyond any": post(TARGET, b"Content-Length: 99999999999999999999\r\n"),
    "a folded line": post(TARGET, b"X-A: b\r\n c\r\n" + LENGTH),
    "a folded framing": post(TARGET, b"X-A: b\r\n Transfer-Encoding: chunked\r\n" + LENGTH),
    "lines that end in LF": post(TARGET).replace(b"\r\n", b"\n"),
    "a bare CR": post(TARGET, b"X-A: b\rTransfer-Encoding: chunked\r\n" + LENGTH),
    "a NUL": post(TARGET, b"X-A: b\x00c\r\n" + LENGTH),
    "no chunk size": post(TARGET, TE, CHUNKED.replace(b"7", b"zz", 1)),
    "a negative chunk": post(TARGET, TE, b"-" + CHUNKED),
    "a chunk in 0x": post(TARGET, TE, b"0x" + CHUNKED),
    "a chunk size that overflows": post(TARGET, TE, b"1fffffffffffffff" + CHUNKED),
    "chunks in LF": post(TARGET, TE, CHUNKED.replace(b"\r\n", b"\n")),
    "a chunk without its end": post(TARGET, TE, b"7\r\n" + BODY + b"XX0\r\n\r\n"),
    "a huge target": post(TARGET + b"?" + b"a" * 70_000),
    "a method that is none": post(TARGET).replace(b"POST", b"post", 1),
    "a path without a slash": post(TARGET[1:]),
    "bytes beyond ASCII in a path": post(TARGET + "é".encode()),
    "an authority": post(b"x:80").replace(b"POST", b"CONNECT", 1),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}

CAPTURED = {
    "plain": post(TARGET),
    "an absolute target": post(b"http://x" + TARGET),
    "an absolute target of somebody else": post(b"http://elsewhere:99" + TARGET),
    "a query": post(TARGET + b"?a=/ng-rollout/other-0/v1"),
    "a fragment": post(TARGET + b"#f"),
    "letters that are encoded": post(TARGET.replace(b"ng-", b"%6eg%2D")),
    "a slash that is encoded, behind the id": post(TARGET.replace(b"chat/", b"chat%2F")),
    "slashes that are doubled, behind the id": post(TARGET.replace(b"/v1/", b"//v1//")),
    "chunks": post(TARGET, TE, CHUNKED),
    "chunks with an extension": post(TARGET, TE, CHUNKED.replace(b"7", b"7;a=b", 1)),
    "a Connection header that names the length": post(TARGET, LENGTH + b"Connection: content-length\r\n"),
    "HTTP/1.0": post(TARGET, version=b"1.0"),
    "another method in a header": post(TARGET, LENGTH + b"X-HTTP-Method-Override: GET\r\n"),
    "a header of 70 KB": post(TARGET, b"X-A: " + b"a" * 70_000 + b"\r\n" + LENGTH),
}

RESEMBLING = [
    b"//ng-rollout/r-0/v1/chat/completions",
    b"///ng-rollout/r-0/v1/chat/completions",
    b"/./ng-rollout/r-0/v1/chat/completions",
    b"/x/../ng-rollout/r-0/v1/chat/completions",
    b"/%2e%2e/ng-rollout/r-0/v1/chat/completions",
    b"/%2Fng-rollout/r-0/v1/chat/completions",
    b"/ng-rollout//r-0/v1/chat/completions",
    b"/ng-rollout/../v1/chat/completions",
    b"/ng-rollout%2fr-0/v1/chat/completions",
    b"/ng-rollout%2Fr-0%2Fv1%2Fchat%2Fcompletions",
    b"/ng-rollout%5cr-0/v1/chat/completions",
    b"/ng-rollout%252fr-0/v1/chat/completions",
    b"/%256eg-rollout/r-0/v1/chat/completions",
    b"/NG-ROLLOUT/r-0/v1/chat/completions",
    b"/Ng%2DRollout/r-0/v1/chat/completions",
    b"/ng-rollout\\r-0\\v1\\chat\\completions",
    b"/ng-rollout;x/r-0/v1/chat/completions",
    b"/ng-rollout%20/r-0/v1/chat/completions",
    b"/ng-rollout./r-0/v1/chat/completions",
    b"/%00ng-rollout/r-0/v1/chat/completions",
    b"/ng-rollout",
    b"/ng-rollout?/r-0/v1/chat/completions",
    b"/ng-rollout/r-0;x/v1/chat/completions",
    b"/ng-rollout/r-0%2f..%2fother/v1/chat/completions",
    b"/ng-rollout/r-0%0d%0aX-A:b/v1/chat/completions",
    b"/ng-rollout/" + b"a" * 10_000 + b"/v1/chat/completions",
]

UNSEEN = [
    b"/ng-rollout/r-0/../../v1/chat/completions",
    b"/ng-rollout/r-0/%2e%2e/%2e%2e/v1/chat/completions",
    b"/ng-rollout/r-0/x/../v1/chat/completions",
    b"/ng-rollout/r-0/health/../v1/chat/completions",
    b"/ng-rollout/r-0/quiet/../v1/chat/completions",
    b"/ng-rollout/r-0/quiet/%2e%2e/v1/chat/completions",
    b"/ng-rollout/r-0/v1/messages/count_tokens/../../chat/completions",
    b"/ng-rollout/r-0/V1/Chat/Completions",
    b"/ng-rollout/r-0/v1/chat/completions/",
    b"/ng-rollout/r-0/v1/chat/completions;a=b",
    b"/ng-rollout/r-0/v1/chat/completions%20",
]
"""Of a rollout, and of no dialect as they stand: a lenient server may call its model."""


class Site:
    """A capturing proxy, its model server, and what each side saw."""

    def __init__(self, run: Run, port: int, asked: list[bytes]) -> None:
        self._run = run
        self._port = port
        self.asked = asked

    async def say(self, data: bytes, answers: int = 1) -> list[int]:
        """Send bytes; the status of each answer, until the connection ends."""
        got = b""
        async with client_of(self._port) as client, asyncio.timeout(WITHIN_S):
            try:
                await client.send(data)
                while len(re.findall(rb"HTTP/1\.1 [2-5]", got)) < answers and (
                    piece := await client.reader.read(65536)
                ):
                    got += piece
                if answers == 1:
                    got += await client.reader.read()
            except ConnectionError:
                pass
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d\d\d)", got)]

    async def captured(self) -> dict[str, list[Any]]:
        """The requests on disk, by rollout."""
        assert await self._run.client.quiesce(None, timeout_s=WITHIN_S)
        store = CaptureStore(self._run.owner.directory)
        return {rollout: [each["request"] for each in store.read(rollout)] for rollout in store.rollout_ids()}

    def incomplete(self) -> set[str]:
        store = CaptureStore(self._run.owner.directory)
        return {rollout for rollout in store.rollout_ids() if store.is_incomplete(rollout)}


@asynccontextmanager
async def a_site(directory: Path) -> AsyncIterator[Site]:
    asked: list[bytes] = []

    async def serve(connection: UpstreamConnection) -> None:
        while True:
            head = (await connection.head()).lower()
            if b"content-length: " in head:
                length = int(head.partition(b"content-length: ")[2].split()[0])
                body = await connection.reader.readexactly(length)
            else:
                body = await connection.reader.readexactly(len(CHUNKED)) if b"chunked" in head else b""
            asked.append(head.split(b"\r\n")[0])
            assert BODY in body or not body
            await connection.say(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (len(ANSWER), ANSWER)
            )

    async with a_run(directory) as run, raw_upstream(serve) as upstream:
        forward = ProxyApp(upstream.url, ProxyConfig(upstream=upstream.url))
        server = ProxyServer(CaptureMiddleware(forward, run.client, non_generating=["/quiet/*"]), drain_s=0.0)
        await server.start("127.0.0.1", 0)
        try:
            yield Site(run, server.address[1], asked)
        finally:
            server.stop()
            await server.ended()
            await forward.close()


async def test_a_request_whose_end_is_unclear_is_refused_with_all_that_follows_it(tmp_path: Path) -> None:
    async with a_site(tmp_path / "captures") as site:
        answers = {name: await site.say(data + NEXT) for name, data in REFUSED.items()}
        captured = await site.captured()
    assert answers == {name: [400] for name in REFUSED}
    assert site.asked == []
    assert "smuggled-0" not in captured


async def test_a_request_in_an_unusual_form_is_captured_as_the_model_got_it(tmp_path: Path) -> None:
    async with a_site(tmp_path / "captures") as site:
        answers = {name: await site.say(data) for name, data in CAPTURED.items()}
        captured = await site.captured()
    assert answers == {name: [200] for name in CAPTURED}
    assert len(site.asked) == len(CAPTURED)
    assert all(b"ng-rollout/r-0" not in unquote(line.decode()).encode() for line in site.asked)
    assert captured == {"r-0": [{"n": 1}] * len(CAPTURED)}
    assert site.incomplete() == set()


async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(tmp_path: Path) -> None:
    async with a_site(tmp_path / "captures") as site:
        assert await site.say(post(TARGET, LENGTH + b"Expect: 100-continue\r\n")) == [100, 200]
        assert await site.captured() == {"r-0": [{"n": 1}]}
    assert len(site.asked) == 1


async def test_requests_in_a_row_on_one_connection_are_captured_each_under_its_own_rollout(tmp_path: Path) -> None:
    rollouts = [b"a-0", b"b-0", b"c-0", b"d-0"]
    data = b"".join(post(CHAT % rollout, close=False) for rollout in rollouts)
    async with a_site(tmp_path / "captures") as site:
        assert await site.say(data, answers=4) == [200] * 4
        assert await site.captured() == {rollout.decode(): [{"n": 1}] for rollout in rollouts}


async def test_a_path_that_a_lenient_server_would_read_as_a_rollouts_is_refused(tmp_path: Path) -> None:
    async with a_site(tmp_path / "captures") as site:
        answers = {path: await site.say(post(path)) for path in RESEMBLING}
        captured = await site.captured()
    assert answers == {path: [400] for path in RESEMBLING}
    assert (site.asked, captured) == ([], {})


async def test_a_path_under_a_rollout_that_leads_who_knows_where_marks_it(tmp_path: Path) -> None:
    async with a_site(tmp_path / "captures") as site:
        for number, path in enumerate(UNSEEN):
            assert await site.say(post(path.replace(b"r-0", b"r-%d" % number))) == [200]
        await site.captured()
    assert len(site.asked) == len(UNSEEN)
    assert site.incomplete() == {f"r-{number}" for number in range(len(UNSEEN))}


SEGMENT = st.sampled_from(["ng-rollout", "NG-Rollout", "r-0", "v1", "..", ".", "", "x", "ng-rollout;a"])
SLASH = st.sampled_from(["/", "//", "\\", "%2f", "%5C", "%252F"])


@st.composite
def paths(draw: st.DrawFn) -> str:
    """Paths of odd segments, with any of their characters encoded."""
    path = "/"
    for segment in draw(st.lists(SEGMENT, min_size=1, max_size=5)):
        encoded = draw(st.integers(0, 3))
        shown = "".join(f"%{ord(each):02x}" if draw(st.integers(0, 3)) < encoded else each for each in segment)
        path += shown + draw(SLASH)
    return path


def read_leniently(path: str) -> list[str]:
    """The segments that the most forgiving of servers makes of a path."""
    while unquote(path) != path:
        path = unquote(path)
    segments: list[str] = []
    for segment in re.split(r"[/\\]+", path.lower()):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment.split(";")[0])
    return segments


@given(paths())
def test_no_path_that_can_be_read_as_a_rollouts_passes_as_none(path: str) -> None:
    if read_leniently(path)[:1] == ["ng-rollout"]:
        assert find_route(path) is not None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/ng-rollouts/x", "/a/ng-rollout/x", "/x%2Fng-rollout/r-0"])
def test_what_only_mentions_the_prefix_passes(path: str) -> None:
    assert find_route(path) is None
