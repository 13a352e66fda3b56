"""The messages of exchanges, whichever dialect shaped them, and which of them each call added to its conversation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gym_capture.model.json_values import as_text, clean_text
from gym_capture.model.tool_calls import tool_calls_and_reasoning


class Message(NamedTuple):
    """One message: who says it, its text, what the model says of its reasoning, the tool calls in it as (call id, name,
    arguments as text), and, of a tool's result, the call that it answers."""

    role: str | None
    content: str | None
    reasoning: str | None = None
    tool_calls: tuple[tuple[str | None, str | None, str | None], ...] = ()
    tool_call_id: str | None = None

    @property
    def size(self) -> int:
        """Characters of its texts."""
        return len(self.content or "") + len(self.reasoning or "")


class Conversation:
    """Tells what each call of one rollout added. Conversations may branch, or several go on in turn.

    A message was there before when an earlier call had it behind the same messages. Reasoning is not compared: clients
    often leave it out of what they send back.
    """

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def added(self, exchange: Mapping[str, Any]) -> Iterator[tuple[int, str, Message]]:
        """What this exchange added, in order.

        Returns:
            (place in the conversation from 0, `request` or `response`, the message).
        """
        place = b""
        position = 0
        for source, messages in (
            ("request", request_messages(exchange.get("request"))),
            ("response", response_messages(exchange.get("response"))),
        ):
            for message in messages:
                place = _behind(place, message)
                if place not in self._seen:
                    self._seen.add(place)
                    yield position, source, message
                position += 1


def _behind(place: bytes, message: Message) -> bytes:
    said = repr(message._replace(reasoning=None)).encode()
    return hashlib.blake2b(said, digest_size=16, key=place).digest()


def request_messages(request: Any) -> Iterator[Message]:
    """The messages of a request body of any dialect. What is malformed is passed over."""
    if not isinstance(request, dict):
        return
    for key, role in (("system", "system"), ("instructions", "system")):
        if request.get(key):
            yield Message(role, _text(request[key]))
    given = request.get("messages", request.get("input", request.get("prompt")))
    if isinstance(given, str):
        yield Message("user", clean_text(given))
    elif isinstance(given, list):
        for item in given:
            if isinstance(item, dict):
                yield from _item(item, None)


def response_messages(response: Any) -> Iterator[Message]:
    """The messages of a response body of any dialect: the first choice of several."""
    if not isinstance(response, dict):
        return
    output, choices = response.get("output"), response.get("choices")
    if isinstance(output, list):
        for item in output:
            if isinstance(item, dict):
                yield from _item(item, "assistant")
    elif isinstance(choices, list):
        message = choices[0].get("message") if choices and isinstance(choices[0], dict) else None
        if isinstance(message, dict):
            yield from _item(message, "assistant")
    elif isinstance(response.get("content"), list):
        yield from _item(response, "assistant")


def _item(item: dict[str, Any], role: str | None) -> Iterator[Message]:
    """The messages of one item: a tool's results inside of a message are messages of their own."""
    kind = item.get("type")
    if kind == "function_call_output":
        yield Message("tool", _text(item.get("output")), tool_call_id=_string(item.get("call_id")))
        return
    if kind in ("function_call", "reasoning"):
        calls, reasoning = _calls({"output": [item]})
        yield Message("assistant", None, reasoning, calls)
        return
    content = item.get("content")
    said_by = _string(item.get("role")) or role
    results = [block for block in content if _is_result(block)] if isinstance(content, list) else []
    for block in results:
        yield Message("tool", _text(block.get("content")), tool_call_id=_string(block.get("tool_use_id")))
    if results:
        content = [block for block in content or () if not _is_result(block)]
        if not content:
            return
    calls, reasoning = _calls({"choices": [{"message": item}]})
    if isinstance(content, list) and not calls and reasoning is None:
        calls, reasoning = _calls({"content": content})
    yield Message(said_by, _text(content), reasoning, calls, _string(item.get("tool_call_id")))


def _is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def _calls(response: dict[str, Any]) -> tuple[tuple[tuple[str | None, str | None, str | None], ...], str | None]:
    calls, reasoning = tool_calls_and_reasoning(response)
    told = tuple(
        (_string(call["call_id"]), _string(call["name"]), json.dumps(call["arguments"], ensure_ascii=False))
        for call in calls
    )
    return told, reasoning


def _text(content: Any) -> str | None:
    """Text as a person would read it: of blocks their texts, one below the other, and the types of the others."""
    if content is None or content == []:
        return None
    if isinstance(content, str):
        return clean_text(content)
    if isinstance(content, list):
        pieces = [piece for block in content if (piece := _block(block)) is not None]
        return "\n".join(pieces) if pieces else None
    return _value(content)


def _block(block: Any) -> str | None:
    if isinstance(block, str):
        return clean_text(block)
    if not isinstance(block, dict):
        return _value(block)
    text = block.get("text", block.get("refusal"))
    if isinstance(text, str):
        return clean_text(text)
    kind = block.get("type")
    if kind in ("tool_use", "thinking", "redacted_thinking"):
        return None
    return f"[{clean_text(kind)}]" if isinstance(kind, str) else _value(block)


def _value(value: Any) -> str | None:
    try:
        return clean_text(as_text(value))
    except (ValueError, RecursionError):
        return None


def _string(value: Any) -> str | None:
    return clean_text(value) if isinstance(value, str) else None
