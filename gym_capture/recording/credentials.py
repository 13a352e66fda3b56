"""The secrets of a request, taken out of whatever is stored of it.

Headers are never stored. But an upstream may echo them (in an error's text, say), and a model may be shown its own key.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

REDACTED = "[redacted]"

SHORTEST_SECRET = 16
"""Characters. Shorter values are no keys, and would be found in innocent text."""

_SECRET_HEADER = re.compile(
    r".*authorization|cookie|.*(?:api|subscription|access)-?key|.*(?:auth|access|security|api)-?token|"
    r".*secret.*"
)


class Credentials:
    """The secrets of one request.

    Args:
        headers: names and values as they came.
    """

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._texts, self._bytes = _forms(tuple(header for header in headers if _is_secret(header[0])))

    def __bool__(self) -> bool:
        return bool(self._texts)

    def scrub_bytes(self, data: bytes) -> bytes:
        """The bytes without the secrets."""
        for secret in self._bytes:
            if secret in data:
                data = data.replace(secret, REDACTED.encode("ascii"))
        return data

    def scrub_text(self, text: str) -> str:
        """The text without the secrets."""
        for secret in self._texts:
            if secret in text:
                text = text.replace(secret, REDACTED)
        return text

    def scrub_json(self, value: Any) -> Any:
        """A JSON value without the secrets, in keys too; a copy wherever something may have changed."""
        if not self._texts:
            return value
        root = [value]
        unseen: list[tuple[Any, Any]] = [(root, 0)]
        while unseen:
            holder, place = unseen.pop()
            inner = holder[place]
            if isinstance(inner, str):
                holder[place] = self.scrub_text(inner)
            elif isinstance(inner, dict):
                copy = holder[place] = {
                    self.scrub_text(key) if isinstance(key, str) else key: item for key, item in inner.items()
                }
                unseen += [(copy, key) for key in copy]
            elif isinstance(inner, list):
                items = holder[place] = list(inner)
                unseen += [(items, index) for index in range(len(items))]
        return root[0]


@lru_cache(maxsize=1024)
def _is_secret(name: bytes) -> bool:
    return _SECRET_HEADER.fullmatch(name.decode("latin-1").strip().lower()) is not None


@lru_cache(maxsize=256)
def _forms(headers: tuple[tuple[bytes, bytes], ...]) -> tuple[list[str], list[bytes]]:
    """What is looked for, the longest first: one may be part of another. A caller sends the same key each time."""
    secrets: set[str] = set()
    for name, value in headers:
        text = value.decode("latin-1").strip()
        secrets.update(_of_cookies(text) if name.strip().lower() == b"cookie" else _of_value(text))
    forms = {form for secret in secrets if len(secret) >= SHORTEST_SECRET for form in _written(secret)}
    encoded = {data for text in forms for data in _encoded(text)}
    return sorted(forms, key=len, reverse=True), sorted(encoded, key=len, reverse=True)


def _of_value(value: str) -> set[str]:
    """A value's secrets: what follows the scheme, and all of it where there is none."""
    scheme, space, token = value.partition(" ")
    token = token.strip()
    if not space:
        return {value}
    found = {token}
    if scheme.lower() == "basic":
        try:
            pair = base64.b64decode(token, validate=True).decode("utf-8")
        except (binascii.Error, ValueError):
            return found
        found |= {pair, pair.partition(":")[2]}
    return found


def _of_cookies(value: str) -> set[str]:
    found: set[str] = set()
    for pair in value.split(";"):
        name, sign, text = pair.strip().partition("=")
        secret = (text if sign else name).strip().strip('"')
        found |= {secret, unquote(secret)}
    return found


def _written(secret: str) -> set[str]:
    """The ways in which it may stand in a text: as it is, in JSON, in a URL."""
    forms = {secret}
    try:
        forms.add(secret.encode("latin-1").decode("utf-8"))
    except UnicodeError:
        pass  # not UTF-8 on the wire
    for form in list(forms):
        quoted = json.dumps(form)[1:-1]
        forms |= {quoted, quoted.replace("/", "\\/"), quote(form, safe="")}
    return forms


def _encoded(text: str) -> set[bytes]:
    forms = {text.encode("utf-8", "replace")}
    try:
        forms.add(text.encode("latin-1"))
    except UnicodeEncodeError:
        pass  # it did not come so
    return forms
