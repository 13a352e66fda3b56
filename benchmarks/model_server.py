"""The servers of the overhead benchmark, each a process of its own: `python -m benchmarks.model_server KIND …`.

- `bare`: a model server that needs no model, as plain ASGI
- `captured DIRECTORY`: the same app inside `CaptureMiddleware`
- `proxy DIRECTORY UPSTREAM`: the capturing proxy in front of one

Prints `{"port": …}` once it listens, and serves until its standard input ends. What it captured is on disk then.

The app says what its query asks for: `?bytes=4096&wait=0.05` one response of that size after that time (seconds),
`?events=64&wait=0.005` a stream of so many events, that time before each.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

import uvicorn

import gym_capture
from benchmarks.workload import exchange, text
from gym_capture.asgi import CaptureMiddleware
from gym_capture.asgi.messages import App, Receive, Scope, Send
from gym_capture.asgi.proxy_server import CapturingProxy, listen, run_in_loop
from gym_capture.config import ProxyConfig

LOOPBACK = "127.0.0.1"


@lru_cache
def response_of(size: int) -> bytes:
    """A completion of about `size` bytes."""
    rng = random.Random(size)
    return json.dumps(exchange(rng, "bench", [], text(rng, size - 300))["response"]).encode()


@lru_cache
def events_of(count: int) -> list[bytes]:
    """A stream of `count` chunks, a word or two in each, and the terminal event after them."""
    rng = random.Random(count)

    def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
        chunk = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1_786_000_000}
        return b"data: " + json.dumps({**chunk, "model": "policy-8b", "choices": choices, **more}).encode() + b"\n\n"

    def delta(finish: str | None, **fields: str) -> list[dict[str, Any]]:
        return [{"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish}]

    usage = {"prompt_tokens": 900, "completion_tokens": count, "total_tokens": 900 + count}
    return [
        event(delta(None, role="assistant", content="")),
        *(event(delta(None, content=text(rng, 6) + " ")) for _ in range(count - 3)),
        event(delta("stop")),
        event([], usage=usage),
        b"data: [DONE]\n\n",
    ]


async def model(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request."""
    while (await receive()).get("more_body", False):
        pass
    query = dict(parse_qsl(scope["query_string"].decode()))
    wait = float(query.get("wait", "0"))
    if "events" in query:
        await _stream(events_of(int(query["events"])), wait, send)
        return
    body = response_of(int(query["bytes"]))
    if wait:
        await asyncio.sleep(wait)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(events: list[bytes], wait: float, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for event in events[:-1]:
        await asyncio.sleep(wait)  # also without a wait: each event goes out on its own, as a model's tokens do
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": events[-1], "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@contextlib.asynccontextmanager
async def _served(app: App) -> AsyncIterator[int]:
    """The app on a port of its own, by the same server and settings as the proxy's."""
    listener = listen(LOOPBACK, 0)
    config = uvicorn.Config(
        app, http="httptools", loop="none", ws="none", lifespan="off", access_log=False, log_config=None
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await running


async def main(kind: str, directory: str = "", upstream: str = "") -> None:
    """Serve until the input ends."""
    if kind == "bare":
        async with _served(model) as port:
            await _until_told(port)
        return
    capture = gym_capture.connect(capture_dir=directory)
    if kind == "captured":
        async with _served(CaptureMiddleware(model, capture)) as port:
            await _until_told(port)
        whole = await capture.close(30.0)
    else:
        proxy = CapturingProxy(ProxyConfig(upstream=upstream), capture)
        url = await proxy.start(LOOPBACK, 0)
        await _until_told(int(url.rpartition(":")[2]))
        proxy.stop()
        whole = await proxy.ended()
    if not whole:
        raise SystemExit("some calls are not on disk")


async def _until_told(port: int) -> None:
    print(json.dumps({"port": port}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    run_in_loop(main(*sys.argv[1:]))
