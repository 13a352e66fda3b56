"""What a model answers that wants to be taken for the log: frames of its own, and frames that the log has."""

from __future__ import annotations

from random import Random

from gym_capture.model.codec import FrameKind, encode_frame_head, encode_rows
from gym_capture.model.rows import ClearRow, MarkRow, Row
from gym_capture.storage import names
from gym_capture.testing.faulty_files import FaultyDisk

HOSTILE = 0.3
"""In so many schedules there are hostile answers."""
ANSWERS = 0.6
"""So many answers of these are hostile."""


class Forger:
    """The raw answers of a schedule.

    Args:
        random: of its own, so that a schedule is the same whatever is answered.
        disk: where the log lies, for answers that repeat it.
    """

    def __init__(self, random: Random, disk: FaultyDisk) -> None:
        self._random = random
        self._disk = disk
        self._hostile = random.random() < HOSTILE

    def answer(self, rollout: str) -> bytes | None:
        """The bytes of an answer, so random that nobody compresses them; None: it has none."""
        if not self._hostile or self._random.random() > ANSWERS:
            return None
        ahead = self._random.randbytes(self._random.randint(2000, 8000))
        return ahead + (self._frame(rollout) if self._random.random() < 0.8 else self._log())

    def _frame(self, rollout: str) -> bytes:
        acts: list[Row] = [ClearRow(rollout, "forged", 90), MarkRow(rollout, "forged", 1, 0)]
        rows = [self._random.choice(acts)]
        encoded = encode_rows(rows)
        head = encode_frame_head(
            encoded,
            key=self._random.choice([b"", bytes(16)]),
            kind=FrameKind.OWNER,
            epoch=names.epochs_in(self._disk.view().names())[-1],
            group=1000,
            sequence=1 << 40,
            row_count=len(rows),
            body_bytes=0,
        )
        return head + encoded

    def _log(self) -> bytes:
        segments = names.segments_in(self._disk.view().names())
        return self._disk.content(segments[-1].file)[-400:] if segments else b""
