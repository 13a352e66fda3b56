"""Who an input row is: the `_ng_*` keys that its records carry and its captures go under.

Each key is taken from the row, else from the row's `record` when that is a mapping (rows that replay a finished
rollout carry their identity there), else `_ng_task_index` is the 0-based line and `_ng_rollout_index` the repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gym_capture.model.ids import (
    ATTEMPT_INDEX_KEY,
    ROLLOUT_ID_KEY,
    ROLLOUT_INDEX_KEY,
    TASK_INDEX_KEY,
    rollout_id_from_record,
)

IDENTITY_KEYS = (TASK_INDEX_KEY, ROLLOUT_INDEX_KEY, ROLLOUT_ID_KEY, ATTEMPT_INDEX_KEY)
RECORD_KEY = "record"


@dataclass(frozen=True, slots=True)
class RowIdentity:
    """One rollout that is to be collected, whatever the number of attempts that it takes.

    Args:
        key: its rollout id at attempt 0; unique in one run.
        keys: the identity keys of its records, attempt aside.
        first_attempt: the attempt index that the row itself names, or 0.
    """

    key: str
    keys: Mapping[str, Any]
    first_attempt: int

    def fields(self, attempt: int) -> dict[str, Any]:
        """The identity keys of one attempt's record."""
        return {**self.keys, ATTEMPT_INDEX_KEY: attempt} if attempt > 0 else dict(self.keys)

    def rollout_id(self, attempt: int) -> str:
        """The id that one attempt captures under. Raises InvalidRolloutId when the suffix makes it too long."""
        rollout_id = rollout_id_from_record(self.fields(attempt))
        if rollout_id is None:  # both indices are always there
            raise AssertionError(f"no id in {self.keys!r}")
        return rollout_id

    def imprint(self, record: dict[str, Any], attempt: int) -> dict[str, Any]:
        """Make a rollout function's record carry this identity; nothing else in it is touched.

        A record may bring identity keys of its own. Those that would give it another id are dropped, because merging
        it, and finding it again in the output, goes by the id that it carries.
        """
        fields = self.fields(attempt)
        for name in IDENTITY_KEYS:
            if name in fields:
                record[name] = fields[name]
            elif record.get(name) is not None and not (name == ATTEMPT_INDEX_KEY and record[name] in (0, "0")):
                del record[name]
        return record


def identify(row: Mapping[str, Any], line: int, repeat: int) -> RowIdentity:
    """The identity of one repeat of an input row.

    Args:
        row: the parsed row.
        line: its 0-based line number.
        repeat: 0-based.

    Raises:
        InvalidRolloutId: the row's own keys give no valid id.
    """
    record = row.get(RECORD_KEY)
    sources = [row, record] if isinstance(record, Mapping) else [row]

    def own(name: str) -> Any:
        return next((source[name] for source in sources if source.get(name) is not None), None)

    task, rollout, explicit = own(TASK_INDEX_KEY), own(ROLLOUT_INDEX_KEY), own(ROLLOUT_ID_KEY)
    keys: dict[str, Any] = {
        TASK_INDEX_KEY: line if task is None else task,
        ROLLOUT_INDEX_KEY: repeat if rollout is None else rollout,
    }
    if explicit is not None:
        keys[ROLLOUT_ID_KEY] = explicit
    attempt = own(ATTEMPT_INDEX_KEY)
    # Validates all of it, the attempt's form too.
    rollout_id_from_record({**keys, ATTEMPT_INDEX_KEY: attempt})
    key = rollout_id_from_record(keys)
    if key is None:
        raise AssertionError(f"no id in {keys!r}")
    return RowIdentity(key, keys, max(int(attempt), 0) if attempt is not None else 0)


def names_its_rollout(row: Mapping[str, Any]) -> bool:
    """Whether the row names one rollout of its own, so that repeating it would give two rollouts one id."""
    record = row.get(RECORD_KEY)
    sources = [row, record] if isinstance(record, Mapping) else [row]
    return any(source.get(name) is not None for source in sources for name in (ROLLOUT_INDEX_KEY, ROLLOUT_ID_KEY))


def record_identity(record: Mapping[str, Any]) -> tuple[str, int] | None:
    """The row key and the attempt of a record that this collector wrote; None when it names no rollout.

    Raises:
        InvalidRolloutId: it names one that is not valid.
    """
    if rollout_id_from_record(record) is None:
        return None
    attempt = record.get(ATTEMPT_INDEX_KEY)
    key = rollout_id_from_record({name: record.get(name) for name in IDENTITY_KEYS if name != ATTEMPT_INDEX_KEY})
    return (key, max(int(attempt), 0) if attempt is not None else 0) if key is not None else None
