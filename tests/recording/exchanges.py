"""Requests, responses and streams that tests of recording share."""

from __future__ import annotations

import json
from typing import Any

REQUEST = b'{"model": "policy", "messages": [{"role": "user", "content": "hi"}], "stream": true}'
RESPONSE = b'{ "id": "r1", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}}] }'
JSON = [(b"Content-Type", b"application/json")]
EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]
KEY = "sk-0123456789-abcdefghij"


def sse(payload: Any) -> bytes:
    """One event."""
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def delta(content: str, finish_reason: str | None = None) -> bytes:
    """One event of a chat stream."""
    choice = {"index": 0, "delta": {"role": "assistant", "content": content}, "finish_reason": finish_reason}
    return sse({"id": "c1", "object": "chat.completion.chunk", "model": "policy", "choices": [choice]})


DONE = b"data: [DONE]\n\n"
STREAM = [delta("hel"), delta("lo", "stop"), DONE]
REASSEMBLED = {
    "id": "c1",
    "object": "chat.completion",
    "model": "policy",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
}
