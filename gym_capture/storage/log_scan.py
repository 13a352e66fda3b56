"""Reading a whole log in the order in which a replay is right, and going on where it was left."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, Protocol

from gym_capture.errors import DamagedLog, FormatError
from gym_capture.model.codec import SEGMENT_HEAD_BYTES, FrameFlag, FrameHead, FrameRef
from gym_capture.model.rows import MembersRow, Row, SealRow
from gym_capture.storage.files import Files
from gym_capture.storage.log_plan import LogPlan, plan_log
from gym_capture.storage.log_reader import Damage, Frame, never_written
from gym_capture.storage.names import SegmentName
from gym_capture.storage.recovery_report import Place, RecoveryReport
from gym_capture.storage.segment_source import SegmentSource, named_head
from gym_capture.storage.sequence_set import SequenceSet


class LogFold(Protocol):
    """What a log is replayed into (`model.ledger.Ledger`, say)."""

    def replay(self, head: FrameHead, rows: Sequence[Row], ref: FrameRef) -> None:
        """Apply one frame."""

    def replay_damage(self, rollout_ids: Iterable[str], *, others: bool = False) -> None:
        """Heads were damaged; these rollouts may have lost rows in them. At most once a segment for each.

        Args:
            others: so may any rollout that comes later and nothing was known of: the end of an epoch's log is gone.
        """


class DamagedHeads(NamedTuple):
    """A segment has damaged heads; `rollouts` have rows in it (with the highest generation seen there).

    `others`: the end of the epoch's log is gone, and `rollouts` are all that are known. Others may have had rows in it.
    """

    segment: SegmentName
    rollouts: dict[str, int]
    others: bool = False


class LogStart(NamedTuple):
    """Where a scan begins instead of at the very first frame: behind what a checkpoint holds.

    Fields: the `segment` in which the checkpoint's last frame lies, `start` and `end` of that frame and its `sequence`
    (it is read, and not given out), the frames `seen` up to it, and the `rollouts` that its segment may have rows of.
    """

    segment: SegmentName
    start: int
    end: int
    sequence: int
    seen: SequenceSet
    rollouts: Collection[str]


class _SegmentPass:
    """How far one segment was read, and what that showed."""

    def __init__(self, name: SegmentName, source: SegmentSource) -> None:
        self.name = name
        self.source = source
        self.at = SEGMENT_HEAD_BYTES
        self.started = False
        self.group = 0
        self.last: FrameHead | None = None
        self.sealed_to = 0
        self.rollouts: dict[str, int] = {}
        self.listed: dict[str, int] | None = None
        self.marked: set[str] = set()
        self.unjudged: list[tuple[Damage, int]] = []
        self.tears: list[Place] = []
        self.damaged = False
        self.filled = False
        self.gone = False
        self.short = False
        self.lost_end = False


class LogScan:
    """One pass over a log, oldest epoch first; iterating again goes on with what was appended since.

    Args:
        files: the capture directory.
        plan: which bytes count; by default collected now.
        start: where to begin; None: at the very beginning.

    Attributes:
        met_start: whether the frame that `start` names was met where it should be.
        report: what was found so far.
        run: the run's 16-byte uuid as the segments' headers say it, or None.
        last_sequence: the highest sequence seen.
        seen: the frames seen, by epoch and sequence.
    """

    def __init__(self, files: Files, plan: LogPlan | None = None, start: LogStart | None = None) -> None:
        self._files = files
        self.plan = plan or plan_log(files)
        self.report = RecoveryReport()
        self.run: bytes | None = None
        self._begin = start
        self.met_start = start is None
        self.last_sequence = start.sequence if start is not None else 0
        self.seen = start.seen if start is not None else SequenceSet()
        self._passes: dict[SegmentName, _SegmentPass] = {}
        self._after_gap: Literal["", "damage", "filler"] = ""

    def goes_on(self, plan: LogPlan) -> bool:
        """Whether a newer plan of the same directory only adds to what this scan has read."""
        return self.plan.settled and plan.epochs == self.plan.epochs and plan.cuts == self.plan.cuts

    def proceed(self, plan: LogPlan) -> None:
        """Take up a newer plan for which `goes_on` holds."""
        self.plan = plan

    def __iter__(self) -> Iterator[Frame | DamagedHeads]:
        """Frames in replay order; a segment's damage after its frames.

        Raises:
            FormatError: something is of another version or another run.
            OSError: a file could not be read.
        """
        self.report.cuts = [self.plan.cuts[epoch] for epoch in sorted(self.plan.cuts)]
        self.report.ignored_bytes = self.plan.ignored_bytes()
        for epoch in self.plan.epochs:
            self._after_gap = ""
            for number in self.plan.walk(epoch):
                name = SegmentName(epoch, number)
                if self._begin is not None and name < self._begin.segment:
                    continue
                if name in self.plan.sizes:
                    yield from self._read(name)
                elif name not in self._passes:
                    yield from self._missing(name)

    def _read(self, name: SegmentName) -> Iterator[Frame | DamagedHeads]:
        done = self._passes.get(name)
        end = self.plan.end(name)
        if done is not None and done.at >= end and not done.unjudged:
            return
        if done is None:
            done = self._passes[name] = self._pass_over(name)
            self.report.segments += 1
            if self._begin is not None and name == self._begin.segment:
                done.at = self._begin.start
                done.rollouts = dict.fromkeys(self._begin.rollouts, 0)
        if not done.started and not self._start(done):
            return
        # What stood in a segment that is gone may concern those before it and those after it.
        done.damaged |= self._after_gap == "damage"
        done.filled |= self._after_gap == "filler"
        self._after_gap = ""
        yield from self._frames(done, end)
        size = self.plan.sizes[name]
        if done.at > size and not done.short:
            # The last frame's head is there and its payload is not whole: that exchange is damaged, no other.
            done.short = True
            self.report.damages.append(Place(name, size, done.at - size))
        if self._judge(done) or done.filled:
            concerned = self._concerned(done)
            fresh = {rollout: found for rollout, found in concerned.items() if rollout not in done.marked}
            done.marked.update(fresh)
            if done.damaged:
                self.report.affected.update(fresh)
            if fresh or done.lost_end:
                yield DamagedHeads(name, fresh, done.lost_end)

    def _pass_over(self, name: SegmentName) -> _SegmentPass:
        done = _SegmentPass(name, SegmentSource(self._files, name))
        done.sealed_to = self.plan.synced_to(name)
        return done

    def _concerned(self, done: _SegmentPass) -> dict[str, int]:
        """The rollouts that a segment's damage may have cost something."""
        if done.gone and self._is_last(done.name):
            done.lost_end = True
        found = self._listed(done.name)
        listed = found or {}
        if found is None and not self.plan.is_open(done.name):
            # The list of those it had rows of is damaged too, so it may have been anybody.
            done.lost_end = True
        if done.lost_end:
            return {**listed, **self._known_rollouts()}
        if done.gone:
            self._after_gap = "filler"
            return {**listed, **self._rollouts_before(done.name), **done.rollouts}
        return {**listed, **done.rollouts}

    def _listed(self, name: SegmentName) -> dict[str, int] | None:
        """The rollouts that a segment had rows of, as was written down when it was finished or cut; None: nowhere."""
        done = self._passes.get(name)
        if done is not None and done.listed is not None:
            return done.listed
        where = self.plan.listed_in.get(name)
        if where is None:
            return None
        # It may stand beyond a cut that is being made: it was true when it was written, and is copied.
        for item in SegmentSource(self._files, where).frames(SEGMENT_HEAD_BYTES, self.plan.sizes.get(where, 0)):
            for row in item.rows if isinstance(item, Frame) else ():
                if type(row) is MembersRow and (row.epoch, row.segment) == name:
                    return dict.fromkeys(row.rollouts, 0)
        return None

    def rollouts_in(self, name: SegmentName) -> list[str] | None:
        """The rollouts that the part of a segment that counts had rows of; None where damage took their list."""
        done = self._passes.get(name)
        listed = self._listed(name)
        if listed is None and not self.plan.is_open(name) and (done is None or done.damaged or done.filled):
            return None
        return sorted({**(listed or {}), **(done.rollouts if done is not None else {})})

    def _start(self, done: _SegmentPass) -> bool:
        """Read the header. False: there is none yet."""
        name = done.name
        data = done.source.read_at(0, min(SEGMENT_HEAD_BYTES, self.plan.sizes[name]))
        if self.plan.is_open(name) and (len(data) < SEGMENT_HEAD_BYTES or not any(data)):
            # Created, and its first group not (or only in part) written or on disk.
            return self.plan.sizes[name] > SEGMENT_HEAD_BYTES
        done.started = True
        try:
            head = named_head(data, name)
        except FormatError:
            raise
        except DamagedLog:
            # The file's name and `RUN` say what the header would; the frames have checksums of their own.
            self.report.headers.append(name)
            return True
        if self.run is not None and head.run != self.run:
            raise FormatError(
                f"{name.file} belongs to run {head.run.hex()}, the segments before it to {self.run.hex()}. "
                "Nothing was changed; move it to its own directory.",
                segment=name,
            )
        self.run = head.run
        return True

    def _frames(self, done: _SegmentPass, end: int) -> Iterator[Frame]:
        report = self.report
        waiting: list[Damage] = []
        for item in done.source.frames(done.at, end, last=done.last):
            if isinstance(item, Damage):
                waiting.append(item)
                continue
            head = item.head
            done.at = item.end
            done.group = head.group
            done.last = head if head.sequence else done.last
            if waiting:
                done.unjudged += [(damage, head.group) for damage in waiting]
                waiting.clear()
            if head.flags & FrameFlag.FILLER:
                done.filled = True
                done.gone |= bool(head.flags & FrameFlag.GONE)
                report.fillers.append(Place(done.name, item.offset, head.total_bytes))
                continue
            self._note_rows(done, item.rows)
            if self._begin is not None and done.name == self._begin.segment and item.end <= self._begin.end:
                self.met_start |= (item.end, head.sequence) == (self._begin.end, self._begin.sequence)
                continue
            report.frames += 1
            report.rows += head.rows
            report.bytes += head.total_bytes
            self.last_sequence = max(self.last_sequence, head.sequence)
            if head.sequence:
                if head.flags & FrameFlag.COPIED and self.seen.has(head.epoch, head.sequence):
                    report.copies += 1
                    continue
                self.seen.add(head.epoch, head.sequence)
            yield item
        self._judge_end(done, waiting, end)

    def _note_rows(self, done: _SegmentPass, rows: list[Row]) -> None:
        note_rollouts(done.rollouts, rows)
        for row in rows:
            if type(row) is SealRow and (row.epoch, row.segment) == done.name:
                done.sealed_to = row.length
            elif type(row) is MembersRow and (row.epoch, row.segment) == done.name:
                done.listed = dict.fromkeys(row.rollouts, 0)

    def _judge_end(self, done: _SegmentPass, waiting: list[Damage], end: int) -> None:
        """What is invalid up to the end: torn where the end is open, damage where all of it had been synced."""
        for place in done.tears:
            self.report.tears.remove(place)
        done.tears.clear()
        for damage in waiting:
            # What was synced is no append that never finished; nobody has listed yet whose rows an open end had.
            open_end = self.plan.is_open(done.name)
            if open_end and damage.offset >= done.sealed_to:
                done.tears.append(Place(done.name, damage.offset, damage.length))
            else:
                done.at = end
                done.short = True
                done.unjudged.append((damage, -1))
                done.lost_end = self._is_last(done.name) and (
                    open_end or self.plan.sizes[done.name] < end or never_written(done.source.read_at, damage)
                )
        self.report.tears += done.tears

    def _judge(self, done: _SegmentPass) -> bool:
        """Decide what the places between frames are. True: the segment has damaged heads."""
        still: list[tuple[Damage, int]] = []
        for damage, group_after in done.unjudged:
            if (
                self.plan.is_open(done.name)
                and group_after == done.group
                and damage.offset >= done.sealed_to
                and never_written(done.source.read_at, damage)
            ):
                still.append((damage, group_after))
                done.tears.append(Place(done.name, damage.offset, damage.length))
                self.report.tears.append(done.tears[-1])
            else:
                done.damaged = True
                self.report.damages.append(Place(done.name, damage.offset, damage.length))
        done.unjudged = still
        return done.damaged

    def _missing(self, name: SegmentName) -> Iterator[DamagedHeads]:
        self._passes[name] = self._pass_over(name)
        self.report.damages.append(Place(name, 0, self.plan.end(name)))
        found = self._listed(name)
        # Where nobody has listed whose rows it had, it may have been anybody.
        last = found is None or self._is_last(name)
        rollouts = {**(found or {}), **(self._known_rollouts() if last else self._rollouts_before(name))}
        if not self._is_last(name):
            self._after_gap = "damage"
        self.report.affected.update(rollouts)
        if rollouts or last:
            yield DamagedHeads(name, rollouts, last)

    def _rollouts_before(self, name: SegmentName) -> dict[str, int]:
        before = self._passes.get(SegmentName(name.epoch, name.number - 1))
        return dict(before.rollouts) if before is not None else {}

    def _is_last(self, name: SegmentName) -> bool:
        return name.number + 1 == self.plan.numbers(name.epoch).stop

    def _known_rollouts(self) -> dict[str, int]:
        known: dict[str, int] = {}
        for done in self._passes.values():
            for rollout, generation in done.rollouts.items():
                known[rollout] = max(generation, known.get(rollout, 0))
        return known


def note_rollouts(rollouts: dict[str, int], rows: Iterable[Row]) -> None:
    """Add the rollouts that rows concern, each with the highest generation seen."""
    for row in rows:
        rollout: str | None = getattr(row, "rollout", None)
        if rollout is not None:
            generation: int = getattr(row, "generation", 0)
            if generation >= rollouts.get(rollout, 0):
                rollouts[rollout] = generation


def replay_log(scan: LogScan, fold: LogFold) -> None:
    """Replay what a scan (still) has to read."""
    for item in scan:
        if isinstance(item, DamagedHeads):
            fold.replay_damage(item.rollouts, others=item.others)
        else:
            fold.replay(item.head, item.rows, item.ref)


def scan_log(files: Files) -> LogScan:
    """A scan of all that counts in the directory; iterate it."""
    return LogScan(files)
