"""What the benchmarks write: exchanges of a wanted size, and a rollout whose requests grow turn by turn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

_WORDS = [
    "agent",
    "tool",
    "call",
    "result",
    "file",
    "path",
    "error",
    "retry",
    "patch",
    "test",
    "function",
    "value",
    "table",
    "index",
    "query",
    "answer",
    "because",
    "therefore",
    "branch",
    "commit",
    "merge",
    "replay",
    "segment",
    "frame",
    "claim",
    "search",
    "open",
    "close",
    "plan",
    "check",
    "number",
    "naive",
    "string",
]


def text(rng: random.Random, size: int) -> str:
    """About `size` bytes of words."""
    words: list[str] = []
    length = 0
    while length < size:
        word = rng.choice(_WORDS) + (str(rng.randrange(1000)) if rng.random() < 0.2 else "")
        words.append(word)
        length += len(word) + 1
    return " ".join(words)


def exchange(rng: random.Random, model_call_id: str, messages: list[dict[str, Any]], answer: str) -> dict[str, Any]:
    """One chat exchange with these messages."""
    return {
        "model_call_id": model_call_id,
        "dialect": "chat",
        "model_ref": {"type": "responses_api_models", "name": "policy_model"},
        "started_at": 1_786_000_000.0,
        "completed_at": 1_786_000_001.5,
        "latency_ms": 1500.0,
        "latency_ttft_ms": 120.0,
        "status_code": 200,
        "error_category": None,
        "request": {"model": "policy-8b", "messages": messages, "temperature": 1.0},
        "response": {
            "id": f"chatcmpl-{model_call_id}",
            "object": "chat.completion",
            "model": "policy-8b",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": rng.randrange(9000), "completion_tokens": rng.randrange(900), "total_tokens": 1},
        },
    }


def single_turns(seed: int, size: int) -> Iterator[dict[str, Any]]:
    """Endless single-turn exchanges of about `size` bytes, each with an id of its own.

    Texts are made by a process's first call for that size, and reused in turn: making them takes far longer than
    writing them (a second for 512 KB), so that call has to come before anything is timed.
    """
    return _numbered(seed, *_texts(size))


@lru_cache(maxsize=8)
def _texts(size: int) -> tuple[list[str], list[str]]:
    rng = random.Random(size)
    return [text(rng, int(size * 0.75)) for _ in range(8)], [text(rng, int(size * 0.15)) for _ in range(8)]


def _numbered(seed: int, bodies: list[str], answers: list[str]) -> Iterator[dict[str, Any]]:
    rng = random.Random(seed)
    number = 0
    while True:
        number += 1
        yield exchange(
            rng,
            f"{seed:08x}{number:012x}",
            [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": bodies[number % 8]}],
            answers[number % 8],
        )


def growing_rollout(seed: int, turns: int, total_bytes: int) -> list[dict[str, Any]]:
    """The exchanges of one rollout that repeats its history each turn; all requests together are `total_bytes`."""
    rng = random.Random(seed)
    turn_bytes = total_bytes // (turns * (turns + 1) // 2)
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are an agent."}]
    exchanges = []
    for turn in range(turns):
        messages = [*messages, {"role": "user", "content": text(rng, int(turn_bytes * 0.7))}]
        answer = text(rng, int(turn_bytes * 0.3))
        exchanges.append(exchange(rng, f"{seed:08x}{turn:012x}", messages, answer))
        messages = [*messages, {"role": "assistant", "content": answer}]
    return exchanges
