"""Reading a sealed dataset: one rollout without the others, or all of them in order."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import google_crc32c

from gym_capture.errors import DamagedLog, GymCaptureError
from gym_capture.model.captured import STORED_FLAGS, CapturedCall, CapturedRollout
from gym_capture.model.exchange import Text
from gym_capture.model.rows import PartKind
from gym_capture.storage.files import Files
from gym_capture.storage.sealed.arrow import pa, pc, pq
from gym_capture.storage.sealed.arrow_files import Source
from gym_capture.storage.sealed.manifest import Manifest, SealedFile, SealedPart, read_manifest
from gym_capture.storage.sealed.schema import FLAG_BITS, TEXTS

_OPEN_FILES = 32
"""Footers kept: each is up to about 1 MB."""
_CHECKED_BYTES = 1 << 20
_WHOSE = ["rollout_id", "generation", "call_index", "raw_bytes"]
_NAMED = ["rollout_id", "generation", "call_index", "model_call_id", "digest"]
_IDENTITY = [*_WHOSE, "model_call_id", "digest", "derivation", "flags", "record"]


class SealedRow(NamedTuple):
    """Where the calls of one generation of a rollout lie in a part, and what is known of it (`schema.ROLLOUTS`)."""

    part: SealedPart
    rollout_id: str
    generation: int
    calls: int
    indexes: int
    reasons: dict[str, int] | None
    outstanding: int
    late: int
    first_row: int
    raw_bytes: int


class SealedReader:
    """A sealed dataset, as its manifest was when this was made or refreshed. Not safe for threads.

    Args:
        files: the dataset's folder.

    Attributes:
        unread: the files of calls in which something was damaged that `readable` or `rows_by_calls` left out.

    Raises:
        DamagedLog, FormatError: its manifest cannot be read.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self.unread: set[str] = set()
        self._opened: OrderedDict[str, _Parquet] = OrderedDict()
        self.manifest: Manifest = read_manifest(files)

    def refresh(self) -> None:
        """Take in what was sealed since."""
        self.manifest = read_manifest(self._files)

    @property
    def directory(self) -> str:
        """The folder's path as it was given."""
        return self._files.directory

    @property
    def call_files(self) -> list[str]:
        """The paths of the files that hold the exchanges, for whoever reads Parquet. Only these count."""
        return [f"{self._files.directory}/{part.calls.name}" for part in self.manifest.parts]

    @property
    def rollout_files(self) -> list[str]:
        """The paths of the files that hold the rollouts."""
        return [f"{self._files.directory}/{part.rollouts.name}" for part in self.manifest.parts]

    def rollout_ids(self) -> list[str]:
        """Every rollout that is sealed, sorted."""
        found: set[str] = set()
        for part in self.manifest.parts:
            with _damage_named(self, part.rollouts):
                found.update(self._parquet(part.rollouts).column("rollout_id"))
        return sorted(found)

    def generations(self, rollout_id: str) -> list[int]:
        """The generations of a rollout that are sealed, ascending."""
        return sorted({row.generation for row in self._rows(rollout_id)})

    def rollout(self, rollout_id: str, generation: int | None = None, *, texts: bool = True) -> CapturedRollout | None:
        """One generation of a rollout (None: the last that is sealed); None when it is not there.

        Args:
            texts: False: what is derived of the exchanges is enough; their texts are not read.

        Raises:
            DamagedLog: a file of it is damaged or gone.
        """
        rows = self._rows(rollout_id)
        if generation is None and rows:
            generation = max(row.generation for row in rows)
        rows = [row for row in rows if row.generation == generation]
        return self._gathered(rows, texts) if rows else None

    def rows(self) -> Iterator[SealedRow]:
        """What is known of every generation of every rollout, part by part; no exchange is read."""
        for part in self.manifest.parts:
            yield from self.rows_of(part)

    def rows_of(self, part: SealedPart) -> Iterator[SealedRow]:
        """The same of one part.

        Raises:
            DamagedLog: its file of rollouts is damaged or gone.
        """
        with _damage_named(self, part.rollouts):
            parquet = self._parquet(part.rollouts)
            for group in range(parquet.groups):
                yield from _as_rows(part, parquet.group(group, None))

    def identities(self, part: SealedPart) -> list[tuple[str, int, int, str, bytes]]:
        """Of each call of a part: rollout id, generation, call index, model call id, digest.

        Raises:
            DamagedLog: its file of calls is damaged or gone.
        """
        found: list[tuple[str, int, int, str, bytes]] = []
        with _damage_named(self, part.calls):
            parquet = self._parquet(part.calls)
            for group in range(parquet.groups):
                table = parquet.group(group, _NAMED)
                found += zip(*(table.column(name).to_pylist() for name in _NAMED), strict=True)
        return found

    def rows_by_calls(self, part: SealedPart) -> list[SealedRow]:
        """What a part's calls say of its rollouts, where its file of rollouts is damaged: that each has these calls.

        A rollout has a row for each row group that it has calls in; row groups that are damaged are left out.
        """
        rows: list[SealedRow] = []
        try:
            with _damage_named(self, part.calls):
                parquet = self._parquet(part.calls)
        except DamagedLog:
            self.unread.add(part.calls.name)
            return rows
        for group in range(parquet.groups):
            try:
                with _damage_named(self, part.calls):
                    rows += _by_calls(part, parquet.starts[group], parquet.group(group, _WHOSE))
            except DamagedLog:
                self.unread.add(part.calls.name)
        return rows

    def readable(self, rows: Sequence[SealedRow], *, texts: bool = True) -> CapturedRollout:
        """A rollout from all rows of one generation of it; calls that cannot be read any more are left out."""
        return self._gathered(rows, texts, strict=False)

    def rollouts(self, *, texts: bool = True) -> Iterator[CapturedRollout]:
        """Every generation of every rollout, in the order of (rollout id, generation).

        Args:
            texts: False: what is derived of the exchanges is enough; their texts are not read.
        """
        streams = [self.rows_of(part) for part in self.manifest.parts]
        held: list[SealedRow] = []
        for row in heapq.merge(*streams, key=_order):
            if held and _order(held[0]) != _order(row):
                yield self._gathered(held, texts)
                held = []
            held.append(row)
        if held:
            yield self._gathered(held, texts)

    def verify(self) -> list[str]:
        """Read every file, and say which of them are not what the manifest says."""
        return [
            file.name for part in self.manifest.parts for file in part.files if _sum(self._files, file) != file.crc32c
        ]

    def there(self) -> tuple[int, int]:
        """How many of the manifest's files are there, and their bytes."""
        sizes = []
        for part in self.manifest.parts:
            for file in part.files:
                try:
                    sizes.append(self._files.size(file.name))
                except FileNotFoundError:
                    pass  # `verify` names it
        return len(sizes), sum(sizes)

    def call_tables(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The calls file by file and row group by row group, as Arrow tables.

        Args:
            columns: of `schema.CALLS`; None: all.
        """
        for part in self.manifest.parts:
            with _damage_named(self, part.calls):
                parquet = self._parquet(part.calls)
                for group in range(parquet.groups):
                    yield parquet.group(group, columns)

    def _rows(self, rollout_id: str) -> list[SealedRow]:
        found: list[SealedRow] = []
        for part in self.manifest.parts:
            if part.first <= rollout_id <= part.last:
                with _damage_named(self, part.rollouts):
                    parquet = self._parquet(part.rollouts)
                    for group in parquet.groups_with("rollout_id", rollout_id):
                        table = parquet.group(group, None)
                        wanted = pc.equal(table.column("rollout_id"), rollout_id)
                        found += _as_rows(part, table.filter(wanted))
        return found

    def _gathered(self, rows: Sequence[SealedRow], texts: bool = True, strict: bool = True) -> CapturedRollout:
        """A rollout from its rows, in the order in which they were sealed: what the last says of it holds."""
        last = rows[-1]
        calls = self._calls(rows[0], texts, strict) if len(rows) == 1 else self._merged(rows, texts, strict)
        return CapturedRollout(
            last.rollout_id, last.generation, calls, last.indexes, last.reasons, last.outstanding, last.late
        )

    def _merged(self, rows: Sequence[SealedRow], texts: bool, strict: bool) -> Iterator[CapturedCall]:
        before = -1
        streams = [self._calls(row, texts, strict) for row in rows]
        for call in heapq.merge(*streams, key=lambda call: call.call_index):
            if call.call_index != before:
                before = call.call_index
                yield call

    def _calls(self, row: SealedRow, texts: bool, strict: bool) -> Iterator[CapturedCall]:
        wanted = TEXTS if texts else {}
        at, end = row.first_row, row.first_row + row.calls
        while at < end:
            count = 0
            try:
                with _damage_named(self, row.part.calls):
                    parquet = self._parquet(row.part.calls)
                    group, offset, rows = parquet.place(at)
                    count = min(rows - offset, end - at)
                    table = parquet.group(group, [*_IDENTITY, *wanted]).slice(offset, count)
                    _require_rollout(table, row)
                    yield from _as_calls(table, wanted)
            except DamagedLog:
                if strict:
                    raise
                self.unread.add(row.part.calls.name)
                if not count:
                    return  # not this row group, but the whole file
            at += count

    def _parquet(self, file: SealedFile) -> _Parquet:
        found = self._opened.get(file.name)
        if found is None:
            if self._files.size(file.name) != file.size:
                raise ValueError(f"it has not the {file.size} bytes that the manifest says")
            found = self._opened[file.name] = _Parquet(Source(self._files, file.name))
            if len(self._opened) > _OPEN_FILES:
                self._opened.popitem(last=False)
        self._opened.move_to_end(file.name)
        return found


class _Parquet:
    """One open Parquet file."""

    def __init__(self, source: Source) -> None:
        self._file = pq.ParquetFile(source, page_checksum_verification=True)
        self._metadata = self._file.metadata
        self.groups: int = self._metadata.num_row_groups
        rows = (self._metadata.row_group(group).num_rows for group in range(self.groups))
        self.starts: list[int] = list(accumulate(rows, initial=0))
        self._kept: tuple[tuple[int, tuple[str, ...]], Any] | None = None

    def column(self, name: str) -> list[Any]:
        """All values of a column."""
        values: list[Any] = self._file.read(columns=[name]).column(0).to_pylist()
        return values

    def group(self, group: int, columns: Sequence[str] | None) -> Any:
        """One row group. The last one is kept: rollouts that follow each other are often in the same."""
        key = (group, tuple(columns or ()))
        if self._kept is None or self._kept[0] != key:
            self._kept = None
            names = None if columns is None else list(columns)
            self._kept = (key, self._file.read_row_group(group, columns=names, use_threads=False))
        return self._kept[1]

    def groups_with(self, column: str, value: str) -> list[int]:
        """The row groups whose statistics do not rule a value out."""
        index = self._metadata.schema.to_arrow_schema().get_field_index(column)
        found = []
        for group in range(self.groups):
            statistics = self._metadata.row_group(group).column(index).statistics
            if statistics is None or not statistics.has_min_max or statistics.min <= value <= statistics.max:
                found.append(group)
        return found

    def place(self, row: int) -> tuple[int, int, int]:
        """The row group of a row, the row's place in it, and how many rows the group has."""
        group = bisect_right(self.starts, row) - 1
        return group, row - self.starts[group], self.starts[group + 1] - self.starts[group]


_BY_DAMAGE = (OSError, ValueError, TypeError, LookupError, OverflowError, pa.ArrowException)


class _damage_named:  # noqa: N801 - used as a statement
    """Say which file it was that is damaged. What the system refuses (rights, descriptors, a disk's error) is none."""

    def __init__(self, reader: SealedReader, file: SealedFile) -> None:
        self._where = f"{file.name} in {reader.directory}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, FileNotFoundError):
            return
        # A damaged footer may be read all the same, and say that columns are others, or null.
        if isinstance(error, _BY_DAMAGE) and not isinstance(error, GymCaptureError):
            raise DamagedLog(
                f"{self._where} is damaged or gone ({error}). Nothing was changed; restore it from a copy, the other "
                "files can be read."
            ) from error


def _as_rows(part: SealedPart, table: Any) -> list[SealedRow]:
    rows = []
    for each in table.to_pylist():
        reasons = each["incomplete"]
        rows.append(
            SealedRow(
                part,
                each["rollout_id"],
                each["generation"],
                each["calls"],
                each["indexes"],
                None if reasons is None else {reason["reason"]: reason["count"] for reason in reasons},
                each["outstanding"],
                each["late"],
                each["first_row"],
                each["raw_bytes"],
            )
        )
    return rows


def _by_calls(part: SealedPart, first: int, table: Any) -> list[SealedRow]:
    """The rows that a row group of calls stands for; it begins with the part's row `first`."""
    rollouts, generations, indexes, sizes = (table.column(name).to_pylist() for name in _WHOSE)
    rows: list[SealedRow] = []
    at = 0
    for (rollout_id, generation), group in groupby(zip(rollouts, generations, strict=True)):
        end = at + sum(1 for _ in group)
        known = max(indexes[at:end]) + 1
        size = sum(sizes[at:end])
        rows.append(SealedRow(part, rollout_id, generation, end - at, known, None, 0, 0, first + at, size))
        at = end
    return rows


def _require_rollout(table: Any, row: SealedRow) -> None:
    """Raise ValueError where these are not calls of this rollout alone: a footer has no checksum."""
    whose = [table.column(name).unique().to_pylist() for name in ("rollout_id", "generation")]
    if whose != [[row.rollout_id], [row.generation]]:
        raise ValueError("its calls lie elsewhere than its rollouts say")


def _as_calls(table: Any, wanted: Mapping[str, PartKind]) -> Iterator[CapturedCall]:
    # Column by column and value by value: one exchange may be large, and only one is held as Python bytes.
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    for row in range(table.num_rows):
        get = partial(_value, columns, row)
        flags = get("flags")
        texts = {}
        for name, kind in wanted.items():
            data = get(name)
            if data is not None:
                texts[kind] = Text(data, flags >> FLAG_BITS * kind & STORED_FLAGS)
        yield CapturedCall(
            get("call_index"),
            get("model_call_id"),
            get("digest"),
            get("record"),
            texts,
            get("raw_bytes"),
            get("derivation"),
        )


def _value(columns: dict[str, Any], row: int, name: str) -> Any:
    return columns[name][row].as_py()


def _order(row: SealedRow) -> tuple[str, int]:
    return row.rollout_id, row.generation


def _sum(files: Files, file: SealedFile) -> int | None:
    """The CRC-32C of a file's bytes; None where there are not as many as there should be."""
    crc = 0
    try:
        if files.size(file.name) != file.size:
            return None
        for at in range(0, file.size, _CHECKED_BYTES):
            crc = google_crc32c.extend(crc, files.read_at(file.name, at, _CHECKED_BYTES))
    except FileNotFoundError:
        return None
    return int(crc)


__all__ = ["SealedReader", "SealedRow"]
