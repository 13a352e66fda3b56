"""Telling the URI of a run that lies elsewhere from a path, and showing it without its secrets."""

from __future__ import annotations

import re
from pathlib import Path

from gym_capture.storage.files import Files
from gym_capture.storage.posix_files import PosixFiles

# A scheme of one letter is a drive.
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_COLLAPSED_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_PASSWORD = re.compile(r"^([^:]+:/+[^:@?#]*:)[^?#]*@")
_SECRET_OPTION = re.compile(r"([?&][^=&#]*(?:secret|token|password|key|sig)[^=&#]*=)[^&#]*", re.IGNORECASE)


def is_uri(place: str | Path) -> bool:
    """Whether this names a place elsewhere, and no path. A `Path` never does."""
    return isinstance(place, str) and _URI.match(place) is not None


def was_uri(path: Path) -> bool:
    """Whether a path looks like a URI that was made one: `s3:/bucket`."""
    return _COLLAPSED_URI.match(str(path)) is not None


def shown(uri: str) -> str:
    """The URI for messages: what may be a password, a key or a token in it is `***`."""
    return _SECRET_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1***@", uri))


def files_at(place: str | Path) -> Files:
    """The files of a run's directory, or of a sealed run at a URI, which are read only.

    Raises:
        CaptureDirectoryError: the path is relative, absent, or no directory.
        RemoteUnavailable: the URI cannot be reached, or no sealed run lies there.
        ConfigError: there is no such kind of URI.
        MissingExtra: it is a URI, and pyarrow is not installed.
    """
    if not is_uri(place):
        return PosixFiles(place)
    from gym_capture.storage.remote.remote_files import RemoteFiles

    return RemoteFiles(str(place))


__all__ = ["files_at", "is_uri", "shown", "was_uri"]
