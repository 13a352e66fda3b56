"""Bodies of event streams, and ways to feed them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from gym_capture.recording.reassembly import StreamReassembly

LIMIT = 1 << 20
DIALECTS = ("chat", "messages", "responses")


@dataclass(frozen=True)
class Seen:
    """What a stream came to. `hold_at`: where its terminal event begins in the body."""

    response: Any
    terminal: str | None
    error: Any
    raw: bytes | None
    understood: bool
    overflowed: bool
    first_token_seen: bool
    hold_at: int | None


def see(dialect: str, body: bytes, cuts: Sequence[int] = (), *, limit: int = LIMIT, keep_raw: bool = False) -> Seen:
    """Feed a body cut at these places. The hold's place is None where it fell back to the beginning of a chunk."""
    stream = StreamReassembly(dialect, limit_bytes=limit, keep_raw=keep_raw)
    hold_at = None
    for chunk_at, chunk in pieces(body, cuts):
        hold = stream.feed(chunk)
        if hold is not None:
            assert hold_at is None
            assert 0 <= hold < len(chunk)
            hold_at = chunk_at + hold
    stream.finish()
    return Seen(
        stream.response,
        stream.terminal,
        stream.error,
        stream.raw,
        stream.understood,
        stream.overflowed,
        stream.first_token_seen,
        hold_at,
    )


def pieces(body: bytes, cuts: Sequence[int]) -> list[tuple[int, bytes]]:
    """The body's chunks, each with its place."""
    places = [0, *sorted({cut for cut in cuts if 0 < cut < len(body)}), len(body)]
    return [(start, body[start:end]) for start, end in pairwise(places) if start < end]


def assert_chunks_change_nothing(dialect: str, body: bytes, cuts: Sequence[int], **options: Any) -> None:
    whole = see(dialect, body, **options)
    cut = see(dialect, body, cuts, **options)
    expected_hold = whole.hold_at
    if expected_hold is not None and cut.hold_at is not None and cut.hold_at != expected_hold:
        # The event began in a chunk that had been passed on before it was recognised: all of the last one is held.
        assert cut.hold_at in [start for start, _ in pieces(body, cuts)]
        assert expected_hold < cut.hold_at
        expected_hold = cut.hold_at
    assert repr(cut) == repr(Seen(**{**vars(whole), "hold_at": expected_hold}))  # repr: NaN is like itself


def event(payload: Any, name: str | None = None, end: str = "\n") -> bytes:
    """One event with a JSON payload."""
    head = f"event: {name}{end}" if name else ""
    return f"{head}data: {json.dumps(payload, ensure_ascii=False)}{end}{end}".encode("utf-8", "surrogatepass")


def named(*payloads: dict[str, Any]) -> bytes:
    """Events named as their payload's type says, as the Messages and Responses dialects write them."""
    return b"".join(event(payload, payload["type"]) for payload in payloads)


DONE = b"data: [DONE]\n\n"


def chat(*choices: dict[str, Any], done: bool = True, **beside: Any) -> bytes:
    """Chunks with one choice each."""
    chunks = [event({"id": "c1", "model": "m", "choices": [choice], **beside}) for choice in choices]
    return b"".join(chunks) + (DONE if done else b"")


def deltas(*given: dict[str, Any], done: bool = True) -> bytes:
    """Chunks of one choice, by its deltas."""
    return chat(*({"index": 0, "delta": delta} for delta in given), done=done)


def cut_places(longest: int = 4000) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, longest), max_size=12)
