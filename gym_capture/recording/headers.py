"""The headers of a request or a response, as they came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

Headers = Iterable[tuple[bytes, bytes]]


def by_name(headers: Headers) -> dict[str, list[str]]:
    """All values of each header, by its lower-case name."""
    by_name: dict[str, list[str]] = {}
    for name, value in headers:
        by_name.setdefault(_lower(name), []).append(value.decode("latin-1"))
    return by_name


@lru_cache(maxsize=1024)
def _lower(name: bytes) -> str:
    return name.decode("latin-1").strip().lower()


def content_length(headers: Mapping[str, list[str]]) -> int | None:
    """The announced length; None when there is none, or several that differ."""
    texts = {text.strip() for value in headers.get("content-length", ()) for text in value.split(",")}
    if len(texts) != 1:
        return None
    text = texts.pop()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
