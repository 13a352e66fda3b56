"""A multi-turn agent that buys things with tools, so that a first run shows what is captured.

It talks to its model over HTTP with the openai and anthropic SDKs, streamed or not, through the session's capturing
proxy where there is one; the model is `gym_capture.examples.model_server`, whose calls are sometimes rate-limited,
fail, hang, are cut or run out of tokens. In the end a judge, which is a model too, looks at the order. Once in a while
the agent uses an old API that capture does not know, which is what a gap looks like. All of it follows from the row.

A row: `{"task": "…", "items": ["…"], "dialect": "chat" | "responses" | "messages", "seed": 7}`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import gym_capture
from gym_capture.collect.session import Session
from gym_capture.examples.agent_turn import History, Model, Turn, load_sdks, model_of, openai_of
from gym_capture.examples.model_faults import SEED_HEADER
from gym_capture.examples.scripted_model import MODEL, ToolCall, turns

PATIENCE_S = 3.0
"""How long the SDK waits for an answer before it gives the call up and tries again, seconds."""
TRIES = 6
STREAMS = 0.5
"""How likely it is, per turn, that the answer is streamed."""
OLD_API = 0.2
"""How likely it is, per rollout, that the agent calls a model by an API that capture does not know."""
BREAKS = 0.05
"""How likely it is, per first attempt, that the agent itself raises, so that its rollout is tried again."""


class ModelGaveUp(RuntimeError):
    """The model failed `TRIES` times in a row."""


async def rollout(row: dict[str, Any], session: Session) -> dict[str, Any]:
    """One task: look items up, order them, answer, be judged. Returns the row's record with its answer and reward."""
    seed = int(row.get("seed", 0)) * 1000 + session.attempt
    chance = random.Random(seed)
    items = row["items"]
    breaks, uses_old_api = chance.random() < BREAKS, chance.random() < OLD_API
    breaks_at = chance.randrange(turns(items)) if breaks and session.attempt == 0 else -1
    history: History = []
    answer = ""
    await load_sdks()
    model = model_of(row["dialect"], session, PATIENCE_S)
    try:
        for turn in range(turns(items)):
            if turn == breaks_at:
                raise RuntimeError("the tool server went away")
            said = await _ask(model, row["task"], history, chance.random() < STREAMS, f"{seed}-{turn}")
            if not said.tool_calls:
                answer = said.text
                break
            history.append((said.tool_calls, [_use(call, chance) for call in said.tool_calls]))
    finally:
        await model.close()
    if row["dialect"] != "messages" and uses_old_api:
        await _ask_the_old_way(session, row["task"])
    return {
        "task": row["task"],
        "response": {"output_text": answer, "tool_calls": sum(len(calls) for calls, _ in history)},
        "judgement": await _judge(session, row["task"], answer, f"{seed}-judge"),
        "reward": 1.0 if answer else 0.0,
    }


async def _ask(model: Model, task: str, history: History, stream: bool, seed: str) -> Turn:
    """One turn, asked until it is answered whole. What the SDK itself tries again are further calls, captured too."""
    for number in range(TRIES):
        try:
            turn = await model.ask(task, history, stream=stream, headers=_headers(seed, number))
        except Exception:  # noqa: BLE001 - what three SDKs raise for a cut, failed or silent call has no common base
            continue
        if turn.whole:
            return turn
    raise ModelGaveUp(f"no whole answer in {TRIES} tries")


async def _judge(session: Session, task: str, answer: str, seed: str) -> str:
    """What a judge says of the answer. Its calls belong to the rollout, and are counted apart from the agent's."""
    asked = f"A buyer was asked: {task!r}. It answered: {answer!r}. Was that right?"
    with gym_capture.verifier("order_judge"):
        async with openai_of(session, timeout=PATIENCE_S, max_retries=TRIES) as client:
            for number in range(TRIES):
                try:
                    said = await client.chat.completions.create(
                        model=MODEL,
                        messages=[{"role": "user", "content": asked}],
                        extra_headers=_headers(seed, number),
                    )
                except Exception:  # noqa: BLE001 - as above
                    continue
                return said.choices[0].message.content or ""
    raise ModelGaveUp(f"no judgement in {TRIES} tries")


async def _ask_the_old_way(session: Session, task: str) -> None:
    async with openai_of(session, timeout=PATIENCE_S) as client:
        await client.completions.create(model=MODEL, prompt=task)


def _headers(seed: str, number: int) -> Mapping[str, str]:
    return {SEED_HEADER: f"{seed}-{number}"}


def _use(call: ToolCall, chance: random.Random) -> str:
    """The tool's result."""
    if call.name == "stock_of":
        return json.dumps({"item": call.arguments["item"], "in_stock": chance.randint(0, 40)})
    if call.name == "price_of":
        return json.dumps({"item": call.arguments["item"], "price": round(chance.uniform(2, 90), 2)})
    return json.dumps({"order": f"PO-{chance.randint(1000, 9999)}", **call.arguments})
