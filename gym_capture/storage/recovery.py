"""Recovery: from a directory and an epoch just taken to the state that it holds and a log that may be written.

An earlier owner may be dead, or frozen and about to write on. Only the last group of its last segment can be
unsynced. So the new owner (1) replays all that lies before that group, (2) copies the group's intact frames into its
own first segment and syncs, (3) writes its opening frame with the cut of the earlier epoch before that group, and
syncs. From then on nobody reads what the earlier owner has or still puts there. A crash in between leaves the earlier
epoch uncut; the next owner does it all again, takes the unfinished epoch's copies in as well, each frame once and in
the order in which they were written, and cuts that epoch at its very beginning.

An owner that stopped cleanly left a note of where its log ended. All of that is on disk, so nothing is copied and the
cut stands at that very end: what is missing before it was lost since, and is damage to every later reader.

`docs/decisions/0003-ownership-and-cuts.md` says why this order and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gym_capture.errors import FormatError, Superseded
from gym_capture.model.codec import SEGMENT_HEAD_BYTES, FrameFlag, FrameHead, FrameRef, PendingFrame, encode_rows
from gym_capture.model.ledger import Ledger
from gym_capture.model.rollout_state import DAMAGED
from gym_capture.model.rows import (
    CommitRow,
    CutRow,
    HistoryRow,
    MarkRow,
    MembersRow,
    OpenRow,
    Row,
    SealRow,
    SenderRow,
    rollouts_of,
)
from gym_capture.storage import fault_points, names
from gym_capture.storage.checkpoint_writer import CheckpointWriter
from gym_capture.storage.files import Files
from gym_capture.storage.log_plan import LogPlan, plan_log
from gym_capture.storage.log_reader import Damage, Frame, never_written
from gym_capture.storage.log_scan import LogFold, LogScan, note_rollouts
from gym_capture.storage.names import SegmentName
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.parts import part_intact, parts_of, read_body
from gym_capture.storage.recovery_report import Place, RecoveryReport
from gym_capture.storage.resume import open_log
from gym_capture.storage.segment_source import SegmentSource
from gym_capture.storage.segments import SEGMENT_BYTES, SegmentWriter, owner_frame

_COPY_BYTES = 16 * 1024 * 1024
REPEATED_OPENINGS = 16
"""A cut stands in so many openings, and in what segments begin with meanwhile: the loss of some forgets no cut, and a
log does not grow with the square of its epochs. (An opening behind which nothing came is cut off with the last group;
what it said is said again until one stays.)"""


@dataclass(slots=True)
class _Tail:
    """What is copied of an earlier epoch, and where it begins: the last group, or all of one that never opened."""

    cut: CutRow
    frames: list[Frame] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    rollouts: dict[str, int] = field(default_factory=dict)
    sealed_to: int = 0
    torn: list[Place] = field(default_factory=list)


class Recovered(NamedTuple):
    """A log open for its new owner, what was found in it, and who writes its checkpoints from now on."""

    writer: SegmentWriter
    report: RecoveryReport
    checkpoints: CheckpointWriter


def recover(
    files: Files,
    ownership: Ownership,
    ledger: Ledger,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    checkpoints: bool = True,
) -> Recovered:
    """Replay the log into `ledger` and open it for this epoch.

    Blocks for as long as reading all heads behind the last checkpoint takes; keep `ownership.beat()` going meanwhile.

    Args:
        files: the capture directory.
        ownership: an epoch just taken; an epoch recovers once (after a failure take the next one).
        ledger: fresh; afterwards it holds what the log holds, the new epoch's opening included.
        segment_bytes: see `SegmentWriter`.
        checkpoints: False: read the whole log, whatever checkpoints say.

    Returns:
        The writer (continue with sequence `writer.last_sequence + 1`), what was found, and the checkpoints' writer.

    Raises:
        Superseded: another owner took the directory meanwhile.
        FormatError: the log is of another version or run; nothing was written.
        OSError: reading or writing failed; take the next epoch and try again.
    """
    epoch = ownership.epoch
    later = [found for found in names.epochs_in(files.names()) if found > epoch]
    if later:
        raise Superseded(f"epoch {epoch} was superseded by epoch {later[-1]} before it recovered.", by_epoch=later[-1])
    plan = plan_log(files, below_epoch=epoch)
    uncut = [earlier for earlier in plan.epochs if earlier not in plan.cuts]
    # An opening cuts all earlier epochs. So whoever came after an uncut one has not opened, and served nobody.
    tails = [_find_tail(files, plan, earlier, may_have_opened=earlier == uncut[0]) for earlier in uncut]
    for tail in tails:
        plan.cuts[tail.cut.epoch] = tail.cut
        _keep_lists(plan, tail.frames)
    concerned = {rollout for tail in tails for frame in tail.frames for rollout in rollouts_of(frame.rows)}
    concerned.update(*(tail.rollouts for tail in tails if tail.damages))
    scan, fold, checkpoint = open_log(files, plan, ledger, checkpoints=checkpoints, needed=concerned)
    if scan.run is not None and scan.run != ownership.run.bytes:
        raise FormatError(
            f"the segments in {files.directory} belong to run {scan.run.hex()}, its {names.RUN} file says "
            f"{ownership.run.hex}. Nothing was written; restore the file or choose another directory.",
        )
    cuts = _repeated(plan, {tail.cut.epoch for tail in tails})
    writer = SegmentWriter(files, ownership.run.bytes, epoch, segment_bytes=segment_bytes)
    try:
        marks = _copy_tails(files, tails, scan, writer, fold)
        _open(ownership, writer, scan, cuts, [tail.cut for tail in tails], marks, fold)
        ownership.check()
    except BaseException:
        writer.abandon()
        raise
    first = scan.last_sequence + 1
    checkpoint_writer = CheckpointWriter(files, ownership.run.bytes, epoch, scan.seen, first, checkpoint)
    return Recovered(writer, scan.report, checkpoint_writer)


def _keep_lists(plan: LogPlan, frames: list[Frame]) -> None:
    """Whose rows a segment has stands at its own end, too, which is cut off and copied."""
    for frame in frames:
        for row in frame.rows:
            if type(row) is MembersRow:
                where = SegmentName(frame.ref.epoch, frame.ref.segment)
                plan.listed_in.setdefault(SegmentName(row.epoch, row.segment), where)


def _repeated(plan: LogPlan, fresh: set[int]) -> list[CutRow]:
    """The cuts that an opening says: those that the last openings made, and the new ones."""
    # The opening of one that is only now cut may be in the group that is cut off.
    opened = sorted(plan.opened - fresh)
    oldest = opened[-REPEATED_OPENINGS] if len(opened) >= REPEATED_OPENINGS else 0
    return [plan.cuts[epoch] for epoch in sorted(plan.cuts) if epoch >= oldest]


def _find_tail(files: Files, plan: LogPlan, epoch: int, *, may_have_opened: bool) -> _Tail:
    """The last group of an uncut epoch: in its last segment that has a frame at all. None after a clean stop.

    None either where its end is lost, which was acknowledged: the cut says how long it was, so nobody forgets the loss.
    """
    noted = plan.ends.get(epoch)
    if noted is not None:
        return _Tail(CutRow(epoch, noted.segment, noted.length))
    unopened = None if may_have_opened else _unopened(files, plan, epoch)
    if unopened is not None:
        return unopened
    torn: list[Place] = []
    tail = _Tail(CutRow(epoch, 0, 0))
    for number in reversed(list(plan.walk(epoch))):
        name = SegmentName(epoch, number)
        if name not in plan.sizes:
            continue
        found = _last_group(files, name, plan.end(name))
        if found.frames:
            tail = found
            break
        # A segment is begun when all before it is synced, so this one's first group never was.
        torn += [Place(name, damage.offset, damage.length) for damage in found.damages]
    floor = plan.floors.get(epoch)
    if floor is not None and (tail.cut.segment, tail.frames[-1].end if tail.frames else 0) < floor:
        return _Tail(CutRow(epoch, *floor))
    tail.sealed_to = max(tail.sealed_to, plan.synced_to(SegmentName(epoch, tail.cut.segment)))
    tail.torn = torn
    return tail


def _unopened(files: Files, plan: LogPlan, epoch: int) -> _Tail | None:
    """All that an unfinished epoch copied; None where there is more (then its opening was lost by damage).

    Its last group alone would not do: the groups before it would stay, and be replayed before what an earlier epoch's
    last group has in front of them. What is broken here was acknowledged to nobody by this epoch, and what was by an
    earlier one is on disk there.
    """
    tail = _Tail(CutRow(epoch, 0, 0))
    for number in plan.walk(epoch):
        name = SegmentName(epoch, number)
        if name not in plan.sizes:
            continue
        for item in SegmentSource(files, name).frames(SEGMENT_HEAD_BYTES, plan.end(name)):
            if isinstance(item, Damage):
                tail.torn.append(Place(name, item.offset, item.length))
            elif item.head.flags & FrameFlag.COPIED:
                if item.head.sequence:
                    tail.frames.append(item)
            elif item.head.sequence and not all(type(row) is MarkRow for row in item.rows):
                return None  # marks alone may be what is left of an opening that was not synced
    return tail


def _last_group(files: Files, name: SegmentName, end: int) -> _Tail:
    tail = _Tail(CutRow(name.epoch, name.number, SEGMENT_HEAD_BYTES))
    group = -1
    for item in SegmentSource(files, name).frames(SEGMENT_HEAD_BYTES, end):
        if isinstance(item, Damage):
            tail.damages.append(item)
            continue
        if item.head.group != group:
            if group >= 0:
                last = tail.frames[-1].end
                tail.cut = CutRow(name.epoch, name.number, last)
                tail.damages = [damage for damage in tail.damages if damage.offset >= last]
            group = item.head.group
            tail.frames.clear()
        tail.frames.append(item)
        note_rollouts(tail.rollouts, item.rows)
        for row in item.rows:
            if type(row) is SealRow and (row.epoch, row.segment) == name:
                tail.sealed_to = row.length
            elif type(row) is MembersRow and (row.epoch, row.segment) == name:
                tail.rollouts = {**dict.fromkeys(row.rollouts, 0), **tail.rollouts}
    return tail


def _copy_tails(
    files: Files, tails: list[_Tail], scan: LogScan, writer: SegmentWriter, fold: LogFold
) -> dict[str, int]:
    """Copy the last groups, sync, replay. Returns the rollouts that may have lost something in them."""
    report = scan.report
    marks: dict[str, int] = {}
    broken = _BrokenHistories()
    written: list[Frame] = []
    waiting: list[tuple[int, PendingFrame]] = []
    waiting_bytes = 0
    for tail in tails:
        _judge_damages(files, tail, report, marks)
    # Several epochs may hold copies of one group, each of another part of it; the sort is stable.
    frames = sorted((frame for tail in tails for frame in tail.frames), key=_written_order)
    for frame in frames:
        scan.last_sequence = max(scan.last_sequence, frame.head.sequence)
        if frame.head.sequence and scan.seen.has(frame.head.epoch, frame.head.sequence):
            report.copies += 1
            continue
        scan.seen.add(frame.head.epoch, frame.head.sequence)
        pending, rows = _intact_copy(files, frame, report, marks, broken)
        waiting.append((frame.head.epoch, pending))
        written.append(Frame(_copied_head(frame.head, pending), rows, pending.ref))
        waiting_bytes += frame.head.total_bytes
        if waiting_bytes >= _COPY_BYTES:
            writer.copy(waiting)
            waiting.clear()
            waiting_bytes = 0
    writer.copy(waiting)
    writer.sync(fault_points.COPY_SYNC)
    report.copied = len(written)
    report.affected.update(marks)
    for frame in written:
        fold.replay(frame.head, frame.rows, frame.ref)
    return marks


def _written_order(frame: Frame) -> tuple[int, int]:
    return frame.head.epoch, frame.head.sequence


def _judge_damages(files: Files, tail: _Tail, report: RecoveryReport, marks: dict[str, int]) -> None:
    """Places in or behind the last group that are no frames: never finished writing, or damaged since."""
    name = SegmentName(tail.cut.epoch, tail.cut.segment)
    report.tears += tail.torn
    for damage in tail.damages:
        place = Place(name, damage.offset, damage.length)
        synced = damage.offset < tail.sealed_to
        if not synced and (damage.kind == "tear" or never_written(SegmentSource(files, name).read_at, damage)):
            report.tears.append(place)
        else:
            report.damages.append(place)
            marks.update(tail.rollouts)


class _BrokenHistories:
    """Which messages of a last group are not copied, so that what rests on them is not copied either."""

    def __init__(self) -> None:
        self._sender = b""
        self._first: dict[tuple[bytes, int], int] = {}
        self._calls: set[tuple[str, str]] = set()

    def begin(self, rows: Sequence[Row]) -> None:
        """A frame's rows come now."""
        self._sender = rows[0].client if rows and isinstance(rows[0], SenderRow) else b""

    def note(self, row: Row) -> None:
        """A row is left out."""
        if isinstance(row, HistoryRow):
            key = (self._sender, row.history)
            self._first[key] = min(row.first, self._first.get(key, row.first))
        elif isinstance(row, CommitRow):
            self._calls.add((row.rollout, row.model_call_id))

    def concern(self, row: Row) -> bool:
        """Whether a row rests on what is left out: messages of its history, or the request that they lie in."""
        if isinstance(row, CommitRow) and row.messages:
            first = self._first.get((self._sender, row.history))
            return first is not None and first < row.messages
        return isinstance(row, HistoryRow) and (row.rollout, row.source) in self._calls


def _intact_copy(
    files: Files, frame: Frame, report: RecoveryReport, marks: dict[str, int], histories: _BrokenHistories
) -> tuple[PendingFrame, list[Row]]:
    """A frame as it will be copied: without the rows whose parts, or whose messages, are broken."""
    body = memoryview(read_body(files, frame.ref, frame.head.body_bytes))
    kept: list[Row] = []
    histories.begin(frame.rows)
    for row in frame.rows:
        broken = [part for part in parts_of(row) if not part_intact(body, part)]
        if not broken and not histories.concern(row):
            kept.append(row)
            continue
        histories.note(row)
        report.broken_parts += len(broken)
        for part in broken:
            where = Damage(frame.ref.body_offset + part.offset, part.length, "damage")
            if not never_written(SegmentSource(files, SegmentName(frame.ref.epoch, frame.ref.segment)).read_at, where):
                note_rollouts(marks, [row])
    flags = frame.head.flags | FrameFlag.COPIED
    if len(kept) < len(frame.rows):
        flags |= FrameFlag.PARTIAL
    ref = FrameRef(frame.head.sequence, frame.ref.epoch)
    encoded = encode_rows(kept)
    return PendingFrame(frame.head.kind, encoded, len(kept), [body], ref, flags, rollouts_of(kept)), kept


def _copied_head(head: FrameHead, pending: PendingFrame) -> FrameHead:
    return head._replace(flags=pending.flags, rows=pending.row_count, head_bytes=len(pending.rows))


def _open(
    ownership: Ownership,
    writer: SegmentWriter,
    scan: LogScan,
    cuts: list[CutRow],
    fresh: list[CutRow],
    marks: dict[str, int],
    fold: LogFold,
) -> None:
    """Write and replay the opening. The cuts stand in it twice: no single flipped bit brings a cut tail back.

    Where a cut is new, nothing has said yet whose rows stand before it in its segment.
    """
    identity = ownership.identity
    opening = OpenRow(ownership.epoch, ownership.clock.time(), identity.name or identity.actor_id)
    frames: list[list[Row]] = [[opening, *cuts]]
    if cuts:
        members = [
            MembersRow(cut.epoch, cut.segment, found)
            for cut in fresh
            if (found := scan.rollouts_in(SegmentName(cut.epoch, cut.segment))) is not None
        ]
        frames.append([*cuts, *members])
    if marks:
        frames.append([MarkRow(rollout, DAMAGED, 1, generation) for rollout, generation in sorted(marks.items())])
    first = scan.last_sequence + 1
    pending = [owner_frame(rows, first + index, ownership.epoch) for index, rows in enumerate(frames)]
    writer.append(pending, fault_points.CUT_APPEND)
    writer.sync(fault_points.CUT_SYNC)
    writer.repeat(cuts)
    for frame, rows in zip(pending, frames, strict=True):
        head = FrameHead(frame.kind, 0, ownership.epoch, 0, frame.ref.sequence, len(rows), len(frame.rows), 0)
        fold.replay(head, rows, frame.ref)
