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
from typing import Any, NamedTuple

from gym_capture.errors import DamagedLog, FormatError
from gym_capture.model.captured import CountedCalls
from gym_capture.storage import names
from gym_capture.storage.closing import refuse_closed
from gym_capture.storage.held_files import HeldFiles
from gym_capture.storage.nemo_gym_files import NemoGymFiles
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.sealed.agreement import SealedSoFar, agreed
from gym_capture.storage.sealed.manifest import Manifest, read_manifest
from gym_capture.storage.sealed.reader import SealedReader
from gym_capture.storage.sealed.writer import SealedWriter
from gym_capture.storage.shard_store import ShardStore
from gym_capture.storage.standing import RolloutStanding

AHEAD_BYTES = 512 << 20
"""Bytes of finished exchanges, before compression, after which they are sealed: half of what a part may hold. Smaller
parts are more files, and more footers for whoever looks for a rollout."""

_REFRESHES = 30
"""After so many looks the log is opened anew, behind a checkpoint: until then what a reader holds of a run grows."""


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
        part_bytes: so much of it makes one, with the rollout that reaches it.

    Attributes:
        report: what was done so far.
    """

    def __init__(self, files: PosixFiles, *, least_bytes: int = AHEAD_BYTES, part_bytes: int = AHEAD_BYTES) -> None:
        self.report = AheadReport()
        self._files = files
        self._least_bytes = least_bytes
        self._part_bytes = part_bytes
        self._log: ShardStore | None = None
        self._refreshed = 0
        self._compared: tuple[Manifest, tuple[Any, ...]] | None = None
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
        if self._log is None or self._refreshed >= _REFRESHES:
            self._log, self._refreshed = ShardStore(self._files, NemoGymFiles(self._files)), 0
        else:
            self._log.refresh()
            self._refreshed += 1
        if not self._is_enough(self._log):
            return False
        self._log = None
        try:
            with HeldFiles(self._files.directory) as held:
                log = ShardStore(held, NemoGymFiles(held))
                # It is looked at anew: what was sealed may have been cleared, and finished again, since the first look.
                return self._is_enough(log) and self._seal(log, stopped)
        except OSError:
            refuse_closed(self._files)  # the run was sealed meanwhile, and the folder removed
            raise

    def _is_enough(self, log: ShardStore) -> bool:
        """Whether a part is to be written, of what this log says; what was sealed is compared with it first."""
        self._compare(log)
        if self._unlike and log.report.damaged:
            return False  # parts of which the log has lost something may be all that is left: they stay as they are
        return sum(self._due(log).values()) >= self._least_bytes

    def _compare(self, log: ShardStore) -> None:
        """Find out which parts say what the log says, where that may have changed: at first, by a takeover, by a clear,
        by somebody else who seals ahead here, or removed it."""
        reader = self._reader()
        compared = (Manifest() if reader is None else reader.manifest, log.takeovers)
        cleared = any(log.generation(each) != sealed.last.generation for each, sealed in self._sealed.items())
        if compared == self._compared and not cleared:
            return
        self._compared = compared
        self._sealed, self._unlike, self._sizes = {}, set(), {}
        if reader is None:
            return
        for part in reader.manifest.parts:
            found = agreed(reader, part, self._sealed, log.view)
            if found is None:
                self._unlike.add(part.number)
            else:
                self._sealed |= found

    def _reader(self) -> SealedReader | None:
        if names.SEALED_AHEAD not in self._files.names():
            return None
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
        refuse_closed(self._files)
        dataset = self._files.folder(names.SEALED_AHEAD, make=True)
        there = read_manifest(dataset)
        if self._compared is None or there != self._compared[0]:
            return False  # somebody else sealed ahead here, or removed it: it is compared anew first
        known = {part.number for part in there.parts}
        writer = SealedWriter(dataset)
        try:
            if not self._write(writer, log, stopped):
                writer.abandon()
                return False
            writer.withdraw(self._unlike)
            manifest = writer.commit()
            added = [part for part in manifest.parts if part.number not in known]
        except Exception:
            with suppress(OSError):
                writer.abandon()
            raise
        if added:
            self._unlike = set()
        self._compared = (manifest, self._compared[1])
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
        """Write as much as makes a part. False: nothing of it is to count."""
        written = 0
        for rollout_id, size in self._due(log).items():
            if written >= self._part_bytes:
                break
            written += size
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
