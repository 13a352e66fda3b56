"""One shard of a run that was sealed: what `ShardStore` gives of a log, given of its dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import Any

from gym_capture.errors import DamagedLog
from gym_capture.model.captured import CapturedCall, CapturedRollout
from gym_capture.model.codec import FrameRef
from gym_capture.model.evidence import gather_evidence
from gym_capture.model.exchange import PAYLOADS
from gym_capture.model.ids import validate_rollout_id
from gym_capture.model.merge import RolloutEvidence
from gym_capture.model.rollout_state import UNACCOUNTED, Entry, RolloutView
from gym_capture.storage.file_checks import FileDamage, check_files
from gym_capture.storage.files import FolderFiles
from gym_capture.storage.nemo_gym_files import NemoGymFiles
from gym_capture.storage.recovery_report import RecoveryReport
from gym_capture.storage.sealed.manifest import MANIFEST
from gym_capture.storage.sealed.reader import SealedReader, SealedRow
from gym_capture.storage.sealed.rollout_index import RolloutIndex
from gym_capture.storage.shard_store import ShardStore
from gym_capture.storage.standing import OpenClaim, RolloutStanding, StoredRecord
from gym_capture.storage.verify import ReadDataset, VerifyReport


class SealedShard:
    """What a sealed shard holds, and what lies beside it of its rollouts. Reads only; nothing of it changes any more.

    Args:
        files: the shard's directory.
        folder: its dataset.
        beside: NeMo Gym's files of its rollouts; where the dataset knows an id too, it alone counts.

    Raises:
        DamagedLog, FormatError: the dataset's manifest is gone or cannot be read.
        MissingExtra: pyarrow is not installed.
    """

    def __init__(self, files: FolderFiles, folder: str, beside: NemoGymFiles) -> None:
        self._files = files
        self._sealed = folder
        self._nemo_gym = beside
        try:
            dataset = files.folder(folder)
            dataset.size(MANIFEST)
        except OSError as error:
            raise DamagedLog(
                f"the run in {files.directory} was sealed into {folder}, and that cannot be read ({error}). Nothing "
                "was changed; restore the folder from a copy."
            ) from error
        self._reader = SealedReader(dataset)
        # The dataset's folder has no log: what this gives is what lies beside.
        self._beside = ShardStore(dataset, beside)
        self._index: RolloutIndex | None = None

    @property
    def folder(self) -> str:
        """The name of its directory."""
        return os.path.basename(self._files.directory)

    @property
    def report(self) -> RecoveryReport:
        """There is no log. It tells of damaged files: those that list rollouts, and those of calls that were read."""
        index = self._known()
        return RecoveryReport(
            indexes=[lost._replace(file=f"{self._sealed}/{lost.file}") for lost in index.lost],
            call_files=[f"{self._sealed}/{name}" for name in sorted(self._reader.unread)],
            affected=index.affected,
        )

    def refresh(self) -> None:
        """Nothing is ever added."""

    def rollout_ids(self) -> list[str]:
        """Every id that has evidence (or is marked), sorted."""
        sealed = {name for name, rows in self._rows().items() if _has_evidence(rows[-1])}
        return sorted(sealed | {name for name in self._nemo_gym.rollout_ids() if not self._knows(name)})

    def standings(self) -> list[RolloutStanding]:
        """How every rollout stands, sorted by id."""
        beside = {name for name in self._nemo_gym.rollout_ids() if not self._knows(name)}
        found = [_standing(rows) for name, rows in self._rows().items() if name not in beside]
        found += map(self._stands_beside, beside)
        return sorted(found, key=itemgetter(0))

    def standing(self, rollout_id: str) -> RolloutStanding:
        """How one rollout stands; one that is nowhere has nothing."""
        validate_rollout_id(rollout_id)
        if self._lies_beside(rollout_id):
            return self._stands_beside(rollout_id)
        rows = self._rows().get(rollout_id)
        if rows is None:
            return RolloutStanding(rollout_id, 0, 0, reasons=self._known().reasons(rollout_id, None))
        return _standing(rows)

    def records(self, rollout_id: str, first: int = 0) -> Iterator[StoredRecord]:
        """The RECORD parts of a rollout's calls, from call index `first` on; those that were damaged since are None."""
        validate_rollout_id(rollout_id)
        if self._lies_beside(rollout_id):
            yield from self._beside.records(rollout_id, first)
            return
        found = self._rollout(rollout_id, texts=False)
        records: dict[int, bytes | None] = {call.call_index: call.record for call in found.calls}
        lost = sum(row.calls for row in self._rows().get(rollout_id, ())) - len(records)
        if lost > 0:
            # Where some were damaged before, which are which is not known; how many is.
            missing = (index for index in range(found.indexes) if index not in records)
            records |= dict.fromkeys(list(islice(missing, lost)))
        for index in sorted(records):
            if index >= first:
                yield StoredRecord(index, records[index], None)

    def open_claims(self, rollout_id: str | None = None) -> list[OpenClaim]:
        """None: nobody can hold one."""
        return []

    def outstanding(self, rollout_id: str | None = None) -> int:
        """None: nobody can hold one."""
        return 0

    def knows(self, rollout_id: str) -> bool:
        """Whether there is anything of this rollout, be it its clearing."""
        validate_rollout_id(rollout_id)
        return self._knows(rollout_id) or self._nemo_gym.has(rollout_id)

    def generation(self, rollout_id: str) -> int:
        """The rollout's current generation, 0 until it is first cleared."""
        return self.standing(rollout_id).generation

    def view(self, rollout_id: str) -> RolloutView:
        """What is known of a rollout. Its entries lie in no frame, so they have their identity only."""
        found = self._rollout(rollout_id, texts=False)
        nowhere = FrameRef(0, 0)
        entries = [Entry(call.call_index, call.model_call_id, call.digest, [], nowhere) for call in found.calls]
        reasons = None if found.reasons is None else dict(found.reasons)
        return RolloutView(rollout_id, found.generation, entries, found.indexes - len(entries), reasons, 0)

    def is_incomplete(self, rollout_id: str) -> bool:
        """Whether evidence is known to be missing."""
        return self.standing(rollout_id).reasons is not None

    def read(self, rollout_id: str) -> list[dict[str, Any]]:
        """The exchanges, in call order; raises DamagedLog where one is missing."""
        found, damaged = self.read_indexed(rollout_id)
        if damaged:
            there = {index for index, _ in found}
            missing = [index for index in range(len(found) + damaged) if index not in there]
            raise DamagedLog(
                f"exchange {missing[0]} of rollout {rollout_id} is damaged, or was when it was sealed ({damaged} in "
                f"all, in {self._files.directory}). Nothing was changed; read_available() gives the others.",
                rollout_id=rollout_id,
                call_index=missing[0],
                call_indexes=missing,
            )
        return [exchange for _, exchange in found]

    def read_available(self, rollout_id: str) -> tuple[list[dict[str, Any]], int]:
        """The exchanges that can be read, in call order, and how many cannot."""
        found, damaged = self.read_indexed(rollout_id)
        return [exchange for _, exchange in found], damaged

    def read_indexed(self, rollout_id: str) -> tuple[list[tuple[int, dict[str, Any]]], int]:
        """Like `read_available`, each exchange with its call index."""
        validate_rollout_id(rollout_id)
        if self._lies_beside(rollout_id):
            return self._beside.read_indexed(rollout_id)
        found = self._rollout(rollout_id)
        exchanges = []
        for call in found.calls:
            try:
                exchanges.append((call.call_index, call.exchange()))
            except DamagedLog:
                pass  # counted below
        return exchanges, found.indexes - len(exchanges)

    def captured(self, rollout_id: str, *, texts: bool = True, strict: bool = True) -> CapturedRollout:
        """See `CaptureStore.captured`."""
        validate_rollout_id(rollout_id)
        if self._lies_beside(rollout_id):
            found = self._beside.captured(rollout_id, strict=strict)
            return found._replace(reasons=self._known().reasons(rollout_id, found.reasons))
        return self._rollout(rollout_id, texts=texts)

    def read_payloads(self, rollout_id: str, call_indexes: Iterable[int]) -> dict[int, dict[str, Any]]:
        """The four payload values of these exchanges, by call index."""
        validate_rollout_id(rollout_id)
        wanted = set(call_indexes)
        if self._lies_beside(rollout_id):
            return self._beside.read_payloads(rollout_id, wanted)
        return {
            call.call_index: call.payloads() for call in self._rollout(rollout_id).calls if call.call_index in wanted
        }

    def read_bytes(self, rollout_id: str, call_index: int, payload: str) -> bytes:
        """One payload's exact text. KeyError: there is none. DamagedLog: it cannot be read."""
        kind = PAYLOADS[payload]
        found = self._rollout(rollout_id)
        call = next((each for each in found.calls if each.call_index == call_index), None)
        if call is None and 0 <= call_index < found.indexes:
            raise DamagedLog(
                f"exchange {call_index} of rollout {rollout_id} is damaged. Nothing was changed; others can be read.",
                rollout_id=rollout_id,
                call_index=call_index,
            )
        if call is not None and kind in call.texts:
            return call.texts[kind].data
        raise KeyError(f"exchange {call_index} of rollout {rollout_id} has no {payload} in the dataset")

    def evidence(self, rollout_id: str, include_payloads: bool = False) -> RolloutEvidence:
        """What `merge.attach_capture` needs: the derived records, and what is known to be missing."""
        validate_rollout_id(rollout_id)
        if self._lies_beside(rollout_id):
            evidence = self._beside.evidence(rollout_id, include_payloads)
            evidence.incomplete = self._known().reasons(rollout_id, evidence.incomplete)
            return evidence
        found = self._rollout(rollout_id, texts=include_payloads)
        records: list[tuple[int, bytes]] = []
        payloads: dict[int, Mapping[str, Any]] = {}
        for call in found.calls:
            records.append((call.call_index, call.record))
            if include_payloads:
                payloads[call.call_index] = call.payloads()
        return gather_evidence(
            rollout_id,
            records,
            payloads=payloads if include_payloads else None,
            damaged=found.indexes - len(records),
            incomplete=None if found.reasons is None else dict(found.reasons),
            outstanding=0,
        )

    def verify(self) -> VerifyReport:
        """Read every file of the dataset, and the small files of the directory."""
        report = VerifyReport(self.report, files=check_files(self._files, None))
        broken = set(self._reader.verify())
        report.datasets = [self.dataset()]
        report.files += [
            FileDamage(
                f"{self._sealed}/{file.name}",
                0,
                f"not what the manifest says; its part has {part.rollout_count} rollouts, {part.call_count} calls",
            )
            for part in self._reader.manifest.parts
            for file in part.files
            if file.name in broken
        ]
        for rows in self._rows().values():
            report.parts += sum(row.calls for row in rows)
            each = _standing(rows)
            damaged = each.damaged
            if any(row.part.calls.name in broken for row in rows):
                damaged = (each.calls or 0) - sum(1 for _ in self._rollout(each.rollout_id).calls)
            if damaged:
                report.holes[each.rollout_id] = damaged
            if each.late:
                report.late[each.rollout_id] = each.late
        for rollout_id in sorted(self._nemo_gym.rollout_ids()):
            if not self._knows(rollout_id) and (damaged := self._nemo_gym.exchanges(rollout_id)[1]):
                report.lines[rollout_id] = damaged
        return report

    def dataset(self) -> ReadDataset:
        """Its folder and how much is there of it. No file is read."""
        return ReadDataset(self._sealed, *self._reader.there())

    def _known(self) -> RolloutIndex:
        """What the dataset lists. Nothing of it changes any more."""
        if self._index is None:
            self._index = RolloutIndex(self._reader)
        return self._index

    def _rows(self) -> dict[str, list[SealedRow]]:
        return self._known().rows

    def _stands_beside(self, rollout_id: str) -> RolloutStanding:
        found = self._beside.standing(rollout_id)
        return found._replace(reasons=self._known().reasons(rollout_id, found.reasons))

    def _knows(self, rollout_id: str) -> bool:
        rows = self._rows().get(rollout_id)
        return rows is not None and (bool(rows[-1].generation) or _has_evidence(rows[-1]))

    def _lies_beside(self, rollout_id: str) -> bool:
        return not self._knows(rollout_id) and self._nemo_gym.has(rollout_id)

    def _rollout(self, rollout_id: str, *, texts: bool = True) -> CapturedRollout:
        rows = self._rows().get(rollout_id)
        if rows:
            return self._reader.readable(rows, texts=texts)
        none: list[CapturedCall] = []
        return CapturedRollout(rollout_id, 0, none, 0, self._known().reasons(rollout_id, None))


def _standing(rows: list[SealedRow]) -> RolloutStanding:
    """How a rollout stands; what the last of its rows says of it holds."""
    last = rows[-1]
    damaged = last.indexes - sum(row.calls for row in rows)
    return RolloutStanding(last.rollout_id, last.generation, last.indexes, damaged, last.reasons, 0, last.late)


def _has_evidence(row: SealedRow) -> bool:
    # As in a log (`RolloutState.known`), calls that were only counted for a merge are no knowledge of the rollout.
    return bool(row.indexes or (row.reasons is not None and row.reasons.keys() != {UNACCOUNTED}))


__all__ = ["SealedShard"]
