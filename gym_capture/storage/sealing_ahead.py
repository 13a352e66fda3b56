"""Sealing finished rollouts while their run goes on, so that little is left to be sealed at its end.

It reads the directory beside the owner and writes a dataset of its own, `sealed-ahead`. The log stays whole and counts:
readers go by it, and when the run is sealed, of this dataset is taken over what still says the same (`agreement`). So
nothing depends on it, and it may be killed anywhere. For whoever reads Parquet it has each finished rollout once.
`docs/decisions/0014-sealed-dataset.md` says why segments stay until the run is over.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from gym_capture.errors import DamagedLog, FormatError
from gym_capture.model.captured import CountedCalls
from gym_capture.storage import names
from gym_capture.storage.closing import refuse_closed
from gym_capture.storage.held_files import HeldFiles
from gym_capture.storage.nemo_gym_files import NemoGymFiles
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.sealed.agreement import SealedSoFar, agreed
from gym_capture.storage.sealed.manifest import read_manifest
from gym_capture.storage.sealed.reader import SealedReader
from gym_capture.storage.sealed.writer import SealedWriter
from gym_capture.storage.shard_store import ShardStore
from gym_capture.storage.standing import RolloutStanding

AHEAD_BYTES = 512 << 20
"""Bytes of finished exchanges, before compression, after which they are sealed: half of what a part may hold. Smaller
parts are more files, and more footers for whoever looks for a rollout."""


@dataclass(slots=True)
class AheadReport:
    """What one sealer did so far: how many `parts` it wrote, with how many `calls`."""

    parts: int = 0
    calls: int = 0


class _Size(NamedTuple):
    """What a rollout had to be sealed when it was looked up: `size` in bytes; None: it was not finished."""

    standing: RolloutStanding
    page: bytes | None
    size: int | None

    def may_be_finished(self, page: bytes | None) -> bool:
        """Whether it was not, and may be by now. A merge changes no standing; yet it brings a rollout that was on disk
        only back into memory, so one that lies there as it did was not merged."""
        return self.size is None and (page is None or page != self.page)


class AheadSealer:
    """Seals the finished rollouts of one shard, whenever there are enough of them. One at a time in a directory.

    Finished is what was merged, has no claim open and lacks nothing that a merge could still return. What comes to such
    a rollout later is sealed with the rest; if it is cleared, its part is written anew without it.

    Args:
        files: the shard's directory; only `sealed-ahead` in it is written to.
        least_bytes: so much has to be finished before a part is begun.

    Attributes:
        report: what was done so far.
    """

    def __init__(self, files: PosixFiles, *, least_bytes: int = AHEAD_BYTES) -> None:
        self.report = AheadReport()
        self._files = files
        self._least_bytes = least_bytes
        self._log: ShardStore | None = None
        self._epoch: int | None = None
        self._sealed: dict[str, SealedSoFar] = {}
        self._unlike: set[int] = set()
        self._sizes: dict[str, _Size] = {}
        self._unreadable: set[str] = set()

    def step(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """See what is finished by now, and seal it if it is enough. Blocks, for seconds where it seals.

        Args:
            stopped: asked between two rollouts; once it says yes, what was begun is left out.

        Returns:
            Whether something was sealed.

        Raises:
            RunSealed: the run is sealed; there is nothing left to do.
            DirectoryHeld: another one seals ahead here.
            DamagedLog, FormatError, OSError: the log or the dataset cannot be read or written.
        """
        refuse_closed(self._files)
        if self._log is None:
            self._log = ShardStore(self._files, NemoGymFiles(self._files))
        else:
            self._log.refresh()
        self._compare(self._log)
        if sum(self._due(self._log).values()) < self._least_bytes:
            return False
        # Opened anew next time: what a reader holds of a live run grows for as long as it is open.
        self._log = None
        with HeldFiles(self._files.directory) as held:
            return self._seal(ShardStore(held, NemoGymFiles(held)), stopped)

    def _compare(self, log: ShardStore) -> None:
        """Find out which parts say what the log says, where that may have changed: at first, by a takeover, a clear."""
        listed = self._files.names()
        epoch = max(names.epochs_in(listed), default=0)
        cleared = any(log.generation(each) != sealed.last.generation for each, sealed in self._sealed.items())
        if epoch == self._epoch and not cleared:
            return
        self._epoch = epoch
        self._sealed, self._unlike, self._sizes = {}, set(), {}
        if names.SEALED_AHEAD in listed:
            reader = self._reader()
            for part in reader.manifest.parts:
                found = agreed(reader, part, self._sealed, log.view)
                if found is None:
                    self._unlike.add(part.number)
                else:
                    self._sealed |= found

    def _reader(self) -> SealedReader:
        try:
            return SealedReader(self._files.folder(names.SEALED_AHEAD))
        except (DamagedLog, FormatError) as error:
            raise type(error)(
                f"what was sealed ahead in {self._files.directory} cannot be gone on with ({error}) It is in the log, "
                f"too: remove {names.SEALED_AHEAD} there, and it is sealed again."
            ) from error

    def _due(self, log: ShardStore) -> dict[str, int]:
        """The bytes that are to be sealed of each finished rollout, before compression, sorted by id."""
        due: dict[str, int] = {}
        for each in log.standings():
            sealed = self._sealed_calls(each.rollout_id, each.generation)
            if each.calls and each.calls != sealed and each.rollout_id not in self._unreadable:
                known, page = self._sizes.get(each.rollout_id), log.page_of(each.rollout_id)
                if known is None or known.standing != each or known.may_be_finished(page):
                    known = _Size(each, page, log.finished_bytes(each.rollout_id, sealed))
                    self._sizes[each.rollout_id] = known
                if known.size is not None:
                    due[each.rollout_id] = known.size
        return due

    def _sealed_calls(self, rollout_id: str, generation: int) -> int:
        sealed = self._sealed.get(rollout_id)
        return sealed.calls if sealed is not None and sealed.last.generation == generation else 0

    def _seal(self, log: ShardStore, stopped: Callable[[], bool]) -> bool:
        dataset = self._files.folder(names.SEALED_AHEAD, make=True)
        writer = SealedWriter(dataset)
        known = {part.number for part in read_manifest(dataset).parts}
        try:
            if not self._write(writer, log, stopped):
                writer.abandon()
                return False
            writer.withdraw(self._unlike)
            added = [part for part in writer.commit().parts if part.number not in known]
        except Exception:
            with suppress(OSError):
                writer.abandon()
            raise
        self._unlike = set()
        reader = SealedReader(dataset)
        for part in added:
            for row in reader.rows_of(part):
                before = self._sealed_calls(row.rollout_id, row.generation)
                self._sealed[row.rollout_id] = SealedSoFar(row, before + row.calls)
                self._sizes.pop(row.rollout_id, None)
            self.report.parts += 1
            self.report.calls += part.call_count
        return bool(added)

    def _write(self, writer: SealedWriter, log: ShardStore, stopped: Callable[[], bool]) -> bool:
        for rollout_id in self._due(log):
            if stopped():
                return False
            first = self._sealed_calls(rollout_id, log.generation(rollout_id))
            found = log.captured(rollout_id, first=first)
            counted = CountedCalls(found.calls)
            writer.add(found._replace(calls=counted))
            if first + counted.calls != found.indexes:
                # What is damaged is for whoever ends the run to see.
                self._unreadable.add(rollout_id)
                return False
        return True


__all__ = ["AHEAD_BYTES", "AheadReport", "AheadSealer"]
