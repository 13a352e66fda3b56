"""Where an app that does not know of the prefix may send its caller."""

from __future__ import annotations

import asyncio
from urllib.parse import urljoin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_capture.asgi import CaptureMiddleware
from gym_capture.asgi.redirect import Redirects
from gym_capture.model.rows import ReleaseRow
from tests.asgi.server_side import Replaying, ServerSide, body, http_scope, start
from tests.client.harness import harness
from tests.client.virtual_time import run_virtual

PREFIX = "/ng-rollout/7-0~1"


def redirects(
    root: str = "", path: str = "/v1/chat/completions/", host: str = "server:8000", scheme: str = "http"
) -> Redirects:
    return Redirects(scheme, host, root, root + PREFIX, path)


@pytest.mark.parametrize(
    ("location", "followed"),
    [
        ("/v1/chat/completions", f"{PREFIX}/v1/chat/completions"),
        ("/", f"{PREFIX}/"),
        ("/v1/x?a=/b#c", f"{PREFIX}/v1/x?a=/b#c"),
        ("/v1/x?", f"{PREFIX}/v1/x?"),
        ("http://server:8000/v1/x%20y", f"http://server:8000{PREFIX}/v1/x%20y"),
        ("HTTP://SERVER:8000/v1/x", f"HTTP://SERVER:8000{PREFIX}/v1/x"),
        ("http://server:8000", f"http://server:8000{PREFIX}"),
        ("http://server:8000?a=b", f"http://server:8000{PREFIX}?a=b"),
        ("//server:8000/v1/x", f"//server:8000{PREFIX}/v1/x"),
        # Relative ones are resolved under the prefix by the caller, unless they lead out of it.
        ("x", "x"),
        ("../responses", "../responses"),
        ("?a=b", "?a=b"),
        ("#part", "#part"),
        ("../../../../../v1/x", f"{PREFIX}/v1/x"),
        ("/../../v1/x", f"{PREFIX}/v1/x"),
        # An app that knows of it.
        (f"{PREFIX}/v1/x", f"{PREFIX}/v1/x"),
        (f"http://server:8000{PREFIX}/v1/x", f"http://server:8000{PREFIX}/v1/x"),
    ],
)
def test_redirects_within_the_app_get_the_prefix_back(location: str, followed: str) -> None:
    assert redirects().follow(location) == followed


@pytest.mark.parametrize(
    "location",
    [
        "http://other/v1/x",
        "http://server/v1/x",
        "http://server:8001/v1/x",
        "https://server:8000/v1/x",
        "http://user@server:8000/v1/x",
        "//other/v1/x",
        "mailto:someone",
        "http:/v1/x",
        "http://[broken/v1",
        "/\\other/v1/x",
        "/v1/x\r\nSet-Cookie: a=b",
        " /v1/x",
    ],
)
def test_redirects_elsewhere_and_strange_ones_stay(location: str) -> None:
    assert redirects().follow(location) is None


def test_the_port_that_a_scheme_implies_makes_no_other_origin() -> None:
    assert redirects(host="server").follow("http://server:80/x") == f"http://server:80{PREFIX}/x"
    assert redirects(host="server:443", scheme="https").follow("https://server/x") == f"https://server{PREFIX}/x"
    assert redirects(host="[::1]:8000").follow("http://[::1]:8000/x") == f"http://[::1]:8000{PREFIX}/x"
    assert redirects(host="[::1]").follow("http://[::1]:81/x") is None


def test_of_a_mounted_app_only_what_lies_below_the_mount_is_its_own() -> None:
    mounted = redirects(root="/api")
    assert mounted.follow("/api/v1/x") == f"/api{PREFIX}/v1/x"
    assert mounted.follow("/api") == f"/api{PREFIX}"
    assert mounted.follow("http://server:8000/api/v1/x") == f"http://server:8000/api{PREFIX}/v1/x"
    assert mounted.follow("/login") is None
    assert mounted.follow("/apis/v1/x") is None
    assert mounted.follow("../x") == "../x"


@given(st.text(alphabet="./ab?#:%2E\\@ \t", max_size=24))
def test_whatever_is_followed_stays_under_the_prefix(location: str) -> None:
    followed = redirects().follow(location)
    if followed is not None:
        asked = f"http://server:8000{PREFIX}/v1/chat/completions/"
        assert urljoin(asked, followed).startswith(f"http://server:8000{PREFIX}")


@pytest.mark.parametrize(
    ("location", "sent", "reason"),
    [
        (b"/v1/chat/completions", f"{PREFIX}/v1/chat/completions".encode(), ""),
        (b"http://server:8000/v1/x", f"http://server:8000{PREFIX}/v1/x".encode(), ""),
        (b"http://other/v1/x", b"http://other/v1/x", "unobserved"),
        (b"/caf\xe9", f"{PREFIX}/caf".encode() + b"\xe9", ""),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat/completions/", "/v1/models"])
def test_a_redirect_within_the_app_is_no_call_and_one_elsewhere_is_missed_evidence(
    path: str, location: bytes, sent: bytes, reason: str
) -> None:
    async def scenario() -> None:
        async with harness() as made:
            head = start([(b"X-A", b"1"), (b"Location", location), (b"x-b", b"2")], 307)
            app = Replaying(head, body(b""))
            server = ServerSide()
            method = "GET" if path.endswith("models") else "POST"
            await made.client.clear(["7-0"])
            await server.run(CaptureMiddleware(app, made.client), http_scope(PREFIX + path, method=method))
            assert server.sent[0] == start([(b"X-A", b"1"), (b"Location", sent), (b"x-b", b"2")], 307)
            rows = [row.reason for row in made.owner.sent_rows() if isinstance(row, ReleaseRow)]
            assert rows == ([] if method == "GET" else [reason])
            assert made.owner.exchanges("7-0") == []

    run_virtual(scenario())


def test_a_request_without_a_host_is_known_by_the_servers_address() -> None:
    async def scenario() -> None:
        async with harness() as made:
            app = Replaying(start([(b"location", b"http://127.0.0.1:8000/x")], 308), body(b""))
            for server_address, sent in (
                (("127.0.0.1", 8000), b"http://127.0.0.1:8000/ng-rollout/7-0/x"),
                (None, b"http://127.0.0.1:8000/x"),
                (("/socket", None), b"http://127.0.0.1:8000/x"),
            ):
                server = ServerSide()
                scope = {**http_scope("/ng-rollout/7-0/y"), "headers": [], "server": server_address}
                await server.run(CaptureMiddleware(app, made.client), scope)
                assert server.sent[0]["headers"] == [(b"location", sent)]

    run_virtual(asyncio.wait_for(scenario(), 60.0))
