"""A model server that follows a script: chat completions, responses and messages, streamed or not, with seeded faults.

    python -m gym_capture.examples.model_server --port 0 --seed 7

prints where it listens. What it answers, and what goes wrong, follows from its seed and the request
(`scripted_model`, `model_faults`). It stands in for a real one in `make run` and in tests.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import Any

from gym_capture.examples import chat_dialect, messages_dialect, responses_dialect
from gym_capture.examples.model_faults import (
    BROKEN,
    CONTEXT,
    CUT,
    ERROR_EVENT,
    HANGS,
    RATE_LIMITED,
    SEED_HEADER,
    SLOW,
    TOO_LONG,
    USUAL,
    check_likelihoods,
    chosen_fault,
    retries_taken,
)
from gym_capture.examples.scripted_model import MODEL, Conversation, answer
from gym_capture.examples.server_thread import listening_socket, run_server
from gym_capture.examples.wire_encoding import WireEncoding

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_DIALECTS: Mapping[str, Any] = {
    "/v1/chat/completions": chat_dialect,
    "/v1/responses": responses_dialect,
    "/v1/messages": messages_dialect,
}
_RETRY_AFTER_MS = "10"


class ModelServer:
    """The ASGI app.

    Args:
        seed: everything that it does follows from it and from the request.
        faults: how likely each fault of `model_faults` is, per request; None: the usual ones.
        pace_s: time between two events of a stream, and before an answer, seconds.
        slow_s: how late the first token of a slow answer is, seconds.
        gzip: compress responses for whoever accepts that.

    Raises:
        ValueError: likelihoods that cannot be.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        faults: Mapping[str, float] | None = None,
        pace_s: float = 0.0,
        slow_s: float = 0.3,
        gzip: bool = False,
    ) -> None:
        self._seed = seed
        self._faults = dict(USUAL if faults is None else faults)
        check_likelihoods(self._faults)
        self._pace_s = pace_s
        self._slow_s = slow_s
        self._gzip = gzip
        self.requests: list[tuple[str, str]] = []
        """Method and path of every request so far."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        method, path = scope["method"], scope["path"]
        self.requests.append((method, path))
        request = await _read(receive)
        exchange = _Exchange(receive, send, WireEncoding(self._gzip and "gzip" in headers.get("accept-encoding", "")))
        if method == "GET" and path == "/v1/models":
            await exchange.json(200, {"object": "list", "data": [_MODEL_CARD]})
        elif method == "GET" and path == f"/v1/models/{MODEL}":
            await exchange.json(200, _MODEL_CARD)
        elif method == "POST" and path in (*_DIALECTS, "/v1/messages/count_tokens", "/v1/completions"):
            await self._post(path, headers, request, exchange)
        else:
            message = f"no such route: {method} {path}"
            await exchange.json(404, chat_dialect.error("invalid_request_error", message))

    async def _post(self, path: str, headers: Mapping[str, str], raw: bytes, exchange: _Exchange) -> None:
        dialect = _DIALECTS.get(path, chat_dialect)
        try:
            request = json.loads(raw)
            if path == "/v1/completions":
                await exchange.json(200, _legacy_completion(request["prompt"]))
                return
            if path == "/v1/messages/count_tokens":
                await exchange.json(200, {"input_tokens": messages_dialect.conversation(request).size_bytes // 4})
                return
            conversation: Conversation = dialect.conversation(request)
            chance = random.Random(self._digest(path, raw, headers))
            fault = chosen_fault(headers, self._faults, chance)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            told = f"the request cannot be understood: {error!r}"
            await exchange.json(400, dialect.error("invalid_request_error", told))
            return
        await self._answer(dialect, conversation, fault, chance, exchange)

    async def _answer(
        self, dialect: Any, conversation: Conversation, fault: str | None, chance: random.Random, exchange: _Exchange
    ) -> None:
        if fault == HANGS:
            await exchange.disconnected()
            return
        await asyncio.sleep(self._slow_s if fault == SLOW and not conversation.stream else self._pace_s)
        if fault == RATE_LIMITED:
            await exchange.json(429, dialect.error("rate_limit_error", "too many requests"), retry=True)
        elif fault == BROKEN or (fault == ERROR_EVENT and not conversation.stream):
            await exchange.json(500, dialect.error("server_error", "the server had an error"), retry=True)
        elif fault == CONTEXT:
            told = "the conversation is longer than the model's context"
            code = "context_length_exceeded"
            await exchange.json(400, dialect.error("invalid_request_error", told, code))
        else:
            said = answer(conversation, chance, too_long=fault == TOO_LONG)
            if conversation.stream:
                events = dialect.events(said, usage=conversation.stream_usage, fails=fault == ERROR_EVENT)
                await exchange.stream(self._paced(events, fault))
            else:
                await exchange.json(200, dialect.body(said), cut=fault == CUT)

    async def _paced(self, events: Iterator[bytes], fault: str | None) -> AsyncIterator[bytes | None]:
        """The events in their time; None: the connection is cut here."""
        known = list(events)
        for index, event in enumerate(known):
            if fault == CUT and index == len(known) // 2:
                yield event[: len(event) // 2]
                yield None
                return
            if index == 1 and fault == SLOW:
                await asyncio.sleep(self._slow_s)
            elif self._pace_s:
                await asyncio.sleep(self._pace_s)
            yield event

    def _digest(self, path: str, raw: bytes, headers: Mapping[str, str]) -> int:
        told = (str(self._seed), headers.get(SEED_HEADER, ""), str(retries_taken(headers)), path)
        return int.from_bytes(hashlib.sha256("\n".join(told).encode() + b"\n" + raw).digest()[:8], "big")


class _Exchange:
    """One response on its way out."""

    def __init__(self, receive: Receive, send: Send, encoding: WireEncoding) -> None:
        self._receive = receive
        self._send = send
        self._encoding = encoding

    async def json(self, status: int, value: Any, *, retry: bool = False, cut: bool = False) -> None:
        """Answer whole. `cut`: the connection ends in the middle of the body."""
        body = self._encoding.encode(json.dumps(value, ensure_ascii=False).encode()) + self._encoding.finish()
        headers = [(b"content-length", str(len(body)).encode())]
        if retry:
            headers.append((b"retry-after-ms", _RETRY_AFTER_MS.encode()))
        await self._start(status, b"application/json", headers)
        if cut:
            await self._piece(body[: len(body) // 2])
            return
        await self._send({"type": "http.response.body", "body": body})

    async def stream(self, events: AsyncIterator[bytes | None]) -> None:
        """Answer with server-sent events."""
        await self._start(200, b"text/event-stream; charset=utf-8", [(b"cache-control", b"no-cache")])
        async for event in events:
            if event is None:
                return  # without an end: the server breaks the connection
            await self._piece(self._encoding.encode(event))
        await self._send({"type": "http.response.body", "body": self._encoding.finish()})

    async def disconnected(self) -> None:
        """Wait until the client has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _start(self, status: int, kind: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        told = [(b"content-type", kind), *self._encoding.headers, *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": told})

    async def _piece(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


_MODEL_CARD = {"id": MODEL, "object": "model", "created": 1_760_000_000, "owned_by": "gym_capture"}


def _legacy_completion(prompt: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": f"{str(prompt)[:20]} …", "finish_reason": "stop", "logprobs": None}
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1_760_000_000,
        "model": MODEL,
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(str(prompt)) // 4,
            "completion_tokens": 5,
            "total_tokens": len(str(prompt)) // 4 + 5,
        },
    }


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return bytes(body)
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


def main(arguments: list[str] | None = None) -> None:
    """Serve until interrupted; the first line that is printed says where."""
    parser = argparse.ArgumentParser(prog="python -m gym_capture.examples.model_server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pace-s", type=float, default=0.0, help="seconds between two events of a stream")
    parser.add_argument("--gzip", action="store_true", help="compress for whoever accepts that")
    parser.add_argument("--no-faults", action="store_true", help="fail only where a request asks for it")
    chosen = parser.parse_args(arguments)
    faults: dict[str, float] | None = {} if chosen.no_faults else None
    app = ModelServer(seed=chosen.seed, faults=faults, pace_s=chosen.pace_s, gzip=chosen.gzip)
    with listening_socket(chosen.host, chosen.port) as listener:
        sys.stdout.write(f"http://{chosen.host}:{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        run_server(app, listener)


if __name__ == "__main__":
    main()
