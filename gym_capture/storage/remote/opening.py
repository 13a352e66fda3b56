"""The files of a run, wherever it lies."""

from __future__ import annotations

from pathlib import Path

from gym_capture.storage.files import Files
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.remote.run_uri import is_uri


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


__all__ = ["files_at"]
