"""One shard of a run, read without its owner."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

from gym_capture.errors import DamagedLog
from gym_capture.model.captured import CapturedCall, CapturedRollout, captured_parts
from gym_capture.model.evidence import gather_evidence
from gym_capture.model.exchange import PAYLOADS, encode_fields, open_exchange, payloads_of
from gym_capture.model.ids import validate_rollout_id
from gym_capture.model.merge import RolloutEvidence
from gym_capture.model.record import derive_fields, record_view
from gym_capture.model.rollout_state import Entry, RolloutState, RolloutView
from gym_capture.model.rows import PartKind
from gym_capture.model.verifiers import verifier_declaration
from gym_capture.storage.files import Files
from gym_capture.storage.log_view import LogView
from gym_capture.storage.nemo_gym_files import NemoGymFiles, log_knows
from gym_capture.storage.parts import Messages, open_one_part, open_parts
from gym_capture.storage.recovery_report import RecoveryReport
from gym_capture.storage.standing import OpenClaim, RolloutStanding, StoredRecord
from gym_capture.storage.verify import VerifyReport, verify_log

_RECORD, _META = int(PartKind.RECORD), int(PartKind.META)


class ShardStore:
    """What the log of one shard holds, and what lies beside it of the shard's rollouts. Reads only.

    It replays the log into the ledger that the owner runs on, so both say the same. On a live directory it may show
    what the owner has written and not yet acknowledged. NeMo Gym's files are read where they lie; where the log knows
    an id too (its clearing included), the log alone counts.

    Args:
        files: the shard's directory.
        beside: NeMo Gym's files of its rollouts.
        checkpoints: False: read all of the log, and believe no checkpoint.

    Raises:
        FormatError: the log is of another version.
    """

    def __init__(self, files: Files, beside: NemoGymFiles, *, checkpoints: bool = True) -> None:
        self._files = files
        self._nemo_gym = beside
        self._log = LogView(files, checkpoints=checkpoints)

    @property
    def folder(self) -> str:
        """The name of its directory."""
        return os.path.basename(self._files.directory)

    @property
    def report(self) -> RecoveryReport:
        """What reading the log found so far."""
        return self._log.report

    @property
    def takeovers(self) -> tuple[Any, ...]:
        """See `LogView.takeovers`."""
        return self._log.takeovers

    def refresh(self) -> None:
        """Take in what was appended since: only that is read, unless another owner has taken over."""
        self._log.refresh()

    def rollout_ids(self) -> list[str]:
        """Every id that has evidence (or is marked), sorted; cleared ones with nothing since are forgotten."""
        return sorted(self._log.with_evidence() | self._beside())

    def standings(self) -> list[RolloutStanding]:
        """How every rollout stands, sorted by id: those, too, that were begun (cleared, merged) and have nothing.

        No record is read, and no file of NeMo Gym's.
        """
        beside = self._beside()
        found = [standing for standing in self._log.standings() if standing.rollout_id not in beside]
        found += map(self._standing_beside, beside)
        found.sort(key=itemgetter(0))
        return found

    def standing(self, rollout_id: str) -> RolloutStanding:
        """How one rollout stands; one that is nowhere has nothing."""
        validate_rollout_id(rollout_id)
        if self._lies_beside(rollout_id):
            return self._standing_beside(rollout_id)
        return self._log.standing(rollout_id)

    def records(self, rollout_id: str, first: int = 0) -> Iterator[StoredRecord]:
        """The RECORD parts of a rollout's calls, from call index `first` on; its holes are left out.

        `evidence` reads the same for a merge; this is for whoever reads the records of many rollouts.
        """
        validate_rollout_id(rollout_id)
        state = self._in_log(rollout_id)
        if state is None:
            yield from self._records_beside(rollout_id, first)
            return
        # Entries are in call order; a call index is at most that of its place, if damage swallowed some before it.
        for entry in state.entries[max(0, first - state.holes) :]:
            if entry.call_index < first:
                continue
            stored = 0
            record: bytes | None = None
            for part in entry.parts:
                stored += part.length
                if part.kind == _RECORD:
                    try:
                        record = open_one_part(self._files, entry.ref, part)
                    except DamagedLog:
                        pass  # None says so
            yield StoredRecord(entry.call_index, record, stored)

    def open_claims(self, rollout_id: str | None = None) -> list[OpenClaim]:
        """The claims that are open, of one rollout or (None) of the whole run, the oldest first."""
        claims = self._log.open_claims(None if rollout_id is None else validate_rollout_id(rollout_id))
        return sorted(claims, key=lambda claim: (claim.opened_at, claim.rollout_id, claim.model_call_id))

    def knows(self, rollout_id: str) -> bool:
        """Whether there is anything of this rollout, be it its clearing."""
        validate_rollout_id(rollout_id)
        return self._log.knows(rollout_id) or self._nemo_gym.has(rollout_id)

    def generation(self, rollout_id: str) -> int:
        """The rollout's current generation, 0 until it is first cleared."""
        return self._log.generation(rollout_id)

    def view(self, rollout_id: str) -> RolloutView:
        """What the log says of a rollout; an unknown one is empty."""
        return self._log.view(rollout_id)

    def is_incomplete(self, rollout_id: str) -> bool:
        """Whether evidence is known to be missing."""
        validate_rollout_id(rollout_id)
        if self._lies_beside(rollout_id):
            return self._nemo_gym.is_incomplete(rollout_id)
        return self._log.is_incomplete(rollout_id)

    def outstanding(self, rollout_id: str | None = None) -> int:
        """Claims that are open, of one rollout or (None) of the whole run."""
        return self._log.outstanding if rollout_id is None else self._log.outstanding_of(rollout_id)

    def read(self, rollout_id: str) -> list[dict[str, Any]]:
        """The exchanges as they were committed, in call order.

        Raises:
            DamagedLog: one of them cannot be read; `call_index` names it. `read_available` leaves it out.
        """
        exchanges, damaged = self._read(rollout_id)
        if damaged:
            raise DamagedLog(
                f"exchange {damaged[0]} of rollout {rollout_id} is damaged ({len(damaged)} in all, in "
                f"{self._files.directory}). Nothing was changed; read_available() gives the others.",
                rollout_id=rollout_id,
                call_index=damaged[0],
                call_indexes=damaged,
            )
        return [exchange for _, exchange in exchanges]

    def read_available(self, rollout_id: str) -> tuple[list[dict[str, Any]], int]:
        """The exchanges that can be read, in call order, and how many cannot."""
        exchanges, damaged = self._read(rollout_id)
        return [exchange for _, exchange in exchanges], len(damaged)

    def read_indexed(self, rollout_id: str) -> tuple[list[tuple[int, dict[str, Any]]], int]:
        """Like `read_available`, each exchange with its call index."""
        exchanges, damaged = self._read(rollout_id)
        return exchanges, len(damaged)

    def captured(self, rollout_id: str, *, texts: bool = True, strict: bool = True, first: int = 0) -> CapturedRollout:
        """See `CaptureStore.captured`.

        Args:
            first: of a rollout in the log, its calls from this call index on.
        """
        validate_rollout_id(rollout_id)
        if self._lies_beside(rollout_id):
            calls, lines = self._nemo_gym.calls(rollout_id, strict=strict)
            reasons: dict[str, int] | None = {} if self._nemo_gym.is_incomplete(rollout_id) else None
            return CapturedRollout(rollout_id, 0, calls, lines, reasons)
        view = self._log.view(rollout_id)
        indexes = len(view.entries) + view.holes
        entries = [entry for entry in view.entries if entry.call_index >= first] if first else view.entries
        return CapturedRollout(
            rollout_id, view.generation, self._calls(entries, texts), indexes, view.reasons, view.outstanding
        )

    def finished_bytes(self, rollout_id: str, first: int = 0) -> int | None:
        """Bytes, before compression, of a finished rollout's calls from call index `first` on; None: it is not.

        Finished is one that was merged, with no claim open, no row that the merge did not return, and no call damaged.
        """
        state = self._in_log(rollout_id)
        if state is None or not state.merged or state.late or state.outstanding or state.holes:
            return None
        return sum(part.raw for entry in state.entries[first:] for part in entry.parts)

    def page_of(self, rollout_id: str) -> bytes | None:
        """See `LogView.page_of`."""
        return self._log.page_of(rollout_id)

    def _calls(self, entries: Iterable[Entry], texts: bool) -> Iterator[CapturedCall]:
        messages = Messages(self._files)
        for entry in entries:
            parts = entry.parts
            wanted = parts if texts else [part for part in parts if part.kind == _RECORD]
            try:
                opened = open_parts(self._files, entry, messages, wanted)
            except DamagedLog:
                continue
            raw_bytes = sum([part.raw for part in parts])
            yield captured_parts(entry.call_index, entry.model_call_id, entry.digest, opened, raw_bytes)

    def read_payloads(self, rollout_id: str, call_indexes: Iterable[int]) -> dict[int, dict[str, Any]]:
        """The four payload values of these exchanges, by call index. What cannot be read is left out."""
        validate_rollout_id(rollout_id)
        wanted = set(call_indexes)
        state = self._in_log(rollout_id)
        if state is None:
            exchanges, _ = self._nemo_gym.exchanges(rollout_id)
            return {index: {key: each.get(key) for key in PAYLOADS} for index, each in exchanges if index in wanted}
        payloads: dict[int, dict[str, Any]] = {}
        messages = Messages(self._files)
        for entry in state.entries:
            if entry.call_index in wanted:
                wanted_parts = [part for part in entry.parts if part.kind not in (_RECORD, _META)]
                try:
                    parts = open_parts(self._files, entry, messages, wanted_parts)
                except DamagedLog:
                    continue
                payloads[entry.call_index] = payloads_of(parts)
        return payloads

    def read_bytes(self, rollout_id: str, call_index: int, payload: str) -> bytes:
        """One payload's exact text: what was given as bytes, or the JSON that a value was captured as.

        Args:
            payload: `request`, `response`, `request_raw` or `response_raw`.

        Raises:
            KeyError: there is no such exchange in the log, or it has no such payload.
            DamagedLog: it is damaged.
        """
        kind = PAYLOADS[payload]
        for entry in self._log.view(rollout_id).entries:
            if entry.call_index == call_index:
                for _, data in self._opened(rollout_id, entry, Messages(self._files), kind):
                    return data
        raise KeyError(f"exchange {call_index} of rollout {rollout_id} has no {payload} in the log")

    def evidence(self, rollout_id: str, include_payloads: bool = False) -> RolloutEvidence:
        """What `merge.attach_capture` needs: the derived records, and what is known to be missing.

        An entry whose record (or, if asked for, a payload) is damaged counts as damaged; the others keep their index.
        """
        validate_rollout_id(rollout_id)
        if self._lies_beside(rollout_id):
            return self._nemo_gym_evidence(rollout_id, include_payloads)
        view = self._log.view(rollout_id)
        records: list[tuple[int, bytes]] = []
        payloads: dict[int, Mapping[str, Any]] = {}
        damaged = view.holes
        messages = Messages(self._files)
        for entry in view.entries:
            wanted = [part for part in entry.parts if include_payloads or part.kind == _RECORD]
            try:
                parts = open_parts(self._files, entry, messages, wanted)
            except DamagedLog:
                damaged += 1
                continue
            record = next((data for part, data in parts if part.kind == _RECORD), None)
            if record is None:
                damaged += 1
                continue
            records.append((entry.call_index, record))
            if include_payloads:
                payloads[entry.call_index] = payloads_of(parts)
        return gather_evidence(
            rollout_id,
            records,
            payloads=payloads if include_payloads else None,
            damaged=damaged,
            incomplete=view.reasons,
            outstanding=view.outstanding,
        )

    def verify(self) -> VerifyReport:
        """Read everything, every payload's checksum included, from the directory as it is now."""
        return verify_log(self._files, self._nemo_gym)

    def _in_log(self, rollout_id: str) -> RolloutState | None:
        state = self._log.state(rollout_id)
        return state if log_knows(state) else None

    def _beside(self) -> set[str]:
        return {name for name in self._nemo_gym.rollout_ids() if not self._log.knows(name)}

    def _standing_beside(self, rollout_id: str) -> RolloutStanding:
        return RolloutStanding(rollout_id, 0, None, reasons={} if self._nemo_gym.is_incomplete(rollout_id) else None)

    def _records_beside(self, rollout_id: str, first: int) -> Iterator[StoredRecord]:
        exchanges, damaged = self._nemo_gym.exchanges(rollout_id)
        readable = dict(exchanges)
        for index in range(first, len(exchanges) + damaged):
            exchange = readable.get(index)
            yield StoredRecord(index, None if exchange is None else encode_fields(derive_fields(exchange)), None)

    def _lies_beside(self, rollout_id: str) -> bool:
        """Whether NeMo Gym's files count for a rollout. For one that is nowhere the log does: it may have lost its end,
        or know of a merge alone, and of the calls that were counted for that.
        """
        return not self._log.knows(rollout_id) and self._nemo_gym.has(rollout_id)

    def _read(self, rollout_id: str) -> tuple[list[tuple[int, dict[str, Any]]], list[int]]:
        validate_rollout_id(rollout_id)
        state = self._in_log(rollout_id)
        exchanges: list[tuple[int, dict[str, Any]]] = []
        if state is None:
            exchanges, damaged = self._nemo_gym.exchanges(rollout_id)
            count = len(exchanges) + damaged
        else:
            count = state.next_index
            messages = Messages(self._files)
            for entry in state.entries:
                try:
                    exchanges.append((entry.call_index, open_exchange(self._opened(rollout_id, entry, messages))))
                except DamagedLog:
                    pass  # its index is missing below
        readable = {index for index, _ in exchanges}
        return exchanges, [index for index in range(count) if index not in readable]

    def _opened(
        self, rollout_id: str, entry: Entry, messages: Messages, kind: PartKind | None = None
    ) -> list[tuple[Any, bytes]]:
        wanted = [part for part in entry.parts if kind is None or part.kind == kind]
        try:
            return open_parts(self._files, entry, messages, wanted)
        except DamagedLog as error:
            raise DamagedLog(
                f"exchange {entry.call_index} of rollout {rollout_id}: {error}. Nothing was changed; the others are "
                "readable.",
                rollout_id=rollout_id,
                call_index=entry.call_index,
            ) from error

    def _nemo_gym_evidence(self, rollout_id: str, include_payloads: bool) -> RolloutEvidence:
        exchanges, damaged = self._nemo_gym.exchanges(rollout_id)
        incomplete: dict[str, int] | None = {} if self._nemo_gym.is_incomplete(rollout_id) else None
        return RolloutEvidence(
            rollout_id,
            [record_view(derive_fields(each), index, each if include_payloads else None) for index, each in exchanges],
            [declared for _, each in exchanges if (declared := verifier_declaration(each)) is not None],
            damaged=damaged,
            incomplete=incomplete,
        )
