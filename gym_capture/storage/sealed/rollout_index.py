"""Where each rollout of a sealed run lies, as far as that can be read."""

from __future__ import annotations

from collections.abc import Mapping

from gym_capture.errors import DamagedLog
from gym_capture.model.rollout_state import DAMAGED
from gym_capture.storage.recovery_report import LostIndex
from gym_capture.storage.sealed.manifest import SealedPart
from gym_capture.storage.sealed.reader import SealedReader, SealedRow


class RolloutIndex:
    """The rows of every rollout's one generation that was sealed. Read whole when it is made; no exchange is read.

    Where the file that lists a part's rollouts is damaged, the part's calls say which there were. What else that file
    said is lost, so every rollout whose id may have been in it counts as incomplete.

    Args:
        reader: the dataset.

    Attributes:
        rows: by rollout id; several where it lies in several parts. The last one says what is known of the rollout.
        lost: the damaged files, and what of them is known.
        affected: the rollouts that may lack something because of these.

    Raises:
        OSError: a file could not be read, and is not known to be damaged.
    """

    def __init__(self, reader: SealedReader) -> None:
        self.rows: dict[str, list[SealedRow]] = {}
        self.lost: list[LostIndex] = []
        self._lost_parts: list[SealedPart] = []
        listed: list[SealedRow] = []
        for part in reader.manifest.parts:
            rows: list[SealedRow] = []
            try:
                for row in reader.rows_of(part):
                    rows.append(row)
            except DamagedLog:
                self._lost_parts.append(part)
                known = {row.rollout_id for row in rows}
                told = [row for row in reader.rows_by_calls(part) if row.rollout_id not in known]
                named = len(known.union(row.rollout_id for row in told))
                self.lost.append(
                    LostIndex(part.rollouts.name, part.rollout_count, part.call_count, part.rollout_count - named)
                )
                # They go before those that are listed: what these say of a rollout holds.
                self._take(told)
            listed += rows
        self._take(listed)
        for rollout_id, rows in self.rows.items():
            # The last row says most, unless it is of a part whose list is lost.
            indexes = max(row.indexes for row in rows)
            rows[-1] = rows[-1]._replace(reasons=self.reasons(rollout_id, rows[-1].reasons), indexes=indexes)
        self.affected = {rollout_id for rollout_id in self.rows if self.may_lack(rollout_id)}

    def _take(self, rows: list[SealedRow]) -> None:
        for row in rows:
            self.rows.setdefault(row.rollout_id, []).append(row)

    def may_lack(self, rollout_id: str) -> bool:
        """Whether there may have been more of a rollout, or anything of it, in a file that cannot be read."""
        return any(part.first <= rollout_id <= part.last for part in self._lost_parts)

    def reasons(self, rollout_id: str, known: Mapping[str, int] | None) -> dict[str, int] | None:
        """Why evidence of a rollout is missing, with what is lost of the index as one more reason."""
        if not self.may_lack(rollout_id):
            return None if known is None else dict(known)
        return {**(known or {}), DAMAGED: (known or {}).get(DAMAGED, 0) + 1}


__all__ = ["RolloutIndex"]
