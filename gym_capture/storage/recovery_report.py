"""What reading a log found: counted, never absorbed in silence."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from gym_capture.model.rows import CutRow
from gym_capture.storage.names import SegmentName


class Place(NamedTuple):
    """Bytes of one segment."""

    segment: SegmentName
    offset: int
    length: int


class LostIndex(NamedTuple):
    """A file that lists the rollouts in a part of a sealed dataset, and cannot be read.

    Args:
        file: its path in the directory.
        rollouts, calls: how many the part has, by the manifest.
        unnamed: so many of these rollouts are named by no call that can be read: their ids are not known.
    """

    file: str
    rollouts: int
    calls: int
    unnamed: int

    def __str__(self) -> str:
        return (
            f"{self.file}, which lists {self.rollouts} rollouts of {self.calls} calls ({self.unnamed} of these "
            "rollouts are not known)"
        )


@dataclass(slots=True)
class RecoveryReport:
    """What one pass over the log found.

    Args:
        segments, frames, rows, bytes: what was read (bytes are those of whole frames).
        tears: ends of the log that were never finished writing; nothing in them was acknowledged.
        damages: bytes that do not match their checksum, or are missing.
        fillers: places that a repair filled; what stood there is in `quarantine/`, and lost.
        headers: segments whose own header is damaged (their frames were read all the same).
        copies: frames that were there twice because a takeover copied them, and were dropped once.
        cuts: what readers ignore: each earlier epoch from its cut on.
        ignored_bytes: bytes at or beyond cuts, and beyond seals.
        affected: rollouts that may have lost rows in the damaged places; they are marked incomplete.
        broken_parts: payload parts found damaged while copying the last group of an earlier owner.
        copied: frames that this recovery copied into its own segment.
        indexes: of a sealed dataset, the files without which it is not known what some rollouts lack.
        call_files: of a sealed dataset, the files in which a call that was read until now is damaged.
        checkpoint: the checkpoint (one of each shard at most) behind which reading began; what lies before it was not
            looked at. Empty: none.
    """

    segments: int = 0
    frames: int = 0
    rows: int = 0
    bytes: int = 0
    tears: list[Place] = field(default_factory=list)
    damages: list[Place] = field(default_factory=list)
    fillers: list[Place] = field(default_factory=list)
    headers: list[SegmentName] = field(default_factory=list)
    copies: int = 0
    cuts: list[CutRow] = field(default_factory=list)
    ignored_bytes: int = 0
    affected: set[str] = field(default_factory=set)
    broken_parts: int = 0
    copied: int = 0
    indexes: list[LostIndex] = field(default_factory=list)
    call_files: list[str] = field(default_factory=list)
    checkpoint: str = ""

    def __add__(self, other: RecoveryReport) -> RecoveryReport:
        """What both found, of another shard's log say."""
        return RecoveryReport(**{each.name: _both(self, other, each.name) for each in fields(self)})

    @property
    def damaged(self) -> bool:
        """Whether anything that had been synced could not be read."""
        return bool(self.damages or self.headers or self.affected or self.indexes or self.call_files)

    def summary(self) -> str:
        """One line for a log or a terminal."""
        parts = [f"{self.frames} frames, {self.rows} rows, {self.bytes} bytes in {self.segments} segments"]
        if self.checkpoint:
            parts.append(f"read behind {self.checkpoint}")
        if self.copied:
            parts.append(f"{self.copied} frames copied from an earlier owner")
        if self.tears:
            parts.append(f"{len(self.tears)} torn ends ({sum(place.length for place in self.tears)} bytes)")
        if self.damages:
            first = self.damages[0]
            parts.append(
                f"{len(self.damages)} DAMAGED places ({sum(place.length for place in self.damages)} bytes, first: "
                f"{first.segment.file} at {first.offset})"
            )
        if self.fillers:
            parts.append(f"{len(self.fillers)} places filled by a repair")
        if self.headers:
            parts.append(f"{len(self.headers)} damaged segment headers")
        if self.broken_parts:
            parts.append(f"{self.broken_parts} damaged payload parts in the last group")
        if self.indexes or self.call_files:
            parts.append(f"{len(self.indexes) + len(self.call_files)} damaged files of a dataset")
        if self.affected:
            parts.append(f"{len(self.affected)} rollouts marked incomplete")
        if self.ignored_bytes:
            parts.append(f"{self.ignored_bytes} bytes beyond cuts ignored")
        return "; ".join(parts)


def _both(one: RecoveryReport, other: RecoveryReport, name: str) -> Any:
    found, more = getattr(one, name), getattr(other, name)
    if isinstance(found, str):
        return ", ".join(filter(None, (found, more)))
    return found | more if isinstance(found, set) else found + more
