"""Rollout functions for tests on real Ray. Their workers import them by this module's path."""

from __future__ import annotations

import os
import signal
from typing import Any

from gym_capture.collect.session import Session


async def rollout(row: dict[str, Any], session: Session) -> dict[str, Any] | None:
    """Two model calls, then what the row says, at its first attempt only unless `always`."""
    for turn in range(2):
        async with session.claim(dialect="chat") as call:
            call.complete(request={"turn": turn}, response={"id": f"{session.rollout_id}/{turn}"})
    do = row.get("do") if session.attempt == 0 or row.get("always") else None
    if do == "raise":
        raise LookupError("no such tool")
    if do == "die":
        async with session.claim(dialect="chat"):
            os.kill(os.getpid(), signal.SIGKILL)
    if do == "hide":
        session.count_issued(3)
    return {"answer": row["n"], "generation": session.generation, "pid": os.getpid()}
