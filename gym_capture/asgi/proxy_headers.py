"""Which headers pass a proxy, and how long a request's body says it is (RFC 9110 7.6.1, RFC 9112 6)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from gym_capture.asgi.proxy_errors import LocalAnswer

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Fields of one connection; those that `Connection` names are too."""

OWN_PREFIX = b"x-ng-"
"""Headers that a caller sends to gym_capture; the model server is not asked about them."""

_DIGITS = re.compile(rb"[0-9]{1,18}")

BodyLength = int | Literal["chunked"] | None
"""Bytes of a body, or that it says itself where it ends; None: there is none."""


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that go on to the next hop, in their order, duplicates kept."""
    listed = list(headers)
    dropped = set(HOP_BY_HOP)
    for name, value in listed:
        if name.lower() == b"connection":
            dropped.update(token.strip().lower() for token in value.split(b","))
    # Framing is ours to say in either case, so no Connection header can take it away.
    dropped.discard(b"content-length")
    return [(name, value) for name, value in listed if name.lower() not in dropped]


def request_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """A request's headers as the upstream gets them; `Host` and the body's length are added by whoever sends it.

    `Expect` stays here: this server has answered it by asking for the body.

    Raises:
        LocalAnswer: a value is not UTF-8, so it could not be passed on as it is.
    """
    passed = []
    for name, value in end_to_end(headers):
        lower = name.lower()
        if lower in (b"host", b"content-length", b"expect") or lower.startswith(OWN_PREFIX):
            continue
        try:
            passed.append((name.decode("ascii"), value.decode("utf-8")))
        except UnicodeDecodeError:
            raise LocalAnswer(
                400, "bad_header", f"the header {name!r} is not UTF-8 and cannot be passed on", attempted=False
            ) from None
    return passed


def body_length(headers: Iterable[tuple[bytes, bytes]]) -> BodyLength:
    """How a request's body is delimited.

    Raises:
        LocalAnswer: it says so in two ways, or in one that this proxy does not know: forwarded, the two ends could
            take different bytes for the next request.
    """
    lengths: set[bytes] = set()
    codings: list[bytes] = []
    for name, value in headers:
        lower = name.lower()
        if lower == b"content-length":
            lengths.update(each.strip() for each in value.split(b","))
        elif lower == b"transfer-encoding":
            codings += [each.strip().lower() for each in value.split(b",")]
    if codings:
        if codings != [b"chunked"]:
            raise _refused("only `Transfer-Encoding: chunked` can be passed on")
        if lengths:
            raise _refused("Content-Length and Transfer-Encoding are both given")
        return "chunked"
    if not lengths:
        return None
    if len(lengths) > 1:
        raise _refused("several different Content-Lengths are given")
    (length,) = lengths
    if not _DIGITS.fullmatch(length):
        raise _refused("Content-Length is not a number")
    return int(length)


def response_headers(status: int, headers: Iterable[tuple[bytes, bytes]]) -> tuple[Headers, int | None]:
    """A response's headers as the client gets them, and the length of its body where one is told.

    A 204 and a 304 have no body, whatever length they name (that of the answer to another request).
    """
    listed = list(headers)
    chunked = any(name.lower() == b"transfer-encoding" for name, _ in listed)
    passed: Headers = []
    length: int | None = None
    for name, value in end_to_end(listed):
        if name.lower() == b"content-length":
            if chunked or status in (204, 304) or length is not None or not _DIGITS.fullmatch(value.strip()):
                continue
            length = int(value)
        passed.append((name, value))
    return passed, length


def _refused(why: str) -> LocalAnswer:
    return LocalAnswer(400, "bad_framing", f"the length of the request's body is not clear: {why}", attempted=False)
