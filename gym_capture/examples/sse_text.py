"""Server-sent events as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def event_bytes(data: Any, name: str | None = None) -> bytes:
    """One event. `data` that is text stands as it is, anything else as JSON."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"{f'event: {name}{chr(10)}' if name else ''}data: {text}\n\n".encode()


def pieces(text: str, size: int = 12) -> Iterator[str]:
    """A text in the pieces that a stream sends it in, `size` characters each."""
    for start in range(0, len(text), size):
        yield text[start : start + size]
