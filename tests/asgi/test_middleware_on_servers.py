"""The middleware in Starlette and FastAPI apps, on a real server, with real clients and a real owner."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fastapi
import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from gym_capture.asgi import CaptureMiddleware, current_rollout_id
from gym_capture.client.claim import ClaimHandle
from tests.asgi.raw_http import client_of, roundtrip
from tests.asgi.served_app import a_run, served
from tests.recording.exchanges import DONE, KEY, REASSEMBLED, REQUEST, RESPONSE, STREAM, delta

CHAT = "/ng-rollout/7-0~0/v1/chat/completions"


def chat_of(port: int, rollout: str = "7-0") -> str:
    return f"http://127.0.0.1:{port}/ng-rollout/{rollout}/v1/chat/completions"


async def test_a_fastapi_app_is_captured_in_async_and_threaded_handlers(tmp_path: Path) -> None:
    async with a_run(tmp_path / "capture") as run, httpx.AsyncClient() as http:
        app = fastapi.FastAPI()
        app.add_middleware(CaptureMiddleware, capture=run.client, model_ref={"type": "model", "name": "policy"})
        started: list[bool] = []

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            assert await request.body() == REQUEST
            assert current_rollout_id() == "7-0"

            async def events() -> AsyncIterator[bytes]:
                for event in STREAM:
                    assert current_rollout_id() == "7-0"
                    yield event

            return StreamingResponse(events(), media_type="text/event-stream")

        @app.post("/{segment}/v1/messages")
        def messages(segment: str, body: dict[str, Any]) -> dict[str, Any]:
            started.append(True)
            return {"id": segment, "rollout": current_rollout_id(), "content": [], "echo": body}

        @app.post("/v1/responses")
        async def responses() -> Response:
            raise fastapi.HTTPException(429, "slow down")

        async with served(app) as port:
            base = f"http://127.0.0.1:{port}/ng-rollout/7-0"
            streamed = await http.post(f"{base}/v1/chat/completions", content=REQUEST)
            assert (streamed.content, streamed.headers["content-type"]) == (
                b"".join(STREAM),
                "text/event-stream; charset=utf-8",
            )
            threaded = await http.post(f"{base}/training-token-capture/v1/messages", json={"a": 1})
            assert threaded.json()["rollout"] == "7-0"
            assert (await http.post(f"{base}/v1/responses", json={})).status_code == 429
            untouched = await http.post(f"http://127.0.0.1:{port}/x/v1/messages", json={})
            assert (untouched.json()["rollout"], current_rollout_id()) == (None, None)
        told = await run.exchanges("7-0")
        assert [(call["dialect"], call["status_code"], call["error_category"]) for call in told] == [
            ("chat", 200, None),
            ("messages", 200, None),
            ("responses", 429, "rate_limit"),
        ]
        assert told[0]["response"] == REASSEMBLED
        assert told[0]["latency_ttft_ms"] <= told[0]["latency_ms"]
        assert (told[1]["request"], told[1]["response"]) == ({"a": 1}, threaded.json())
        assert told[2]["response"] == {"detail": "slow down"}
        assert all(call["model_ref"]["name"] == "policy" for call in told)


async def test_the_terminal_event_arrives_once_the_exchange_is_on_disk(tmp_path: Path, monkeypatch: Any) -> None:
    held, entered = asyncio.Event(), asyncio.Event()
    leave = ClaimHandle.__aexit__

    async def held_back(*arguments: Any) -> None:
        entered.set()
        await held.wait()
        await leave(*arguments)

    monkeypatch.setattr(ClaimHandle, "__aexit__", held_back)

    async def stream(request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield b"".join(STREAM)

        return StreamingResponse(events(), media_type="text/event-stream")

    async with a_run(tmp_path / "capture") as run:
        app = Starlette(routes=[Route("/v1/chat/completions", stream, methods=["POST"])])
        async with served(CaptureMiddleware(app, run.client)) as port, client_of(port) as client:
            head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(REQUEST))
            await client.send(head + REQUEST)
            assert (await client.head())[0] == 200
            before = b"".join(STREAM[:2])
            first = b"%x\r\n%s\r\n" % (len(before), before)
            assert await client.exactly(len(first)) == first
            await entered.wait()
            rest = asyncio.ensure_future(client.exactly(len(DONE) + 5))
            assert not (await run.client.quiesce("7-0", timeout_s=0.0))
            assert not rest.done()
            held.set()
            assert await rest == b"%x\r\n%s\r\n" % (len(DONE), DONE)
            await client.exactly(len(b"0\r\n\r\n"))
            assert len(await run.exchanges("7-0")) == 1


async def test_a_client_that_hangs_up_leaves_its_partial_stream(tmp_path: Path) -> None:
    async def stream(request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield delta("hel")
            await asyncio.Event().wait()

        return StreamingResponse(events(), media_type="text/event-stream")

    async with a_run(tmp_path / "capture") as run:
        app = Starlette(routes=[Route("/v1/chat/completions", stream, methods=["POST"])])
        async with served(CaptureMiddleware(app, run.client)) as port:
            for _ in range(5):
                async with client_of(port) as client:
                    head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(REQUEST))
                    await client.send(head + REQUEST)
                    await client.head()
                    await client.exactly(len(delta("hel")))
            told = await run.exchanges("7-0")
        assert [call["error_category"] for call in told] == ["cancelled"] * 5
        assert {call["response"]["choices"][0]["message"]["content"] for call in told} == {"hel"}
        assert {call["request"]["model"] for call in told} == {"policy"}


async def test_a_handler_that_raises_is_captured_and_answered_as_ever(tmp_path: Path) -> None:
    async def broken(request: Request) -> Response:
        await request.body()
        raise ValueError("boom")

    async with a_run(tmp_path / "capture") as run, httpx.AsyncClient() as http:
        capture = Middleware(CaptureMiddleware, capture=run.client)
        app = Starlette(routes=[Route("/v1/chat/completions", broken, methods=["POST"])], middleware=[capture])
        async with served(app) as port:
            answer = await http.post(chat_of(port), content=REQUEST)
            assert (answer.status_code, answer.text) == (500, "Internal Server Error")
            (call,) = await run.exchanges("7-0")
        assert (call["error_category"], call["status_code"]) == ("exception", None)
        assert call["request"]["model"] == "policy"


async def test_mounted_apps_redirects_and_lifespan_work_as_ever(tmp_path: Path) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        seen.append("started")
        yield
        seen.append("ended")

    async def chat(request: Request) -> Response:
        seen.append(request.url.path)
        return Response(RESPONSE, media_type="application/json")

    async with a_run(tmp_path / "capture") as run, httpx.AsyncClient() as http:
        capture = Middleware(CaptureMiddleware, capture=run.client)
        inner = Starlette(
            routes=[Route("/v1/chat/completions", chat, methods=["POST"])],
            middleware=[capture],
        )
        app = Starlette(routes=[Mount("/api", inner)], lifespan=lifespan)
        async with served(app) as port:
            base = f"http://127.0.0.1:{port}/api/ng-rollout/7-0/v1/chat/completions"
            answer = await http.post(base, content=REQUEST)
            assert answer.content == RESPONSE
            moved = await http.post(f"{base}/", content=REQUEST)
            assert (moved.status_code, moved.headers["location"]) == (307, base)
            followed = await http.post(f"{base}/", content=REQUEST, follow_redirects=True)
            assert followed.content == RESPONSE
            assert (await http.post(base.replace("chat", "nothing"), content=REQUEST)).status_code == 404
            assert (await http.get(base)).status_code == 405
        assert seen == ["started", "/api/v1/chat/completions", "/api/v1/chat/completions", "ended"]
        assert len(await run.exchanges("7-0")) == 2
        record = await run.client.merge({"_ng_rollout_id": "7-0"})
        assert "gaps" not in record["ng_model_call_capture"]


async def test_encoded_bodies_pass_as_they_are_and_are_recorded_as_what_they_mean(tmp_path: Path) -> None:
    async def chat(request: Request) -> Response:
        assert await request.body() == gzip.compress(REQUEST, mtime=0)
        if request.query_params.get("stream"):

            async def events() -> AsyncIterator[bytes]:
                for event in STREAM:
                    yield event

            return StreamingResponse(events(), media_type="text/event-stream")
        return JSONResponse({"id": "r1", "text": "naïve " * 1000})

    async with a_run(tmp_path / "capture") as run, httpx.AsyncClient() as http:
        # Starlette's own leaves event streams alone, so they are called something else until behind it.
        squeezed = Starlette(
            routes=[Route("/v1/chat/completions", chat, methods=["POST"])],
            middleware=[Middleware(GZipMiddleware, minimum_size=0)],
        )
        async with served(CaptureMiddleware(squeezed, run.client)) as port:
            for query in ("", "?stream=1"):
                answer = await http.post(
                    chat_of(port) + query,
                    content=gzip.compress(REQUEST, mtime=0),
                    headers={"content-encoding": "gzip", "accept-encoding": "gzip"},
                )
                assert answer.status_code == 200
            (whole, stream) = await run.exchanges("7-0")
        assert (whole["request"]["model"], whole["response"]) == ("policy", {"id": "r1", "text": "naïve " * 1000})
        assert (stream["response"], stream["error_category"]) == (REASSEMBLED, None)


async def test_a_body_of_100_megabytes_is_counted_and_not_kept(tmp_path: Path) -> None:
    piece, pieces = 1 << 20, 100

    async def chat(request: Request) -> Response:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
        return PlainTextResponse(str(size))

    async def upload() -> AsyncIterator[bytes]:
        for _ in range(pieces):
            yield bytes(piece)

    async with a_run(tmp_path / "capture") as run, httpx.AsyncClient(timeout=60.0) as http:
        app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
        async with served(CaptureMiddleware(app, run.client, max_body_bytes=4 << 20)) as port:
            tracemalloc.start()
            try:
                chunked = await http.post(chat_of(port), content=upload())
                announced = await http.post(
                    chat_of(port), content=upload(), headers={"content-length": str(piece * pieces)}
                )
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert chunked.text == announced.text == str(piece * pieces)
            told = await run.exchanges("7-0")
        assert peak < 24 << 20
        for call in told:
            assert (call["request"], call["request_bytes"]) == (None, piece * pieces)
            assert (call["status_code"], call["error_category"]) == (200, "capture_parse_error")
        assert len(told) == 2


async def test_hostile_requests_are_answered_and_hurt_nobody(tmp_path: Path) -> None:
    async def chat(request: Request) -> Response:
        await request.body()
        return Response(RESPONSE, media_type="application/json")

    def raw(path: bytes, body: bytes = REQUEST, headers: bytes = b"") -> bytes:
        return (
            b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n"
            % (path, len(body), headers)
            + body
        )

    async with a_run(tmp_path / "capture") as run:
        app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
        async with served(CaptureMiddleware(app, run.client)) as port:
            tokens = [b"..", b"%2e%2e", b"..%2f..%2fetc", b"a%2fb", b"", b"a" * 10_240, b"7-0~x", b"%00", b"a%0d%0ab"]
            for token in tokens:
                answer = await roundtrip(port, raw(b"/ng-rollout/%s/v1/chat/completions" % token))
                assert answer.split(b"\r\n", 1)[0] == b"HTTP/1.1 400 Bad Request"
                assert len(answer) < 1000
                assert b"a\r\nb" not in answer
            odd = [
                raw(CHAT.encode(), b"\x00\xff not json"),
                raw(CHAT.encode(), b""),
                raw(CHAT.encode(), b"[" * 100_000),
                raw(CHAT.encode(), headers=b"Content-Encoding: br\r\nContent-Encoding: made-up\r\n"),
                raw(CHAT.encode(), headers=b"Content-Type: text/plain\r\nContent-Type: \xff\r\n"),
                raw(
                    CHAT.encode(),
                    headers=b"X-Client-Session-Id: a\r\nX-Client-Session-Id: b\r\nx-client-session-id: \xfe\r\n",
                ),
            ]
            for request in odd:
                assert (await roundtrip(port, request)).endswith(RESPONSE)
            told = await run.exchanges("7-0")
        unreadable = "capture_parse_error"
        assert [call["error_category"] for call in told] == [unreadable] * 4 + [None, None]
        assert told[0]["request_raw"] == "\x00\\xff not json"
        assert told[2]["request_raw"] == "[" * 100_000
        assert told[5]["client_session_id"] == "a"
        assert os.listdir(tmp_path) == ["capture"]


async def test_credentials_are_nowhere_on_disk_also_when_the_server_echoes_them(tmp_path: Path) -> None:
    cookie, api_key = "cookie-secret-0123456789", "api/key+0123456789=="

    async def chat(request: Request) -> Response:
        await request.body()
        headers = dict(request.headers)
        kind = request.query_params["kind"]
        if kind == "stream":
            text = json.dumps(headers)

            async def events() -> AsyncIterator[bytes]:
                for start in range(0, len(text), 7):
                    yield delta(text[start : start + 7])
                yield f"data: what? {text}\n\n".encode()
                yield DONE

            return StreamingResponse(events(), media_type="text/event-stream")
        if kind == "text":
            return PlainTextResponse(repr(headers), 401)
        if kind == "raise":
            raise ConnectionError(repr(headers))
        return JSONResponse({"echo": headers, "again": json.dumps(headers)}, headers={"set-cookie": cookie})

    async with a_run(tmp_path / "capture") as run, httpx.AsyncClient() as http:
        app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
        headers = {
            "authorization": f"Bearer {KEY}",
            "x-api-key": api_key,
            "cookie": f"session={cookie}",
            "x-client-session-id": f"s-{KEY}",
        }
        body = json.dumps({"messages": [{"role": "user", "content": f"my key is {KEY}, and {api_key}"}]})
        async with served(CaptureMiddleware(app, run.client, keep_raw_streams=True)) as port:
            for kind in ("json", "stream", "text", "raise"):
                answer = await http.post(chat_of(port), params={"kind": kind}, content=body, headers=headers)
                if kind in ("json", "text"):
                    assert KEY in answer.text  # the client sees what it always saw
            told = await run.exchanges("7-0")
        assert len(told) == 4
        shown = json.dumps(told)
        files = run.files()
        assert len(files) > 1000
        for secret in (KEY, cookie, api_key):
            assert secret not in shown
            assert secret.encode() not in files
        assert told[0]["request"]["messages"][0]["content"] == "my key is [redacted], and [redacted]"
        assert shown.count("[redacted]") > 12
