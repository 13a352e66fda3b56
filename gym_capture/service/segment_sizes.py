"""How many bytes the segments of a directory have. Looks up a finished segment once."""

from __future__ import annotations

from gym_capture.storage.files import Files
from gym_capture.storage.names import segments_in


class SegmentSizes:
    """Blocking; runs in an executor, one call at a time.

    Args:
        files: the capture directory.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._finished: dict[str, int] = {}

    def total(self) -> int:
        """Bytes of all segments, as the directory lists them now.

        Raises:
            OSError: the directory cannot be read.
        """
        names = [segment.file for segment in segments_in(self._files.names())]
        self._finished = {name: self._finished[name] for name in names[:-1] if name in self._finished}
        for name in names[:-1]:
            if name not in self._finished:
                self._finished[name] = self._files.size(name)
        return sum(self._finished.values()) + sum(self._files.size(name) for name in names[-1:])
