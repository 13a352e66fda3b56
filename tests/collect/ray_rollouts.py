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


TURNS = 6


async def chat_rollout(row: dict[str, Any], session: Session) -> dict[str, Any]:
    """A few turns with the real SDK through the run's proxy."""
    client = session.openai(max_retries=8, timeout=60.0)
    answers = []
    for turn in range(TURNS):
        completion = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": f"{session.rollout_id} {turn}"}]
        )
        answers.append(completion.id)
    return {"answers": answers, "base_url": session.base_url, "pid": os.getpid()}
