"""A model that follows a script: requests and responses of the three dialects, faults by chance, from one seed.

It stands in for a model server. What it returns has the shapes that the providers' APIs have: usage with cached and
reasoning tokens, tool calls, reasoning, finish reasons.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Any

MODEL = "scripted-7b"

RATE_LIMITED = "rate_limited"
BROKEN = "broken"
CUT = "cut"
TOO_LONG = "too_long"
HANGS = "hangs"

FAULTS = {RATE_LIMITED: 0.06, BROKEN: 0.04, CUT: 0.04, TOO_LONG: 0.03, HANGS: 0.03}
"""How likely each fault is, per call."""

TOOLS = ("stock_of", "price_of", "place_order")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants called."""

    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one request.

    Args:
        status: HTTP status.
        body: the response, or as much of it as arrived.
        fault: None, or one of this module's.
        text, tool_call: what the model said, when it said it whole.
        ttft_ms: time to the first token, milliseconds.
    """

    status: int
    body: dict[str, Any]
    fault: str | None
    text: str = ""
    tool_call: ToolCall | None = None
    ttft_ms: float | None = None


class ScriptedModel:
    """One rollout's model.

    Args:
        dialect: `chat`, `responses` or `messages`.
        items: what the task is about; the script looks each one up, then orders, then answers.
        seed: everything that it does follows from it.
        pace_s: mean time to answer, seconds.
    """

    def __init__(self, dialect: str, items: list[str], seed: int, pace_s: float = 0.01) -> None:
        self.dialect = dialect
        self._items = items
        self._random = random.Random(seed)
        self._pace_s = pace_s
        self._calls = 0
        self._seen_tokens = 0

    @property
    def turns(self) -> int:
        """Turns that the script takes when nothing fails."""
        return len(self._items) + 2

    def request(self, task: str, history: list[tuple[ToolCall, str]]) -> dict[str, Any]:
        """The request of the next turn: the whole conversation so far.

        Args:
            task: what the user asked.
            history: tool calls and their results.
        """
        if self.dialect == "responses":
            items: list[dict[str, Any]] = [{"role": "user", "content": task}]
            for call, result in history:
                arguments = json.dumps(call.arguments)
                items.append(
                    {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": arguments}
                )
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
            return {"model": MODEL, "input": items, "tools": [{"type": "function", "name": name} for name in TOOLS]}
        messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
        for call, result in history:
            messages += _chat_turn(call, result) if self.dialect == "chat" else _messages_turn(call, result)
        if self.dialect == "chat":
            return {
                "model": MODEL,
                "messages": messages,
                "tools": [{"type": "function", "function": {"name": name}} for name in TOOLS],
            }
        return {"model": MODEL, "max_tokens": 1024, "messages": messages, "tools": [{"name": name} for name in TOOLS]}

    async def answer(self, request: dict[str, Any], turn: int) -> Reply:
        """Answer a request. Takes a little time; a call that hangs takes until it is cancelled."""
        chance = self._random
        self._calls += 1
        fault = chance.choices([None, *FAULTS], [1 - sum(FAULTS.values()), *FAULTS.values()])[0]
        pause = chance.uniform(0.2, 1.8) * self._pace_s
        name = f"{self.dialect}-{chance.getrandbits(48):012x}"
        tokens = len(json.dumps(request)) // 4
        if fault == HANGS:
            await asyncio.Event().wait()
        await asyncio.sleep(pause)
        if fault == RATE_LIMITED:
            return Reply(429, self._error("rate_limit_error", "too many requests"), fault)
        if fault == BROKEN:
            return Reply(500, self._error("server_error", "the server had an error"), fault)
        text, tool_call = self._script(turn)
        body = self._body(name, text, tool_call, tokens, too_long=fault == TOO_LONG)
        self._seen_tokens = tokens
        if fault == CUT:
            body.pop("usage")
        return Reply(200, body, fault, text, tool_call, round(pause * 400, 3))

    def _script(self, turn: int) -> tuple[str, ToolCall | None]:
        call_id = f"call_{turn}_{self._random.getrandbits(32):08x}"
        if turn < len(self._items):
            tool = TOOLS[turn % 2]
            return "", ToolCall(call_id, tool, {"item": self._items[turn]})
        if turn == len(self._items):
            return "", ToolCall(call_id, "place_order", {"items": self._items, "quantity": self._random.randint(1, 9)})
        return f"I looked up {', '.join(self._items)} and placed the order.", None

    def _error(self, kind: str, message: str) -> dict[str, Any]:
        error = {"type": kind, "message": message}
        return {"type": "error", "error": error} if self.dialect == "messages" else {"error": error}

    def _body(
        self, name: str, text: str, tool_call: ToolCall | None, tokens_in: int, *, too_long: bool
    ) -> dict[str, Any]:
        reasoning = f"Item {self._calls} of the list comes next." if tool_call else "Everything is there."
        tokens_out = self._random.randint(20, 60)
        thinking = tokens_out // 3
        # What was sent before is in the server's prefix cache.
        cached = min(self._seen_tokens, tokens_in) // 16 * 16
        if self.dialect == "chat":
            return _chat_body(name, text, tool_call, reasoning, (tokens_in, tokens_out, thinking, cached), too_long)
        if self.dialect == "responses":
            return _responses_body(
                name, text, tool_call, reasoning, (tokens_in, tokens_out, thinking, cached), too_long
            )
        return _messages_body(name, text, tool_call, reasoning, (tokens_in, tokens_out, cached), too_long)


def _chat_turn(call: ToolCall, result: str) -> list[dict[str, Any]]:
    return [
        {"role": "assistant", "content": None, "tool_calls": [_chat_tool_call(call)]},
        {"role": "tool", "tool_call_id": call.call_id, "content": result},
    ]


def _messages_turn(call: ToolCall, result: str) -> list[dict[str, Any]]:
    use = {"type": "tool_use", "id": call.call_id, "name": call.name, "input": call.arguments}
    return [
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.call_id, "content": result}]},
    ]


def _chat_tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": call.call_id, "type": "function", "function": function}


def _chat_body(
    name: str, text: str, call: ToolCall | None, reasoning: str, tokens: tuple[int, int, int, int], too_long: bool
) -> dict[str, Any]:
    tokens_in, tokens_out, thinking, cached = tokens
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "reasoning_content": reasoning}
    if call is not None:
        message["tool_calls"] = [_chat_tool_call(call)]
    return {
        "id": f"chatcmpl-{name}",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "length" if too_long else "tool_calls" if call is not None else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": thinking},
        },
    }


def _responses_body(
    name: str, text: str, call: ToolCall | None, reasoning: str, tokens: tuple[int, int, int, int], too_long: bool
) -> dict[str, Any]:
    tokens_in, tokens_out, thinking, cached = tokens
    summary = [{"type": "summary_text", "text": reasoning}]
    output: list[dict[str, Any]] = [{"type": "reasoning", "id": f"rs_{name}", "summary": summary}]
    if call is not None:
        output.append(
            {
                "type": "function_call",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": json.dumps(call.arguments),
                "status": "completed",
            }
        )
    else:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        output.append({"type": "message", "id": f"msg_{name}", "role": "assistant", "content": content})
    body: dict[str, Any] = {
        "id": f"resp_{name}",
        "object": "response",
        "model": MODEL,
        "status": "incomplete" if too_long else "completed",
        "output": output,
        "usage": {
            "input_tokens": tokens_in,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": tokens_out,
            "output_tokens_details": {"reasoning_tokens": thinking},
            "total_tokens": tokens_in + tokens_out,
        },
    }
    if too_long:
        body["incomplete_details"] = {"reason": "max_output_tokens"}
    return body


def _messages_body(
    name: str, text: str, call: ToolCall | None, reasoning: str, tokens: tuple[int, int, int], too_long: bool
) -> dict[str, Any]:
    tokens_in, tokens_out, cached = tokens
    content: list[dict[str, Any]] = [{"type": "thinking", "thinking": reasoning, "signature": ""}]
    if text:
        content.append({"type": "text", "text": text})
    if call is not None:
        content.append({"type": "tool_use", "id": call.call_id, "name": call.name, "input": call.arguments})
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content,
        "stop_reason": "max_tokens" if too_long else "tool_use" if call is not None else "end_turn",
        "usage": {
            # This dialect's input_tokens leave the cached ones out.
            "input_tokens": tokens_in - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": tokens_out,
        },
    }
