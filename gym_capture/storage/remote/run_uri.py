"""Telling the URI of a run that lies elsewhere from a path, and showing it without its secrets."""

from __future__ import annotations

import re
from pathlib import Path

# A scheme of one letter is a drive.
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_COLLAPSED_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
# Not only what can be parsed: a password with `?` or `#` in it is shown no more than others.
_PASSWORD = re.compile(r"^([^:]+:/+[^:@?#]*:).*@", re.DOTALL)
_SECRET_OPTION = re.compile(
    r"([?&][^=&#]*(?:secret|token|pass|pwd|key|sig|sas|cred|session)[^=&#]*=)[^&]*", re.IGNORECASE
)

_INNER_PASSWORD = re.compile(r"(=[A-Za-z][A-Za-z0-9+.-]*://[^/@&:]*:)[^@&]*@")
"""In an option that is a URI itself, as `endpoint_override` is."""


def is_uri(place: str | Path) -> bool:
    """Whether this names a place elsewhere, and no path. A `Path` never does."""
    return isinstance(place, str) and _URI.match(place) is not None


def uri_of(path: Path) -> str | None:
    """The URI that was made a path, which takes slashes away (`s3:/bucket`); None: it looks like none."""
    text = str(path)
    match = _COLLAPSED_URI.match(text)
    if match is None:
        return None
    return f"{match[0]}{'//' if match[0] == 'file:/' else '/'}{text[match.end() :]}"


def shown(uri: str) -> str:
    """The URI for messages: what may be a password, a key or a token in it is `***`."""
    without = _INNER_PASSWORD.sub(r"\1***@", _PASSWORD.sub(r"\1***@", uri))
    return _SECRET_OPTION.sub(r"\1***", without)


__all__ = ["is_uri", "shown", "uri_of"]
