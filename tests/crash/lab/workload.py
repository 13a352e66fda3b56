"""What a worker does for a rollout: concurrent calls, each noted as its caller sees it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from dataclasses import dataclass
from typing import Any

from gym_capture.client.operations import ClaimState
from gym_capture.client.rollout import RolloutHandle
from gym_capture.errors import Fenced, GymCaptureError
from tests.crash.lab.journal import Journal

ENDINGS = {"commit": 70, "repeat": 8, "record": 8, "raise": 6, "release": 8}


@dataclass(frozen=True)
class Attempt:
    """One worker's part in a rollout.

    Args:
        directory: the capture directory; journals lie in `journals` beside it.
        name: what its call ids begin with; no other attempt has it.
        generation: the token; None: the worker has none.
        calls: how many, all at once.
        fork: whether a forked child makes calls too.
    """

    directory: str
    rollout: str
    name: str
    generation: int | None
    calls: int
    seed: str
    fork: bool = False


def digest_of(request: Any, response: Any) -> str:
    """What both sides compare of an exchange."""
    return hashlib.sha256(json.dumps([request, response], sort_keys=True).encode()).hexdigest()


def exchange_of(attempt: Attempt, call_id: str, draw: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """A request and a response of random sizes. Most requests repeat what was said in their rollout before, whichever
    attempt it was in, so that clients send it once in each generation.
    """
    conversation = random.Random(f"conversation of {attempt.rollout}")
    repeated = draw.choice([0, 1, 2, 4, 6])
    messages = [*(_message(conversation) for _ in range(repeated)), _message(draw)]
    return {"messages": messages, "call": call_id}, {"id": call_id, "n": draw.random()}


def _message(draw: random.Random) -> dict[str, str]:
    words = draw.choices(("value ", "naïve ", "🙂 ", "0.25 ", "\\n", '"quoted" '), k=draw.randrange(1, 400))
    return {"role": "user", "content": "".join(words)}


async def work(handle: RolloutHandle, journal: Journal, attempt: Attempt, prefix: str = "") -> int:
    """Make all calls of an attempt; returns how many were issued."""
    names = [f"{prefix}{attempt.name}.{number}" for number in range(attempt.calls)]
    calls = [asyncio.ensure_future(one_call(handle, journal, attempt, name)) for name in names]
    try:
        await asyncio.gather(*calls)
    finally:
        # Cancelled: the calls are, and each leaves its claim.
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    return handle.issued


async def one_call(handle: RolloutHandle, journal: Journal, attempt: Attempt, call_id: str) -> None:
    """One model call, ended in one of the ways that there are."""
    draw = random.Random(f"{attempt.seed} {call_id}")
    request, response = exchange_of(attempt, call_id, draw)
    ending = draw.choices(list(ENDINGS), list(ENDINGS.values()))[0]
    model_s = draw.choice([0.0, 0.02, 0.1, 0.1, 0.8]) * draw.random()
    journal.note("asked", handle.id, attempt.generation, call_id, digest_of(request, response))
    try:
        if ending in ("record", "repeat"):
            for _ in range(1 + (ending == "repeat")):
                await _record(handle, journal, call_id, request, response)
            return
        claim = handle.claim(dialect="chat", model_call_id=call_id)
        try:
            async with claim:
                if claim._ticket.state is ClaimState.OPEN:
                    journal.note("claimed", call_id, claim.generation)
                how = "raise"
                try:
                    await asyncio.sleep(model_s)
                    if ending == "raise":
                        raise ZeroDivisionError
                    if ending == "release":
                        claim.release()
                        how = "release"
                    else:
                        claim.complete(request=request, response=response)
                        how = "commit"
                finally:
                    journal.note("closing", call_id, how)
        except ZeroDivisionError:
            pass
        journal.note("told", call_id, str(claim.outcome), claim.generation)
    except Exception as error:  # noqa: BLE001 - that nobody sees one is what is to be shown
        journal.note("error", call_id, repr(error)[:300])


async def _record(handle: RolloutHandle, journal: Journal, call_id: str, request: Any, response: Any) -> None:
    """Record it whole, as a caller does that was not told, again; that raises for an absent owner is its contract."""
    journal.note("closing", call_id, "commit")
    try:
        await handle.record(_exchange(call_id, request, response))
    except Fenced:
        journal.note("told", call_id, "fenced", None)
    except GymCaptureError as error:
        journal.note("told", call_id, type(error).__name__, None)
    else:
        journal.note("told", call_id, "durable", handle.generation)


def _exchange(call_id: str, request: Any, response: Any) -> dict[str, Any]:
    return {"model_call_id": call_id, "dialect": "chat", "request": request, "response": response, "status_code": 200}
