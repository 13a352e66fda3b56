"""A multi-turn agent that buys things with tools from a scripted model, so that a first run shows what is captured.

Its model calls are sometimes rate-limited, fail, are cut, run out of tokens, hang and are cancelled; and once in a
while it claims a call and never says what became of it, which is what a gap looks like. All of it follows from the
row.

A row: `{"task": "…", "items": ["…"], "dialect": "chat" | "responses" | "messages", "seed": 7}`.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from gym_capture.collect.session import Session
from gym_capture.examples.scripted_model import CUT, TOO_LONG, Reply, ScriptedModel, ToolCall

MODEL_REF = {"type": "responses_api_models", "name": "policy_model"}
PATIENCE_S = 0.5
"""How long the agent waits for an answer before it cancels the call, seconds."""
TRIES = 4
FORGETS = 0.01
"""How likely it is, per call, that the agent gives a claim up without saying what became of the call."""
BREAKS = 0.03
"""How likely it is, per first attempt, that the agent itself raises, so that its rollout is tried again."""


class ModelGaveUp(RuntimeError):
    """The model failed `TRIES` times in a row."""


async def rollout(row: dict[str, Any], session: Session) -> dict[str, Any]:
    """One task: look items up, order them, answer. Returns the row's record with its transcript and reward."""
    seed = int(row.get("seed", 0)) * 1000 + session.attempt
    chance = random.Random(seed)
    model = ScriptedModel(row["dialect"], row["items"], seed)
    breaks_at = chance.randrange(model.turns) if session.attempt == 0 and chance.random() < BREAKS else -1
    history: list[tuple[ToolCall, str]] = []
    answer = ""
    for turn in range(model.turns):
        if turn == breaks_at:
            raise RuntimeError("the tool server went away")
        reply = await _ask(model, session, model.request(row["task"], history), turn, chance)
        if reply.tool_call is None:
            answer = reply.text
            break
        history.append((reply.tool_call, _use(reply.tool_call, chance)))
    return {
        "task": row["task"],
        "response": {"output_text": answer, "tool_calls": len(history)},
        "reward": 1.0 if answer else 0.0,
    }


async def _ask(
    model: ScriptedModel, session: Session, request: dict[str, Any], turn: int, chance: random.Random
) -> Reply:
    """One turn's model call, tried until it answers whole. Each try is a claim, and an exchange, of its own."""
    for _ in range(TRIES):
        async with session.claim(dialect=model.dialect, model_ref=MODEL_REF) as call:
            call.note(request=request)
            try:
                reply = await _bounded(model.answer(request, turn))
            except TimeoutError:
                call.complete(request=request, response=None, status_code=None, error_category="cancelled")
                continue
            if chance.random() < FORGETS:
                call.release()
                continue
            call.complete(
                request=request,
                response=reply.body,
                status_code=reply.status,
                latency_ttft_ms=reply.ttft_ms,
                **_category(reply.fault),
            )
        if reply.fault is None:
            return reply
    raise ModelGaveUp(f"no whole answer in {TRIES} tries")


async def _bounded(answer: Any) -> Reply:
    async with asyncio.timeout(PATIENCE_S):
        reply: Reply = await answer
    return reply


def _category(fault: str | None) -> dict[str, str]:
    """What the client of a stream knows and a status does not say."""
    if fault == CUT:
        return {"error_category": "stream_truncated"}
    if fault == TOO_LONG:
        return {"error_category": "incomplete"}
    return {}


def _use(call: ToolCall, chance: random.Random) -> str:
    """The tool's result."""
    if call.name == "stock_of":
        return json.dumps({"item": call.arguments["item"], "in_stock": chance.randint(0, 40)})
    if call.name == "price_of":
        return json.dumps({"item": call.arguments["item"], "price": round(chance.uniform(2, 90), 2)})
    return json.dumps({"order": f"PO-{chance.randint(1000, 9999)}", **call.arguments})
