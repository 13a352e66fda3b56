"""Captured rollouts from wherever they lie: a capture directory, NeMo Gym's folder, or a sealed dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from gym_capture.errors import DamagedLog
from gym_capture.model.captured import CapturedRollout
from gym_capture.storage.remote.opening import files_at
from gym_capture.storage.remote.run_uri import is_uri
from gym_capture.storage.run_marker import require_capture_directory
from gym_capture.storage.sealed.manifest import MANIFEST
from gym_capture.storage.store import CaptureStore

RolloutSource = Callable[[bool], Iterator[CapturedRollout]]
"""Goes through all rollouts in the order of (id, generation), with the texts of their exchanges or without.

Those count, too, that were begun and captured nothing: a dataset lists them, and a log is to say the same.
"""


def open_captured(directory: str | Path, *, strict: bool = True) -> RolloutSource:
    """What a directory holds now: a capture directory (at rest, live or damaged; NeMo Gym's files count), or a dataset.

    Args:
        directory: its path, or the URI of a sealed run that lies elsewhere.
        strict: lines of NeMo Gym's files that standard JSON refuses are damaged; else they are read as far as possible.

    Raises:
        CaptureDirectoryError: the path is absent, is no directory, or has none of these in it.
        DamagedLog, FormatError: its log or manifest cannot be read, or which rollouts there were.
        RemoteUnavailable: the URI cannot be reached, or no sealed run lies there.
        MissingExtra: it is a sealed dataset, and pyarrow is not installed.
    """
    files = files_at(directory if is_uri(directory) else Path(directory).absolute())
    if MANIFEST in files.names():
        from gym_capture.storage.sealed.reader import SealedReader

        reader = SealedReader(files)
        return lambda texts: reader.rollouts(texts=texts)
    require_capture_directory(files)
    store = CaptureStore(files)
    _require_ids(store)
    return lambda texts: (store.captured(each.rollout_id, texts=texts, strict=strict) for each in store.standings())


def _require_ids(store: CaptureStore) -> None:
    """Raise DamagedLog where rollouts would be left out of which not even the ids are known: nothing could say so."""
    hiding = [lost for lost in store.report.indexes if lost.unnamed]
    if hiding:
        raise DamagedLog(
            f"{'; '.join(map(str, hiding))}, is damaged in {store.directory}. Nothing was written; restore it from a "
            "copy. `gym-capture ls` and `show` have what can be read."
        )


__all__ = ["RolloutSource", "open_captured"]
