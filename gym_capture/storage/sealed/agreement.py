"""Whether a part that was sealed while its run went on still says what the log says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from gym_capture.model.captured import CapturedRollout
from gym_capture.model.rollout_state import RolloutView
from gym_capture.storage.sealed.manifest import SealedPart
from gym_capture.storage.sealed.reader import SealedReader, SealedRow

logger = logging.getLogger("gym_capture.storage")


class SealedSoFar(NamedTuple):
    """What a dataset has of one rollout: its first `calls`, and what the `last` of its rows says."""

    last: SealedRow
    calls: int

    def says_all(self, rollout: CapturedRollout) -> bool:
        """Whether there is nothing to be added."""
        told = (self.calls, self.last.indexes, self.last.reasons, self.last.outstanding, self.last.late)
        return told == (rollout.indexes, rollout.indexes, rollout.reasons, rollout.outstanding, rollout.late)


def agreed(
    reader: SealedReader,
    part: SealedPart,
    before: dict[str, SealedSoFar],
    log: Callable[[str], RolloutView],
) -> dict[str, SealedSoFar] | None:
    """What a part adds to those before it, where each of its calls is in the log: the same, at the same place.

    A rollout that was cleared since, a call that a later owner cut off, a part that continues one that does not count:
    all these disagree, and the part then counts for none of its rollouts.

    Args:
        before: what the parts that count and come before it have, by rollout id.
        log: what the log knows of a rollout.

    Returns:
        What the dataset has with it of the part's rollouts; None: it disagrees, or cannot be read.
    """
    found: dict[str, SealedSoFar] = {}
    try:
        identities = reader.identities(part)
        for row in reader.rows_of(part):
            earlier = before.get(row.rollout_id)
            first = earlier.calls if earlier is not None and earlier.last.generation == row.generation else 0
            view = log(row.rollout_id)
            expected = [
                (row.rollout_id, view.generation, entry.call_index, entry.model_call_id, entry.digest)
                for entry in view.entries[first : first + row.calls]
            ]
            told = identities[row.first_row : row.first_row + row.calls]
            # Without a gap: what is sealed of a rollout is its first calls, so their number says which.
            in_place = all(call[2] == place for place, call in enumerate(told, first))
            if view.generation != row.generation or len(told) != row.calls or told != expected or not in_place:
                return None
            found[row.rollout_id] = SealedSoFar(row, first + row.calls)
        rows = [each.last for each in found.values()]
        size = sum(row.raw_bytes for row in rows)
        listed = (part.rollout_count, part.call_count, part.raw_bytes, part.first, part.last)
        if listed != (len(rows), len(identities), size, min(found, default=""), max(found, default="")):
            return None  # the manifest says something else
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, all of it is in the log
        logger.warning("part %s of %s is not taken over: %s", part.number, reader.directory, error)
        return None
    return found


def has_all(reader: SealedReader, log: Callable[[str], RolloutView]) -> bool:
    """Whether the log has each call of a dataset, or cleared its rollout since.

    Args:
        log: what the log knows of a rollout.

    Raises:
        DamagedLog, FormatError, OSError: the dataset cannot be read.
    """
    for part in reader.manifest.parts:
        identities = reader.identities(part)
        for row in reader.rows_of(part):
            view = log(row.rollout_id)
            if view.generation > row.generation:
                continue
            there = {
                (row.rollout_id, view.generation, entry.call_index, entry.model_call_id, entry.digest)
                for entry in view.entries
            }
            told = identities[row.first_row : row.first_row + row.calls]
            if view.generation < row.generation or len(told) != row.calls or not there.issuperset(told):
                return False
    return True


__all__ = ["SealedSoFar", "agreed", "has_all"]
