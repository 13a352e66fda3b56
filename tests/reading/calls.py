"""Exchanges and directories for tests of what is read: conversations in three dialects, and a store that holds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gym_capture.reading.conversation import Turn, turns_of
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.store import CaptureStore
from tests.storage.owners import Batch, Owner

Json = dict[str, Any]


def chat(call: str, messages: list[Json], answer: Json | None = None, at: float = 0.0, **others: Any) -> Json:
    """A chat exchange that began at `at` and took a second."""
    exchange: Json = {
        "model_call_id": call,
        "dialect": "chat",
        "status_code": 200,
        "started_at": 1000.0 + at,
        "completed_at": 1001.0 + at,
        "latency_ms": 1000.0,
        "latency_ttft_ms": 100.0,
        "request": {"model": "m", "messages": messages},
        "response": {
            "model": "m",
            "choices": [{"message": answer or assistant(f"answer {call}"), "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 2},
        },
    }
    return exchange | others


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def assistant(text: str) -> Json:
    return {"role": "assistant", "content": text}


SYSTEM: Json = {"role": "system", "content": "be brief"}


def turns(*exchanges: Json) -> list[Turn]:
    """The turns of exchanges as a store would hand them in."""
    from gym_capture.model.record import derive_fields
    from gym_capture.reading.call_figures import figures_of_fields

    figures = {}
    for index, exchange in enumerate(exchanges):
        figures[index] = figures_of_fields(derive_fields(exchange))
        figures[index].call_index = index
    return turns_of(list(enumerate(exchanges)), figures)


def said(turn: Turn) -> list[str]:
    """What a turn adds, as `role kind: text`."""
    return [f"{message.role} {piece.kind}: {piece.text}" for message in turn.added for piece in message.pieces]


def answered(turn: Turn) -> list[str]:
    """What a turn answers, likewise."""
    return [f"{message.role} {piece.kind}: {piece.text}" for message in turn.answer for piece in message.pieces]


def written(directory: Path, rollouts: Mapping[str, Iterable[Json]], *batches: Batch) -> CaptureStore:
    """A directory at rest with these calls; further batches come after them."""
    directory.mkdir(mode=0o700, exist_ok=True)
    owner = Owner(PosixFiles(directory))
    batch = Batch()
    for rollout_id, exchanges in rollouts.items():
        for exchange in exchanges:
            batch.commit(rollout_id, exchange)
    for number, each in enumerate((batch, *batches), 1):
        owner.send(each, number)
    owner.stop()
    return CaptureStore(directory)


def flip(directory: Path, text: bytes) -> None:
    """Flip a bit where the log holds a text."""
    [segment] = [path for path in directory.glob("segment-*.log") if text in path.read_bytes()]
    data = bytearray(segment.read_bytes())
    data[data.index(text)] ^= 1
    segment.write_bytes(data)
