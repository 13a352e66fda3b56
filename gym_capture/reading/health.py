"""Whether a run's capture is whole: each rollout observed, incomplete or unobserved.

An empty capture looks like a quiet run. So a rollout that was begun and captured nothing is named, one that was
expected and is not known is named, and a directory with no rollout at all is not healthy.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from gym_capture.errors import ConfigError, InputRowError, InvalidRolloutId
from gym_capture.model.gaps import Gap
from gym_capture.model.ids import rollout_id_from_record, validate_rollout_id
from gym_capture.model.json_text import decode_json
from gym_capture.reading.rollout_overview import RolloutOverview
from gym_capture.reading.rollout_status import STATUSES, Status
from gym_capture.storage.store import CaptureStore

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class RolloutHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout.

    Args:
        damaged: calls of it that cannot be read.
        failed: as `RolloutRow` has it.
        expected: whether it was among the expected ones; None when nobody said which they are.
    """

    rollout_id: str
    status: Status
    calls: int
    damaged: int
    failed: int | None
    late: int
    gaps: list[Gap]
    expected: bool | None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """A run's capture.

    Args:
        healthy: there is at least one rollout, every one of them is observed, and the log is not damaged.
        counts: rollouts by status, each status with its count.
        empty: there is no rollout, neither known nor expected.
        damaged: bytes of the log that had been synced cannot be read; whom they may concern is incomplete, others
            may be missing altogether. `gym-capture verify` names the places. What lies before a checkpoint is not
            looked at for this: the calls that were in it are known, and read.
        unhealthy: every rollout that is not observed.
        unexpected: rollouts that are known and were not expected (another attempt, say); they are in the counts, too.
    """

    directory: str
    healthy: bool
    empty: bool
    damaged: bool
    rollouts: int
    calls: int
    counts: dict[str, int]
    unhealthy: list[RolloutHealth]
    unexpected: list[str]


def check_health(store: CaptureStore, expected: Iterable[str] | None = None) -> Health:
    """Look at every rollout. Reads all records, no payload.

    Args:
        expected: the ids that have to be there; None: those that are known.

    Raises:
        OSError: a file could not be read.
    """
    overview = RolloutOverview(store)
    wanted = None if expected is None else dict.fromkeys(expected)
    found: list[RolloutHealth] = []
    for standing in store.standings():
        row = overview.row_of(standing)
        found.append(
            RolloutHealth(
                rollout_id=row.rollout_id,
                status=row.status,
                calls=row.calls,
                damaged=row.damaged,
                failed=row.failed,
                late=row.late,
                gaps=row.gaps,
                expected=None if wanted is None else row.rollout_id in wanted,
            )
        )
    known = {each.rollout_id for each in found}
    for rollout_id in wanted or ():
        if rollout_id not in known:
            row = overview.row(rollout_id)
            found.append(
                RolloutHealth(
                    rollout_id=rollout_id,
                    status=row.status,
                    calls=0,
                    damaged=0,
                    failed=row.failed,
                    late=0,
                    gaps=row.gaps,
                    expected=True,
                )
            )
    found.sort(key=lambda each: each.rollout_id)
    counts = dict.fromkeys(STATUSES, 0)
    for each in found:
        counts[each.status] += 1
    unhealthy = [each for each in found if each.status != "observed"]
    damaged = store.report.damaged
    return Health(
        directory=store.directory,
        healthy=bool(found) and not unhealthy and not damaged,
        empty=not found,
        damaged=damaged,
        rollouts=len(found),
        calls=sum(each.calls for each in found),
        counts={str(name): count for name, count in counts.items()},
        unhealthy=unhealthy,
        unexpected=[each.rollout_id for each in found if each.expected is False],
    )


def expected_ids(path: Path) -> list[str]:
    """The rollout ids that a file names, in its order.

    Args:
        path: JSON lines of rows or rollout records (`_ng_rollout_id`, or the two indices and the attempt), of ids as
            JSON text, or plain lines with an id each. Blank lines are passed over.

    Raises:
        ConfigError: the file cannot be read, or names nobody.
        InputRowError: a line names no rollout.
    """
    ids: dict[str, None] = {}
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                text = (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).strip()
                if text:
                    ids[_named(path, number, text)] = None
    except OSError as error:
        raise ConfigError(f"cannot read --expected {path}: {error.strerror or error}. Nothing was checked.") from error
    if not ids:
        raise ConfigError(f"--expected {path} names no rollout, so any capture would do. Nothing was checked.")
    return list(ids)


def _named(path: Path, number: int, text: bytes) -> str:
    value: Any
    try:
        value = decode_json(text)[0] if text[:1] in b'{"[' else text.decode("utf-8", "backslashreplace")
    except ValueError as error:
        raise InputRowError(
            f"{path}, line {number} is not JSON ({error}). Nothing was checked.", line=number
        ) from error
    try:
        found = validate_rollout_id(value) if isinstance(value, str) else rollout_id_from_record(value)
    except InvalidRolloutId as error:
        raise InputRowError(f"{path}, line {number}: {error} Nothing was checked.", line=number) from error
    if found is None:
        raise InputRowError(
            f"{path}, line {number} names no rollout: it has neither _ng_rollout_id nor both _ng_task_index and "
            "_ng_rollout_index. Nothing was checked; give the collector's output, rows with their indices, or ids.",
            line=number,
        )
    return found


__all__ = ["Health", "RolloutHealth", "check_health", "expected_ids"]
