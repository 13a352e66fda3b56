"""A capture as the viewer keeps it: opened once, refreshed when its directory's files change, read ahead in slices.

A page is never kept waiting for 100,000 rollouts: whatever needs the records of all is told how far reading has come,
and asks again. Whoever asks moves it on; nothing is read while nobody looks.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from gym_capture.reading.rollout_overview import OverviewPage, OverviewQuery, RolloutOverview
from gym_capture.reading.rollout_tally import RolloutRow
from gym_capture.storage import names
from gym_capture.storage.remote.opening import files_at
from gym_capture.storage.remote.run_uri import is_uri
from gym_capture.storage.run_marker import require_capture_directory
from gym_capture.storage.standing import RolloutStanding
from gym_capture.storage.store import CaptureStore
from gym_capture.viewer.run_figures import ReadCalls, RunFigures

SLICE_S = 0.1
"""How long one request may read ahead."""

FIGURES_SHARE = 5
"""How many times as long as it took to sum up, nobody sums up again before everything is read."""

_Stat = tuple[int, int, int]
_Read = tuple[RolloutStanding, _Stat | None]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the known rollouts were read."""

    read: int
    known: int

    @property
    def whole(self) -> bool:
        """Whether all were."""
        return self.read >= self.known


class Captured:
    """One directory, or one sealed run elsewhere. For one thread; `look` first, then the rest.

    Args:
        place: the directory's absolute path, or a URI.
        slice_s: how long `read_ahead` goes on, seconds.
    """

    def __init__(self, place: str | Path, slice_s: float = SLICE_S) -> None:
        self._place = place
        self._slice_s = slice_s
        self._opened: OpenedDirectory | None = None
        self.session = secrets.token_hex(4)
        """What this process's versions begin with."""
        self._changes = 0

    @property
    def version(self) -> str:
        """Another one whenever something of the directory has changed; never the same in another process."""
        return f"{self.session}-{self._changes}"

    def look(self) -> OpenedDirectory:
        """Take in what changed since.

        Raises:
            CaptureDirectoryError, MissingRunMarker, FormatError: it is (no longer) a capture directory.
            RemoteUnavailable, DamagedLog: no sealed run lies at the URI, or it cannot be opened.
            OSError: it cannot be read. The next look opens it anew.
        """
        try:
            files = _files_of(self._place)
            opened = self._opened
            if opened is None or files.get(names.RUN) != opened.files.get(names.RUN):
                self._changes += 1
                opened = self._opened = OpenedDirectory(self._place, files, self._slice_s)
            elif files != opened.files:
                self._changes += 1
                opened.refresh(files)
        except BaseException:
            # Half refreshed, it would answer from a state that never was.
            self._opened = None
            raise
        return opened


class OpenedDirectory:
    """What was read of a directory (or at a URI), while it is the same run's."""

    def __init__(self, place: str | Path, files: dict[str, _Stat], slice_s: float) -> None:
        opened = files_at(place)
        require_capture_directory(opened)
        self.files = files
        self.store = CaptureStore(opened)
        self._sealed_shards = self.store.sealed_shards
        self._slice_s = slice_s
        self._calls = ReadCalls()
        self._overview = RolloutOverview(self.store, self._calls.hear)
        self._rows: dict[str, RolloutRow] = {}
        self._read: dict[str, _Read] = {}
        self._standings: list[RolloutStanding] | None = None
        self._pending: deque[RolloutStanding] | None = None
        self._found: tuple[OverviewQuery, list[RolloutRow], int] | None = None
        self._figures: RunFigures | None = None
        self._figures_fresh = False
        self._figures_again = 0.0

    def refresh(self, files: dict[str, _Stat]) -> None:
        """Take in what was appended."""
        self.store.refresh()
        self.files = files
        if self.store.sealed_shards != self._sealed_shards:
            self._sealed_shards = self.store.sealed_shards
            self._read.clear()  # their rows say what they take in a log
        self._standings = self._pending = self._found = None
        self._figures_fresh = False

    def read_ahead(self, clock: Callable[[], float] = time.monotonic) -> Progress:
        """Read records of rollouts that are new or have changed, for a slice of time."""
        pending = self._to_read()
        if pending:
            self._figures_fresh = False
        end = clock() + self._slice_s
        while pending:
            standing = pending[0]
            self._rows[standing.rollout_id] = self._overview.row_of(standing)
            self._read[standing.rollout_id] = self._state(standing)
            pending.popleft()
            if clock() >= end:
                break
        return Progress(read=len(self._rows), known=len(self._rows) + self._unread())

    def page(self, query: OverviewQuery) -> OverviewPage | None:
        """A page of rollouts; None while the records that it needs are not read."""
        if not query.needs_records:
            return self._overview.page(query, self._listed())
        if self._to_read():
            return None
        whole = msgspec.structs.replace(query, offset=0, limit=None)
        if self._found is None or self._found[0] != whole:
            found = self._overview.page(whole, self._listed())
            self._found = whole, found.rows, found.known
        _, rows, known = self._found
        end = None if query.limit is None else query.offset + query.limit
        return OverviewPage(rows=rows[query.offset : end], offset=query.offset, matching=len(rows), known=known)

    def figures(self, clock: Callable[[], float] = time.monotonic) -> RunFigures:
        """The run in figures, as far as it was read.

        While much is still to be read they may be those of a moment ago: summing up after every slice would take far
        longer than reading.
        """
        began = clock()
        if self._figures is None or not (self._figures_fresh or (self._to_read() and began < self._figures_again)):
            self._figures = self._calls.figures(self._rows.values())
            self._figures_fresh = True
            self._figures_again = clock() + FIGURES_SHARE * (clock() - began)
        return self._figures

    def rollout_version(self, standing: RolloutStanding) -> str:
        """Another one whenever something of one rollout has changed."""
        claims = self.store.open_claims(standing.rollout_id)
        report, sealed = self.store.report, self.store.sealed_shards
        return f"{hash((repr(self._state(standing)), tuple(claims), report.damaged, report.broken_parts, sealed)):x}"

    def _to_read(self) -> deque[RolloutStanding]:
        if self._pending is None:
            standings = self._listed()
            self._pending = deque(each for each in standings if self._read.get(each.rollout_id) != self._state(each))
            if len(self._rows) + self._unread() > len(standings):
                for gone in self._rows.keys() - {each.rollout_id for each in standings}:
                    del self._rows[gone]
                    self._read.pop(gone, None)
                    self._calls.forget(gone)
        return self._pending

    def _listed(self) -> list[RolloutStanding]:
        if self._standings is None:
            self._standings = self.store.standings()
        return self._standings

    def _unread(self) -> int:
        """Those that have no row yet; others are read once more because they grew."""
        return sum(each.rollout_id not in self._rows for each in self._pending or ())

    def _state(self, standing: RolloutStanding) -> _Read:
        # Of a NeMo Gym file the standing says nothing, so that it grew is seen by its size.
        beside = None if standing.calls is not None else self.files.get(names.nemo_gym_file(standing.rollout_id))
        return standing, beside


def _files_of(place: str | Path) -> dict[str, _Stat]:
    """The files that count, those of a run's shards too, each with inode, size and time.

    Beats and tokens are none of them: they say nothing about what was captured. What lies at a URI was sealed, and
    does not change: it is not looked at.
    """
    if is_uri(place):
        return {}
    directory = Path(place)
    listed = os.listdir(directory)
    found = _stats_of(directory, "", listed)
    for shard in names.shards_in(listed):
        folder = names.shard_folder(shard)
        try:
            found |= _stats_of(directory / folder, f"{folder}/", os.listdir(directory / folder))
        except (FileNotFoundError, NotADirectoryError):
            pass  # opening the store says what is missing
    return found


def _stats_of(folder: Path, prefix: str, listed: list[str]) -> dict[str, _Stat]:
    wanted = {names.RUN, *(each.file for each in names.segments_in(listed))}
    found: dict[str, _Stat] = {}
    for name in listed:
        if name in wanted or name.endswith((names.NEMO_GYM_SUFFIX, names.NEMO_GYM_INCOMPLETE_SUFFIX)):
            try:
                stat = os.stat(folder / name)
            except FileNotFoundError:
                continue  # gone since it was listed; the next look sees the same
            found[prefix + name] = stat.st_ino, stat.st_size, stat.st_mtime_ns
    return found


__all__ = ["Captured", "OpenedDirectory", "Progress"]
