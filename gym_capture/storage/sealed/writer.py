"""Sealing: rollouts become parts of a dataset, which the manifest lists once all of them are on disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gym_capture.errors import DamagedLog, DirectoryHeld
from gym_capture.model.captured import CapturedCall, CapturedRollout
from gym_capture.storage import fault_points
from gym_capture.storage.files import Files
from gym_capture.storage.sealed.arrow import pa, pq
from gym_capture.storage.sealed.arrow_files import Sink
from gym_capture.storage.sealed.call_columns import CallColumns
from gym_capture.storage.sealed.exact_columns import exact_columns
from gym_capture.storage.sealed.manifest import (
    Manifest,
    SealedFile,
    SealedPart,
    calls_file,
    part_files_in,
    read_manifest,
    replace_manifest,
    rollouts_file,
)
from gym_capture.storage.sealed.schema import CALLS, ROLLOUTS, TEXTS

GROUP_BYTES = 4 << 20
"""Bytes of exchanges after which a row group ends with its rollout: what is decoded to read one small rollout."""
LARGE_GROUP_BYTES = 64 << 20
"""Bytes after which it ends inside of a rollout: what sealing holds in memory."""
PART_BYTES = 256 << 20
"""Bytes of a part's calls on disk after which the next part begins."""
PART_GROUPS = 256
"""Row groups after which the next part begins: each costs about 5 KB of a footer that is read to find anything."""
_ROLLOUTS_A_GROUP = 4096
_LEVEL = 3
_PAGE_BYTES = 1 << 30
"""One page a column chunk: history repeats over a whole rollout, and a page is compressed by itself."""
_COPIED_BYTES = 1 << 20
_NAMES = ("dialect", "error_category", "finish_reason", "generation", "model", "model_name", "model_type", "rollout_id")


class SealedWriter:
    """Adds rollouts to a sealed dataset. One at a time in a folder; not safe for threads.

    What an earlier writer left without listing it is removed first. Nothing that is added is there before `commit`.

    Args:
        files: the dataset's folder.
        part_bytes, group_bytes, large_group_bytes: where parts and row groups end (tests make them small).

    Raises:
        DamagedLog, FormatError: the folder's manifest cannot be read.
    """

    def __init__(
        self,
        files: Files,
        *,
        part_bytes: int = PART_BYTES,
        group_bytes: int = GROUP_BYTES,
        large_group_bytes: int = LARGE_GROUP_BYTES,
    ) -> None:
        self._files = files
        self._part_bytes = part_bytes
        self._group_bytes = group_bytes
        self._large_group_bytes = large_group_bytes
        self._manifest = read_manifest(files)
        self._finished: list[SealedPart] = []
        self._withdrawn: set[int] = set()
        self._part: _Part | None = None
        self._last: tuple[str, int] | None = None
        listed = {file.name for part in self._manifest.parts for file in part.files}
        for name in part_files_in(files.names()):
            if name not in listed:
                files.remove(name)

    def add(self, rollout: CapturedRollout) -> None:
        """Take in one generation of a rollout.

        Raises:
            ValueError: it does not come after the one before in the order of (rollout id, generation).
            DirectoryHeld: another writer seals into this folder.
            OSError: it cannot be written. Nothing of this writer counts; begin another.
        """
        key = (rollout.rollout_id, rollout.generation)
        if self._last is not None and key <= self._last:
            raise ValueError(f"rollouts are sealed in order, and {key} comes after {self._last}")
        self._last = key
        part = self._part_in_work()
        part.begin(rollout)
        for call in rollout.calls:
            if part.held_bytes >= self._large_group_bytes:
                part.flush()
                if part.is_full(self._part_bytes):
                    part.end(rollout)
                    self._finish()
                    part = self._part_in_work()
                    part.begin(rollout)
            part.add(rollout, call)
        part.end(rollout)
        if part.held_bytes >= self._group_bytes:
            part.flush()
            if part.is_full(self._part_bytes):
                self._finish()

    def adopt(self, source: Files, part: SealedPart) -> None:
        """Copy a part of another dataset. Its rollouts may be added as well, with further calls or more to say.

        Args:
            source: the folder of that dataset.

        Raises:
            DamagedLog: it is not what that dataset's manifest says; nothing of it was taken over.
            OSError: it cannot be read or written. Nothing of this writer counts; begin another.
        """
        if self._part is not None:
            self._finish()
        number = self._next_number()
        calls = _copied(source, part.calls, self._files, calls_file(number))
        try:
            rollouts = _copied(source, part.rollouts, self._files, rollouts_file(number))
        except DamagedLog:
            self._files.remove(calls.name)
            raise
        self._finished.append(msgspec.structs.replace(part, number=number, calls=calls, rollouts=rollouts))

    def withdraw(self, numbers: Iterable[int]) -> None:
        """Take these parts out of the dataset with the next `commit` that makes anything part of it."""
        self._withdrawn.update(numbers)

    def commit(self) -> Manifest:
        """Make what was added part of the dataset, durably. The writer can go on.

        Raises:
            DirectoryHeld: another writer changed the dataset meanwhile; nothing of this one was made part of it.
            OSError: it cannot be written; what counts is what the manifest says.
        """
        if self._part is not None:
            self._finish()
        self._last = None
        if not self._finished:
            return self._manifest
        there = read_manifest(self._files)
        if there != self._manifest or not all(self._is_there(part) for part in self._finished):
            raise self._held()
        # A part goes only as others come, so its number is less than the greatest and never used again.
        kept = [part for part in there.parts if part.number not in self._withdrawn]
        manifest = Manifest(parts=(*kept, *self._finished))
        replace_manifest(self._files, manifest)
        for part in there.parts:
            if part.number in self._withdrawn:
                for file in part.files:
                    self._files.remove(file.name)
        self._manifest, self._finished, self._withdrawn = manifest, [], set()
        return manifest

    def abandon(self) -> None:
        """Remove what was added since the last `commit`."""
        names = [file.name for part in self._finished for file in part.files]
        part, self._part, self._finished, self._last = self._part, None, [], None
        if part is not None:
            part.close()
            names += part.names
        # Another writer may have removed ours, and given its own files the same names.
        listed = {file.name for each in read_manifest(self._files).parts for file in each.files}
        for name in names:
            if name not in listed:
                self._files.remove(name)

    def _is_there(self, part: SealedPart) -> bool:
        try:
            return all(self._files.size(file.name) == file.size for file in part.files)
        except FileNotFoundError:
            return False

    def _part_in_work(self) -> _Part:
        if self._part is None:
            try:
                self._part = _Part(self._files, self._next_number())
            except FileExistsError as error:
                raise self._held() from error
        return self._part

    def _next_number(self) -> int:
        return max((part.number for part in self._manifest.parts), default=0) + len(self._finished) + 1

    def _held(self) -> DirectoryHeld:
        return DirectoryHeld(
            f"another writer seals into {self._files.directory}. Nothing of this one counts; let one of them end."
        )

    def _finish(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            self._finished.append(part.finish())


class _Part:
    """The part that is being written."""

    def __init__(self, files: Files, number: int) -> None:
        self._number = number
        self.names = (calls_file(number), rollouts_file(number))
        self._calls = _ParquetFile(files, self.names[0], CALLS)
        self._rollouts = _ParquetFile(files, self.names[1], ROLLOUTS)
        self._rows: list[dict[str, Any]] = []
        self._view = CallColumns()
        self._calls_held: list[CapturedCall] = []
        self._first = ""
        self._last = ""
        self._rollout_count = 0
        self._call_count = 0
        self._raw_bytes = 0
        self._started = (0, 0)
        self.held_bytes = 0

    def is_full(self, part_bytes: int) -> bool:
        """Whether the next rollout begins another part."""
        return self._calls.size >= part_bytes or self._calls.groups >= PART_GROUPS

    def begin(self, rollout: CapturedRollout) -> None:
        """A rollout's calls follow."""
        self._first = self._first or rollout.rollout_id
        self._last = rollout.rollout_id
        self._started = (self._call_count, self._raw_bytes)

    def add(self, rollout: CapturedRollout, call: CapturedCall) -> None:
        """One of its calls."""
        size = call.raw_bytes
        self._view.add(rollout.rollout_id, rollout.generation, call)
        self._calls_held.append(call)
        self._call_count += 1
        self._raw_bytes += size
        self.held_bytes += size

    def end(self, rollout: CapturedRollout) -> None:
        """All its calls of this part were added."""
        first_row, raw_before = self._started
        reasons = rollout.reasons
        self._rows.append(
            {
                "rollout_id": rollout.rollout_id,
                "generation": rollout.generation,
                "calls": self._call_count - first_row,
                "indexes": rollout.indexes,
                "incomplete": None
                if reasons is None
                else [{"reason": name, "count": count} for name, count in sorted(reasons.items())],
                "outstanding": rollout.outstanding,
                "late": rollout.late,
                "first_row": first_row,
                "raw_bytes": self._raw_bytes - raw_before,
            }
        )
        self._rollout_count += 1
        if len(self._rows) >= _ROLLOUTS_A_GROUP:
            self._flush_rollouts()

    def flush(self) -> None:
        """Write the calls that are held as a row group."""
        if len(self._view):
            columns = self._view.take()
            held, self._calls_held = self._calls_held, []
            columns |= exact_columns(held)
            self._calls.write(pa.table(columns, schema=CALLS))
            self.held_bytes = 0

    def _flush_rollouts(self) -> None:
        if self._rows:
            self._rollouts.write(pa.Table.from_pylist(self._rows, schema=ROLLOUTS))
            self._rows = []

    def finish(self) -> SealedPart:
        """Both files whole and on disk."""
        self.flush()
        self._flush_rollouts()
        calls, rollouts = self._calls.finish(), self._rollouts.finish()
        return SealedPart(
            self._number,
            calls,
            rollouts,
            self._first,
            self._last,
            self._rollout_count,
            self._call_count,
            self._raw_bytes,
        )

    def close(self) -> None:
        """Give the descriptors back."""
        self._calls.close()
        self._rollouts.close()


class _ParquetFile:
    """One Parquet file that is being written."""

    def __init__(self, files: Files, name: str, schema: Any) -> None:
        self._name = name
        self._file = files.create_append(name, fault_points.SEALED_FILE)
        self._sink = Sink(self._file, fault_points.SEALED_APPEND)
        payloads = {"record", *TEXTS}
        dictionaries: Sequence[str] = [name for name in _NAMES if name in schema.names and schema is CALLS]
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=_LEVEL,
            use_dictionary=dictionaries or False,
            # The history that a request repeats is a prefix of it: even where it is longer than what zstd looks back.
            column_encoding={name: "DELTA_BYTE_ARRAY" for name in schema.names if name in payloads} or None,
            write_statistics=[name for name in schema.names if name not in payloads],
            write_page_index=True,
            write_page_checksum=True,
            data_page_size=_PAGE_BYTES,
            store_schema=True,
        )
        self.groups = 0

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._sink.size

    def write(self, table: Any) -> None:
        """One row group."""
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self.groups += 1

    def finish(self) -> SealedFile:
        """The whole file, synced."""
        self._writer.close()
        self._sink.append_held()
        self._file.sync(fault_points.SEALED_SYNC)
        made = SealedFile(self._name, self._sink.size, self._sink.crc)
        self._sink.close()
        return made

    def close(self) -> None:
        """Give the descriptor back; the file is not whole."""
        self._sink.close()


def _copied(source: Files, file: SealedFile, files: Files, name: str) -> SealedFile:
    """A file under another name in another folder, synced."""
    target = files.create_append(name, fault_points.SEALED_FILE)
    sink = Sink(target, fault_points.SEALED_APPEND)
    try:
        while piece := _read(source, file.name, sink.size):
            sink.write(piece)
        sink.append_held()
        made = SealedFile(name, sink.size, sink.crc)
        if (made.size, made.crc32c) == (file.size, file.crc32c):
            target.sync(fault_points.SEALED_SYNC)
            return made
    finally:
        sink.close()
    files.remove(name)
    raise DamagedLog(f"{file.name} in {source.directory} is not what its manifest says. Nothing was taken of it.")


def _read(source: Files, name: str, offset: int) -> bytes:
    try:
        return source.read_at(name, offset, _COPIED_BYTES)
    except OSError as error:
        # Which disk it was matters: what cannot be read here may be left out, what cannot be written ends the work.
        raise DamagedLog(f"{name} in {source.directory} cannot be read ({error}). Nothing was taken of it.") from error


__all__ = ["GROUP_BYTES", "PART_BYTES", "SealedWriter"]
