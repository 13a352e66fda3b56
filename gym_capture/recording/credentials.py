"""The secrets of a request, taken out of whatever is stored of it.

Headers are never stored. But an upstream may echo them (in an error's text, say), and a model may be shown its own key.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

REDACTED = "[redacted]"

SHORTEST_SECRET = 16
"""Characters. Shorter values are no keys, and would be found in innocent text."""

MOST_SECRETS = 32
"""Of one request: those of its headers before its cookies, then the longest."""

_SECRET_HEADER = re.compile(r"key|token|secret|passw|auth(?!or(?!iz))|jwt|credential|session|cookie").search
_INNOCENT_HEADER = re.compile(
    r"x-ng-.*|x-client-session-id|x-claude-code-session-id|.*idempotency.*|sec-websocket-.*|access-control-.*"
).fullmatch
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_ESCAPE = re.compile(rb"\\u([0-9a-fA-F]{4})|%([0-9a-fA-F]{2})|\\(/)")
_ASCII_ESCAPE = re.compile(rb"\\u(00[2-7][0-9a-fA-F])|%([2-7][0-9a-fA-F])|\\(/)")
_WIDE = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
_REDACTED = REDACTED.encode("ascii")


class _Secret(NamedTuple):
    """One secret: as text, as the bytes that stand for it where nothing is escaped, and where it came from."""

    text: str
    plain: tuple[bytes, ...]
    cookie: bool


class Credentials:
    """The secrets of one request, at most `MOST_SECRETS`.

    Args:
        headers: names and values as they came.
    """

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._secrets = _secrets(tuple(header for header in headers if _is_secret(header[0])))

    def __bool__(self) -> bool:
        return bool(self._secrets)

    @property
    def of_cookies(self) -> bool:
        """Whether a cookie's value is among them."""
        return any(secret.cookie for secret in self._secrets)

    def spare(self, text: str) -> None:
        """Take a cookie of this value for no secret: it only says what the request says anyway (which model)."""
        self._secrets = tuple(secret for secret in self._secrets if not (secret.cookie and secret.text == text))

    def scrub_bytes(self, data: bytes, *, is_json: bool = False) -> bytes:
        """The bytes without the secrets, however they are written (JSON's escapes, a URL's, mixed).

        Args:
            is_json: they are JSON text, and to remain so: only strings are searched, numbers stay.
        """
        found = self._found(data)
        if not found:
            return data
        if b"\0" in data:
            for secret in found:
                for encoding in _WIDE:
                    data = data.replace(secret.text.encode(encoding, "replace"), REDACTED.encode(encoding))
        pattern = _pattern(found)
        if is_json:
            return _STRING.sub(lambda string: _within_string(pattern, string[0]), data)
        return pattern.sub(_REDACTED, data)

    def scrub_text(self, text: str) -> str:
        """The text without the secrets."""
        if not self._secrets:
            return text
        data = text.encode("utf-8", "surrogatepass")
        scrubbed = self.scrub_bytes(data)
        return text if scrubbed is data else scrubbed.decode("utf-8", "surrogatepass")

    def scrub_json(self, value: Any) -> Any:
        """A JSON value without the secrets, in keys too; a copy where there are any to look for."""
        if not self._secrets:
            return value
        root = [value]
        unseen: list[tuple[Any, Any]] = [(root, 0)]
        while unseen:
            holder, place = unseen.pop()
            inner = holder[place]
            if isinstance(inner, str):
                holder[place] = self._scrub_string(inner)
            elif isinstance(inner, dict):
                copy = holder[place] = {
                    self._scrub_string(key) if isinstance(key, str) else key: item for key, item in inner.items()
                }
                unseen += [(copy, key) for key in copy]
            elif isinstance(inner, list):
                items = holder[place] = list(inner)
                unseen += [(items, index) for index in range(len(items))]
        return root[0]

    def _scrub_string(self, text: str) -> str:
        return text if len(text) < SHORTEST_SECRET else self.scrub_text(text)

    def _found(self, data: bytes) -> list[_Secret]:
        """The secrets that are in the bytes. What is escaped is only undone where something is, as that is rare."""
        secrets = self._secrets
        if not secrets:
            return []
        found = [secret for secret in secrets if any(form in data for form in secret.plain)]
        ascii_only = all(secret.text.isascii() for secret in secrets)  # so is nearly every key, and text is often not
        if b"%" in data or (b"\\u00" if ascii_only else b"\\u") in data or b"\\/" in data:
            undone = (_ASCII_ESCAPE if ascii_only else _ESCAPE).sub(_undo, data)
            if undone != data:
                found += [
                    secret for secret in secrets if secret not in found and any(f in undone for f in secret.plain)
                ]
        if b"\0" in data:
            found += [
                secret
                for secret in secrets
                if secret not in found and any(secret.text.encode(wide, "replace") in data for wide in _WIDE)
            ]
        return found


def _undo(escape: re.Match[bytes]) -> bytes:
    if escape[2] is not None:
        return bytes((int(escape[2], 16),))
    if escape[3] is not None:
        return b"/"
    return chr(int(escape[1], 16)).encode("utf-8", "surrogatepass")


def _within_string(pattern: re.Pattern[bytes], string: bytes) -> bytes:
    """A JSON string without what the pattern matches; all of it where that would be a string no more."""
    scrubbed = pattern.sub(_REDACTED, string)
    if scrubbed is string or scrubbed == string:
        return string
    try:
        json.loads(scrubbed, strict=False)
    except ValueError:  # it began within an escape
        return b'"' + _REDACTED + b'"'
    return scrubbed


def _pattern(secrets: list[_Secret]) -> re.Pattern[bytes]:
    """What matches any of these, each of its characters as it is or escaped in any way. The longest come first."""
    texts = {text for secret in secrets for text in (secret.text, _as_utf8(secret.text)) if text is not None}
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    return re.compile(b"|".join(b"".join(map(_character, text)) for text in longest_first))


def _character(char: str) -> bytes:
    try:
        forms = {char.encode("utf-8"), char.encode("latin-1")}
    except UnicodeEncodeError:
        forms = {char.encode("utf-8", "replace")}
    ways: list[bytes] = [re.escape(form) for form in forms]
    ways += [b"".join(b"(?i:%%%02x)" % byte for byte in form) for form in forms]
    units = char.encode("utf-16-be", "replace")
    ways.append(b"".join(rb"\\u(?i:%02x%02x)" % (units[at], units[at + 1]) for at in range(0, len(units), 2)))
    if char in '"\\/':
        ways.append(re.escape(b"\\" + char.encode("ascii")))
    # The longer ones first, as a backslash may stand for itself or begin an escape.
    longest_first = sorted(ways, key=lambda way: -len(way))
    return b"(?:" + b"|".join(longest_first) + b")"


@lru_cache(maxsize=1024)
def _is_secret(name: bytes) -> bool:
    text = name.decode("latin-1").strip().lower()
    return _SECRET_HEADER(text) is not None and _INNOCENT_HEADER(text) is None


@lru_cache(maxsize=256)
def _secrets(headers: tuple[tuple[bytes, bytes], ...]) -> tuple[_Secret, ...]:
    """What is looked for. A caller sends the same key each time."""
    found: dict[str, bool] = {}
    for name, value in headers:
        text = value.decode("latin-1").strip()
        cookie = name.strip().lower() == b"cookie"
        for secret in _of_cookies(text) if cookie else _of_value(text):
            if len(secret) >= SHORTEST_SECRET:
                found[secret] = found.get(secret, True) and cookie
    ranked = sorted(found, key=lambda text: (found[text], -len(text), text))[:MOST_SECRETS]
    return tuple(_Secret(text, tuple(dict.fromkeys(_plain(text))), found[text]) for text in ranked)


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


def _of_cookies(value: str) -> Iterator[str]:
    for pair in value.split(";"):
        name, sign, text = pair.strip().partition("=")
        secret = (text if sign else name).strip().strip('"')
        yield secret
        yield unquote(secret)


def _as_utf8(secret: str) -> str | None:
    """What a header's value says where it is UTF-8 on the wire and not ASCII."""
    try:
        text = secret.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return None
    return None if text == secret else text


def _plain(secret: str) -> Iterator[bytes]:
    """The bytes that stand for it: in UTF-8, as they came, and with JSON's own escapes where it has quotes."""
    for text in (secret, _as_utf8(secret)):
        if text is None:
            continue
        utf8 = text.encode("utf-8", "replace")
        yield utf8
        try:
            yield text.encode("latin-1")
        except UnicodeEncodeError:
            pass  # it did not come so
        yield utf8.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
