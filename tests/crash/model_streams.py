"""Chat streams that are known by a number: the bytes a model server sends, and what is to be recorded of them."""

from __future__ import annotations

import json
import random
from typing import Any

WORDS = ("value ", "patch ", "naïve ", "🙂 ", "list ", "日本 ", "\\n", "0.25 ", '"quoted" ')
EVENTS = 24


def _words(number: int, events: int) -> list[str]:
    rng = random.Random(number)
    return ["".join(rng.choices(WORDS, k=rng.randrange(1, 12))) for _ in range(events)]


def _event(number: int, choices: list[dict[str, Any]], **more: Any) -> bytes:
    chunk = {"id": f"c{number}", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    return b"data: " + json.dumps({**chunk, **more}, ensure_ascii=False).encode() + b"\n\n"


def stream_of(number: int, events: int = EVENTS) -> bytes:
    """The body of stream `number`, up to and with `[DONE]`."""
    words = _words(number, events)
    parts = [{"role": "assistant", "content": words[0]}, *({"content": word} for word in words[1:])]
    body = [_event(number, [{"index": 0, "delta": part, "finish_reason": None}]) for part in parts]
    body.append(_event(number, [{"index": 0, "delta": {}, "finish_reason": "stop"}]))
    body.append(_event(number, [], usage={"prompt_tokens": 3, "completion_tokens": number, "total_tokens": number + 3}))
    return b"".join(body) + b"data: [DONE]\n\n"


def pieces_of(number: int, events: int = EVENTS) -> list[bytes]:
    """The same, cut where a network may cut it: anywhere, also within an event or a character. At least two pieces."""
    body = stream_of(number, events)
    rng = random.Random(-1 - number)
    # The last cut lies within the last text, so that what follows it is more than the terminal event.
    last = body.rindex(b'"usage"')
    cuts = sorted({*rng.sample(range(1, last), 4), last})
    return [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]


def request_of(number: int, **more: Any) -> bytes:
    """The request for it."""
    messages = [{"role": "user", "content": f"question {number}"}]
    return json.dumps({"model": "m", "stream": True, "messages": messages, "number": number, **more}).encode()


def response_of(number: int, events: int = EVENTS) -> dict[str, Any]:
    """What the stream amounts to."""
    message = {"role": "assistant", "content": "".join(_words(number, events))}
    return {
        "id": f"c{number}",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": number, "total_tokens": number + 3},
    }
