"""Tool calls and reasoning text of a response, whichever dialect shaped it.

The shape decides, not the declared dialect: a response with an `output` list is read as Responses, else with
`choices` as Chat Completions, else with `content` as Messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gym_capture.model.json_values import as_text, clean_text, is_standard, parse_standard, plain_copy

ToolCall = dict[str, Any]


def tool_calls_and_reasoning(response: dict[str, Any]) -> tuple[list[ToolCall], str | None]:
    """What the model asked for and how it said it reasoned.

    Args:
        response: a response body; parts that are malformed are passed over.

    Returns:
        The tool calls in order, each with `call_id`, `name` and `arguments` (parsed; `{"_raw": text}` when the
        text is not standard JSON), and the reasoning texts joined by newlines, None when there are none.
    """
    calls: list[ToolCall] = []
    reasoning: list[str] = []
    for key, read in _READERS:
        parts = response.get(key)
        if isinstance(parts, list):
            for part in parts:
                read(part, calls, reasoning)
            break
    return calls, (clean_text("\n".join(reasoning)) or None) if reasoning else None


def _read_output(item: Any, calls: list[ToolCall], reasoning: list[str]) -> None:
    if not isinstance(item, dict):
        return
    kind = item.get("type")
    if kind == "function_call":
        call_id = item.get("call_id") or item.get("id")
        calls.append(_tool_call(call_id, item.get("name"), _arguments(item.get("arguments"))))
    elif kind == "reasoning":
        for summary in _listed(item.get("summary")):
            text = summary.get("text")
            if isinstance(text, str) and text:
                reasoning.append(text)


def _read_choices(choice: Any, calls: list[ToolCall], reasoning: list[str]) -> None:
    message = choice.get("message") if isinstance(choice, dict) else None
    # An abstract type's check costs more than all the rest of an answer without tool calls.
    if type(message) is not dict and not isinstance(message, Mapping):
        return
    for call in _listed(message.get("tool_calls")):
        function = call.get("function")
        if type(function) is not dict and not isinstance(function, Mapping):
            function = {}
        calls.append(_tool_call(call.get("id"), function.get("name"), _arguments(function.get("arguments"))))
    # Older servers say reasoning_content, newer ones reasoning; one answer has one of them, or both alike.
    text = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(text, str) and text:
        reasoning.append(text)


def _read_content(block: Any, calls: list[ToolCall], reasoning: list[str]) -> None:
    if not isinstance(block, dict):
        return
    kind = block.get("type")
    if kind == "tool_use":
        calls.append(_tool_call(block.get("id"), block.get("name"), _given_arguments(block.get("input") or {})))
    elif kind in ("thinking", "redacted_thinking"):
        text = block.get("thinking")
        if isinstance(text, str):
            reasoning.append(text)


def _listed(parts: Any) -> Iterable[dict[str, Any]]:
    return (part for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()


def _tool_call(call_id: Any, name: Any, arguments: Any) -> ToolCall:
    return {"call_id": _labelled(call_id), "name": _labelled(name), "arguments": arguments}


def _labelled(value: Any) -> Any:
    """An id or name as it was sent, whatever its type; its text where JSON could not carry it."""
    if is_standard(value):
        return plain_copy(value)
    return clean_text(value) if isinstance(value, str) else _text_or_none(value)


def _arguments(arguments: Any) -> Any:
    if isinstance(arguments, str):
        try:
            return parse_standard(arguments)
        except (ValueError, RecursionError):
            return {"_raw": clean_text(arguments)}
    return _given_arguments(arguments) if isinstance(arguments, dict) else {}


def _given_arguments(arguments: Any) -> Any:
    """Arguments that came as a value, not as text; copied, because whoever gave the response may change it later."""
    if is_standard(arguments):
        return plain_copy(arguments)
    text = clean_text(arguments) if isinstance(arguments, str) else _text_or_none(arguments)
    return {} if text is None else {"_raw": text}


def _text_or_none(value: Any) -> str | None:
    try:
        return as_text(value)
    except Exception:  # noqa: BLE001 - a value of any type, whose own methods may raise anything
        return None


_READERS = (("output", _read_output), ("choices", _read_choices), ("content", _read_content))
