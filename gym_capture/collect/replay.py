"""A rollout function that commits the exchanges that its row brings, so that real captures can be run through.

A row is `{"record": {…}, "exchanges": [{…}, …]}`. The exchanges are committed in order, as they are; the record is the
rollout's record, and its `_ng_*` keys are the rollout's identity (`collect.identity`).
"""

from __future__ import annotations

from typing import Any

from gym_capture.collect.session import Session


async def rollout(row: dict[str, Any], session: Session) -> dict[str, Any]:
    """Commit `row["exchanges"]`, one after the other, and return `row["record"]`.

    Raises:
        ValueError: the row is not of this form.
        GymCaptureError: an exchange was not captured.
    """
    record, exchanges = row.get("record"), row.get("exchanges")
    if not isinstance(record, dict) or not isinstance(exchanges, list):
        raise ValueError('a row to replay is {"record": {…}, "exchanges": [{…}, …]}')
    for exchange in exchanges:
        # One at a time: their order is their call_index.
        await session.record(exchange)
    return record
