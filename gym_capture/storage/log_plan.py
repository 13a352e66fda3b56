"""Which bytes of which segment are the log: cuts and seals, collected before anything is read.

A cut of an epoch ends it: what lies at or beyond its offset, and every later segment of that epoch, is not part of
the log, whenever it was written. Each epoch's opening frame (and each further segment's first frame) repeats all cuts
known so far; where two epochs disagree the later one is right. A clean stop's note says where its epoch
ended, and a checkpoint how long the log was at least, so that the loss of that does not look like a log that never was
longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gym_capture.model.codec import SEGMENT_HEAD_BYTES, FrameFlag, FrameKind
from gym_capture.model.rows import CutRow, MembersRow, OpenRow, SealRow
from gym_capture.storage import names
from gym_capture.storage.files import Files
from gym_capture.storage.log_floor import log_floor, reaches
from gym_capture.storage.log_reader import Damage
from gym_capture.storage.names import SegmentName
from gym_capture.storage.owner_file import LogEnd, beat_of, end_of_log
from gym_capture.storage.segment_source import SegmentSource

_PEEK_BYTES = 4096
_WIDEST_GAP = 1000


@dataclass(slots=True)
class LogPlan:
    """What of the directory's segments counts.

    Args:
        epochs: all epochs, ascending, with or without segments.
        sizes: every segment and its bytes now, in log order.
        cuts: by epoch.
        seals: how long finished segments are.
        listed_in: which segment's beginning lists the rollouts of an earlier one.
        ends: where cleanly stopped epochs ended, as their owners noted it, and where the end is lost of one of which
            something proves how long it was; their last segments count as sealed.
        floors: up to where an epoch's log is known to have been synced, where all of that is still there.
        opened: the epochs whose own opening is part of the log.
    """

    epochs: list[int]
    sizes: dict[SegmentName, int]
    cuts: dict[int, CutRow] = field(default_factory=dict)
    seals: dict[SegmentName, int] = field(default_factory=dict)
    ends: dict[int, LogEnd] = field(default_factory=dict)
    listed_in: dict[SegmentName, SegmentName] = field(default_factory=dict)
    floors: dict[int, LogEnd] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)
    _numbers: dict[int, set[int]] = field(init=False, default_factory=dict)
    _last: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*self.sizes, *self.seals):
            self._note(name)

    def _note(self, name: SegmentName) -> None:
        self._numbers.setdefault(name.epoch, set()).add(name.number)
        self._last[name.epoch] = max(name.number, self._last.get(name.epoch, -1))

    def seal(self, name: SegmentName, length: int) -> None:
        """A segment was finished at so many bytes; there may be no such file."""
        self.seals[name] = length
        self._note(name)

    @property
    def settled(self) -> bool:
        """Whether every epoch but the last is cut: no takeover is under way (or was left unfinished)."""
        return all(epoch in self.cuts for epoch in self.epochs[:-1])

    def numbers(self, epoch: int) -> range:
        """The segments that an epoch should have, as far as they count."""
        cut = self.cuts.get(epoch)
        if cut is None:
            return range(self._last.get(epoch, -1) + 1)
        return range(cut.segment + (cut.offset > SEGMENT_HEAD_BYTES))

    def walk(self, epoch: int) -> Iterator[int]:
        """`numbers`, without the inside of gaps that no log can have: a number may be damaged too, and cost no more."""
        numbers = self.numbers(epoch)
        expected = 0
        for number in [*sorted(each for each in self._numbers.get(epoch, ()) if each in numbers), numbers.stop]:
            yield from range(expected, min(number, expected + _WIDEST_GAP))
            if number < numbers.stop:
                yield number
            expected = number + 1

    def end(self, name: SegmentName) -> int:
        """Where reading a segment ends. It may lie beyond the file's end: then bytes are missing."""
        cut = self.cuts.get(name.epoch)
        if cut is not None and cut.segment == name.number:
            return cut.offset
        return self.seals.get(name, self.sizes.get(name, 0))

    def is_open(self, name: SegmentName) -> bool:
        """Whether the segment may end in something that was not synced: an epoch's last one, without a cut."""
        last = self.numbers(name.epoch)[-1:]
        return name.epoch not in self.cuts and name not in self.seals and name.number in last

    def synced_to(self, name: SegmentName) -> int:
        """Bytes of a segment that are known to have been synced, whatever they are now; 0: of none it is known."""
        floor = self.floors.get(name.epoch)
        return floor.length if floor is not None and floor.segment == name.number else 0

    def held(self, epoch: int) -> LogEnd | None:
        """The last segment of an epoch that is there, and its bytes now."""
        there = (SegmentName(epoch, number) for number in self._numbers.get(epoch, ()))
        return max((LogEnd(name.number, self.sizes[name]) for name in there if name in self.sizes), default=None)

    def ignored_bytes(self) -> int:
        """Bytes that are in segments and not in the log."""
        counted = {epoch: self.numbers(epoch) for epoch in self.epochs}
        return sum(
            max(0, size - (self.end(name) if name.number in counted[name.epoch] else 0))
            for name, size in self.sizes.items()
        )


def plan_log(files: Files, below_epoch: int | None = None, known: LogPlan | None = None) -> LogPlan:
    """Collect sizes, cuts and seals. Reads the start of each segment only.

    Args:
        files: the capture directory.
        below_epoch: leave this and later epochs out (an owner that recovers reads what was before it).
        known: an earlier plan of the same directory; what cannot have changed since is not read again.
    """
    listed = files.names()
    while True:
        plan = _plan(files, listed, below_epoch, known)
        later = files.names()
        if not _overtaken(plan, later, below_epoch):
            return plan
        listed = later


def _overtaken(plan: LogPlan, listed: list[str], below_epoch: int | None) -> bool:
    """Whether the directory, listed again, shows that a plan was made of two of its states.

    With another epoch, what was measured may be what an old owner wrote after it was cut. And a listing that takes a
    while may leave out a segment and have the next one.
    """
    if _epochs(listed, below_epoch) != plan.epochs:
        return True
    last = {name.epoch: name.number for name in sorted(plan.sizes)}
    return any(name not in plan.sizes and name.number < last.get(name.epoch, 0) for name in names.segments_in(listed))


def _epochs(listed: list[str], below_epoch: int | None) -> list[int]:
    return [epoch for epoch in names.epochs_in(listed) if below_epoch is None or epoch < below_epoch]


def _plan(files: Files, listed: list[str], below_epoch: int | None, known: LogPlan | None) -> LogPlan:
    epochs = _epochs(listed, below_epoch)
    if known is not None and not (known.settled and known.epochs == epochs):
        known = None
    ends = _noted_ends(files, epochs if known is None else [each for each in epochs[-1:] if each not in known.ends])
    if ends:
        listed = files.names()  # a note is true of what is looked up after it was read
    counted = set(epochs)
    segments = [name for name in names.segments_in(listed) if name.epoch in counted]
    if known is None:
        plan = LogPlan(epochs, {name: files.size(name.file) for name in segments})
        fresh = segments
    else:
        # Only the last epoch's unsealed segments grow, and a start that was seen has said what it had to say.
        sizes = {
            name: files.size(name.file)
            for name in segments
            if name not in known.sizes or (name.epoch == epochs[-1] and name not in known.seals)
        }
        plan = LogPlan(
            epochs,
            {**known.sizes, **sizes},
            dict(known.cuts),
            dict(known.seals),
            dict(known.ends),
            dict(known.listed_in),
            dict(known.floors),
            set(known.opened),
        )
        fresh = [
            name
            for name, size in sizes.items()
            if known.sizes.get(name, 0) < min(size, _PEEK_BYTES)
            # A long seal may have been seen in part.
            or (name.number and SegmentName(name.epoch, name.number - 1) not in known.seals)
        ]
    # From the last epoch down, so that whether an epoch's own words count is known before they are read.
    for epoch in reversed(epochs):
        for name in [name for name in fresh if name.epoch == epoch]:
            _collect(files, plan, name)
    for epoch, end in ends.items():
        _take_note(plan, epoch, end)
    if known is None:
        for epoch in epochs:
            if epoch not in plan.cuts and epoch not in plan.ends:
                _take_floor(files, plan, epoch, listed)
    return plan


def _noted_ends(files: Files, epochs: list[int]) -> dict[int, LogEnd]:
    return {epoch: end for epoch in epochs if (end := end_of_log(beat_of(files, epoch))) is not None}


def _take_note(plan: LogPlan, epoch: int, end: LogEnd) -> None:
    held = plan.held(epoch)
    if held is not None and held > end:
        return  # a longer log than the note's did not end there
    _end(plan, epoch, end)


def _take_floor(files: Files, plan: LogPlan, epoch: int, listed: list[str]) -> None:
    floor = log_floor(files, epoch, listed)
    if floor is None:
        return
    name = SegmentName(epoch, floor.segment)
    if plan.sizes.get(name, 0) < floor.length and name not in plan.seals:
        if reaches(files, epoch, floor):
            return  # it grew since it was measured
        # A next segment may have been begun, and be empty: it says nothing of this one yet.
        plan.seal(name, floor.length)
    held = plan.held(epoch)
    if held is None or held < floor:
        _end(plan, epoch, floor)
    else:
        plan.floors[epoch] = floor


def _end(plan: LogPlan, epoch: int, end: LogEnd) -> None:
    plan.ends[epoch] = end
    if end.length:
        plan.seal(SegmentName(epoch, end.segment), end.length)


def _collect(files: Files, plan: LogPlan, name: SegmentName) -> None:
    cut = plan.cuts.get(name.epoch)
    if cut is not None and (name.number, SEGMENT_HEAD_BYTES) >= (cut.segment, cut.offset):
        return
    end = min(plan.sizes[name], plan.end(name))
    for frame in SegmentSource(files, name).frames(SEGMENT_HEAD_BYTES, end, window_bytes=_PEEK_BYTES):
        if isinstance(frame, Damage) or frame.head.flags & FrameFlag.FILLER:
            continue
        copied = bool(frame.head.flags & FrameFlag.COPIED)
        told = [row for row in frame.rows if isinstance(row, CutRow | SealRow | OpenRow | MembersRow)]
        if not copied and (frame.head.kind != FrameKind.OWNER or not told):
            return
        for row in told:
            if isinstance(row, SealRow):
                sealed = SegmentName(row.epoch, row.segment)
                plan.seal(sealed, plan.seals.get(sealed, row.length))
            elif isinstance(row, MembersRow):
                plan.listed_in.setdefault(SegmentName(row.epoch, row.segment), name)
            elif isinstance(row, OpenRow) and not copied:
                plan.opened.add(row.epoch)
            elif isinstance(row, CutRow) and row.epoch < name.epoch and not copied:
                # A copied opening says what its own epoch knew; the copying epoch repeats it if it was true.
                plan.cuts.setdefault(row.epoch, row)
