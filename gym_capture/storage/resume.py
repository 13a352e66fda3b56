"""Opening a log behind its newest checkpoint, or from the very beginning where no checkpoint can be relied on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gym_capture.errors import DamagedLog
from gym_capture.model.codec import FrameHead, FrameRef
from gym_capture.model.ledger import Ledger
from gym_capture.model.rows import Row, rollouts_of
from gym_capture.storage import names
from gym_capture.storage.checkpoints import Checkpoint, read_checkpoint, read_rollout
from gym_capture.storage.files import Files
from gym_capture.storage.log_plan import LogPlan
from gym_capture.storage.log_scan import LogScan, LogStart, replay_log
from gym_capture.storage.names import CheckpointName, SegmentName
from gym_capture.storage.sequence_set import SequenceSet


class PagingFold:
    """Replays into a ledger that is in part on disk: what a frame concerns is brought back first. Blocks.

    Args:
        resumed: what is replayed comes behind a checkpoint. Then damage is not for the ledger to digest: who reads the
            whole log knows better whom it concerns.
    """

    def __init__(self, files: Files, ledger: Ledger, *, resumed: bool) -> None:
        self._files = files
        self._ledger = ledger
        self._resumed = resumed

    def replay(self, head: FrameHead, rows: Sequence[Row], ref: FrameRef) -> None:
        """Apply one frame. Raises DamagedLog or OSError when a page cannot be read."""
        self.bring_back(rollouts_of(rows))
        self._ledger.replay(head, rows, ref)

    def replay_damage(self, rollout_ids: Iterable[str], *, others: bool = False) -> None:
        """Heads were damaged. Behind a checkpoint: raises DamagedLog."""
        if self._resumed:
            raise DamagedLog("the log is damaged behind a checkpoint: it has to be read from its beginning.")
        self._ledger.replay_damage(rollout_ids, others=others)

    def bring_back(self, rollout_ids: Iterable[str]) -> None:
        """These rollouts are in memory afterwards. Raises like `replay`."""
        ledger = self._ledger
        for rollout_id in ledger.archived_among(rollout_ids):
            packed = ledger.archived.packed[rollout_id]
            ledger.adopt(read_rollout(self._files, rollout_id, packed), packed)


class Opened(NamedTuple):
    """A log that was replayed: the scan, what it was replayed into, and the checkpoint that it began behind."""

    scan: LogScan
    fold: PagingFold
    checkpoint: Checkpoint | None


def open_log(
    files: Files, plan: LogPlan, ledger: Ledger, *, checkpoints: bool = True, needed: Iterable[str] = ()
) -> Opened:
    """Replay a directory's log into `ledger`, from the newest checkpoint that can be relied on.

    Args:
        ledger: fresh.
        checkpoints: False: read all of the log.
        needed: rollouts that have to be in memory afterwards.

    Raises:
        FormatError: the log is of another version or run.
        OSError: a segment could not be read.
    """
    chain = _find(files, plan) if checkpoints else []
    if chain:
        try:
            return _resume(files, plan, ledger, chain, needed)
        except (DamagedLog, OSError):
            # A cache that fails costs time only. Whatever is wrong with the log itself is found again from the start.
            ledger.forget()
    scan, fold = LogScan(files, plan), PagingFold(files, ledger, resumed=False)
    replay_log(scan, fold)
    return Opened(scan, fold, None)


def _resume(files: Files, plan: LogPlan, ledger: Ledger, chain: list[Checkpoint], needed: Iterable[str]) -> Opened:
    newest = chain[-1]
    header = newest.header
    archived: dict[str, bytes] = {}
    busy: set[str] = set()
    for checkpoint in chain:
        table = checkpoint.table
        archived.update(table.quiet)
        archived.update(table.busy)
        busy.difference_update(table.quiet)
        busy.update(table.busy)
    segment = SegmentName(header.epoch, header.segment)
    seen = SequenceSet.of(header.seen)
    start = LogStart(segment, header.start, header.end, header.sequence, seen, _members(chain, segment))
    scan, fold = LogScan(files, plan, start), PagingFold(files, ledger, resumed=True)
    ledger.restore(newest.state, archived)
    fold.bring_back(busy)
    replay_log(scan, fold)
    fold.bring_back(needed)
    report = scan.report
    if report.damages or report.headers or not scan.met_start or scan.run != header.run:
        raise DamagedLog(f"the log around {newest.name.file} is not what it was: it has to be read from its beginning.")
    report.checkpoint = newest.name.file
    return Opened(scan, fold, newest)


def _members(chain: list[Checkpoint], segment: SegmentName) -> set[str]:
    """The rollouts that a segment may have rows of, up to where the last checkpoint of a chain ends in it.

    Whatever a row changes is in the table of the next checkpoint. The first one that ends in the segment may name some
    of the segment before too.
    """
    members: set[str] = set()
    for checkpoint in reversed(chain):
        if (checkpoint.header.epoch, checkpoint.header.segment) != segment:
            break
        members.update(checkpoint.table.quiet, checkpoint.table.busy)
    return members


def _find(files: Files, plan: LogPlan) -> list[Checkpoint]:
    """The newest checkpoint that counts, and before it all that it rests on; none: an empty list."""
    known: dict[CheckpointName, Checkpoint | None] = {}

    def read(name: CheckpointName) -> Checkpoint | None:
        if name not in known:
            try:
                known[name] = read_checkpoint(files, name)
            except (DamagedLog, OSError):
                known[name] = None
        return known[name]

    for name in reversed(names.checkpoints_in(files.names())):
        newest = read(name)
        if newest is None or not counts(plan, newest):
            continue
        chain = [newest]
        while (previous := chain[-1].header.previous) is not None:
            before = read(CheckpointName(*previous[:2]))
            if before is None or before.crc != previous[2] or before.name >= chain[-1].name:
                break
            chain.append(before)
        else:
            return chain[::-1]
    return []


def counts(plan: LogPlan, checkpoint: Checkpoint) -> bool:
    """Whether all that a checkpoint holds is part of the log: it ends before its epoch's cut, and what is there."""
    header = checkpoint.header
    segment = SegmentName(header.epoch, header.segment)
    return (
        header.epoch in plan.epochs
        and all(epoch in plan.cuts for epoch in plan.epochs if epoch < header.epoch)
        and header.segment in plan.numbers(header.epoch)
        and header.end <= min(plan.end(segment), plan.sizes.get(segment, 0))
    )
