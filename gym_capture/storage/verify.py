"""Reading everything: every head, every payload's checksum, what merges have not seen, and NeMo Gym's files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gym_capture.errors import DamagedLog
from gym_capture.model.codec import FrameRef
from gym_capture.model.history import references
from gym_capture.model.ledger import Ledger
from gym_capture.model.rollout_state import RolloutState
from gym_capture.model.rows import CommitRow, HistoryRow, Part, PartFlag, PartKind
from gym_capture.storage.checkpoint_audit import CheckpointAudit
from gym_capture.storage.file_checks import FileDamage, check_files
from gym_capture.storage.files import Files
from gym_capture.storage.log_scan import DamagedHeads, LogScan
from gym_capture.storage.names import SegmentName
from gym_capture.storage.nemo_gym_files import NemoGymFiles, log_knows
from gym_capture.storage.parts import Messages, open_skeleton, part_intact, parts_of, read_body
from gym_capture.storage.recovery_report import RecoveryReport


class BrokenPart(NamedTuple):
    """A stored part whose bytes do not match their checksum, or that refers to one.

    A message that is damaged is one (`kind` message, no call index: -1), and so is each request that refers to it.
    """

    rollout_id: str
    generation: int
    call_index: int
    kind: str
    segment: str
    offset: int


class ReadDataset(NamedTuple):
    """A sealed dataset: its folder, and how many Parquet files of how many bytes it has there."""

    folder: str
    files: int
    size: int


@dataclass(slots=True)
class VerifyReport:
    """What `verify` found.

    Args:
        log: heads: what was read, torn, damaged, ignored.
        parts: how many parts were checked, in all generations.
        broken: those that are damaged.
        holes: call indexes of current generations that are in no readable row, by rollout.
        late: rows that landed after a merge and that no merge has returned, by rollout.
        outstanding: claims that are open, by rollout.
        files: small files that do not say what their writer wrote.
        checkpoints: those that do not say what the log says. They are a cache: no evidence depends on them.
        lines: damaged lines of NeMo Gym's files, by rollout (where the log knows the id too, its file does not count).
        datasets: what there was instead of a log, where the run was sealed.
    """

    log: RecoveryReport
    parts: int = 0
    broken: list[BrokenPart] = field(default_factory=list)
    holes: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    outstanding: dict[str, int] = field(default_factory=dict)
    files: list[FileDamage] = field(default_factory=list)
    checkpoints: list[FileDamage] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    datasets: list[ReadDataset] = field(default_factory=list)

    def __add__(self, other: VerifyReport) -> VerifyReport:
        """What both found, of another shard say."""
        return VerifyReport(
            log=self.log + other.log,
            parts=self.parts + other.parts,
            broken=self.broken + other.broken,
            holes=self.holes | other.holes,
            late=self.late | other.late,
            outstanding=self.outstanding | other.outstanding,
            files=self.files + other.files,
            checkpoints=self.checkpoints + other.checkpoints,
            lines=self.lines | other.lines,
            datasets=self.datasets + other.datasets,
        )

    @property
    def sound(self) -> bool:
        """Whether everything that was synced can be read, NeMo Gym's files included."""
        return not (self.log.damaged or self.broken or self.holes or self.files or self.lines)


def verify_log(files: Files, beside: NemoGymFiles) -> VerifyReport:
    """Read the whole log of a directory, and the NeMo Gym files beside it.

    Raises:
        FormatError: it is of another version or run.
        OSError: a file could not be read.
    """
    scan = LogScan(files)
    ledger = Ledger()
    report = VerifyReport(scan.report)
    audit = CheckpointAudit(files, scan.plan)
    for item in scan:
        if isinstance(item, DamagedHeads):
            ledger.replay_damage(item.rollouts, others=item.others)
            audit.damaged(item.segment)
            continue
        ledger.replay(item.head, item.rows, item.ref)
        audit.met(item, ledger, scan.run)
        if not item.head.body_bytes:
            continue
        body = memoryview(read_body(files, item.ref, item.head.body_bytes))
        for row in item.rows:
            for part in parts_of(row):
                report.parts += 1
                if isinstance(row, CommitRow | HistoryRow) and not part_intact(body, part):
                    report.broken.append(_broken(row, part, item.ref))
    audit.finish()
    report.checkpoints = audit.damages
    known = set(report.broken)
    for rollout in ledger.rollouts.values():
        report.broken += [broken for broken in _torn_requests(files, rollout) if broken not in known]
        for found, count in (
            (report.holes, rollout.holes),
            (report.late, rollout.late),
            (report.outstanding, len(rollout.open)),
        ):
            if count:
                found[rollout.id] = count
    report.files = check_files(files, scan.run)
    for rollout_id in sorted(beside.rollout_ids()):
        if not log_knows(ledger.rollouts.get(rollout_id)):
            _, damaged = beside.exchanges(rollout_id)
            if damaged:
                report.lines[rollout_id] = damaged
    return report


def _broken(row: CommitRow | HistoryRow, part: Part, ref: FrameRef) -> BrokenPart:
    call_index = row.call_index if isinstance(row, CommitRow) else -1
    return _broken_part(row.rollout, row.generation, call_index, part, ref)


def _broken_part(rollout: str, generation: int, call_index: int, part: Part, ref: FrameRef) -> BrokenPart:
    kind = PartKind(part.kind).name.lower()
    segment = SegmentName(ref.epoch, ref.segment).file
    return BrokenPart(rollout, generation, call_index, kind, segment, ref.body_offset + part.offset)


def _torn_requests(files: Files, rollout: RolloutState) -> Iterator[BrokenPart]:
    """The requests of a rollout that refer to messages which cannot be read, each message looked at once."""
    messages = Messages(files)
    for entry in rollout.entries:
        if entry.history is None:
            continue
        run = messages.of(entry)
        for part in entry.parts:
            if part.flags & PartFlag.HISTORY:
                try:
                    for number in references(open_skeleton(files, entry, part), part.raw, entry.messages):
                        run(number, 1)
                except DamagedLog:
                    yield _broken_part(rollout.id, rollout.generation, entry.call_index, part, entry.ref)
