"""Rollouts as conversations in OpenAI's chat format, for training: `{"messages": […], "tools": […]}`.

A conversation is a call that no later one goes on from: its history and its answer. It is told whole or not at all, for
one with a hole would teach something that was never said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gym_capture.errors import DamagedLog
from gym_capture.model.captured import CapturedCall
from gym_capture.reading.additions import HIDDEN_REASONING, Addition, Additions
from gym_capture.reading.call_figures import figures_of_fields
from gym_capture.reading.message import Message, listed

Json = dict[str, Any]


class ChatLine(NamedTuple):
    """One conversation. Fields: the `line` (None: it is left out), and why it is `left_out`."""

    line: Json | None
    left_out: str = ""


class _Leaf(NamedTuple):
    history: tuple[Message, ...] | None
    answers: tuple[tuple[Message, ...], ...]
    tools: list[Json]


def chat_lines(calls: Iterable[CapturedCall]) -> Iterator[ChatLine]:
    """The conversations of one rollout, in call order. Calls that failed, and a verifier's, are none and end none.

    Left out are `not_text` (images, files, blocks of unknown types), `unknown_history` (a request of no known shape, or
    one that refers to a response that was not captured) and `unreadable`.
    """
    additions = Additions()
    whole: dict[int, tuple[Message, ...]] = {}
    leaves: dict[int, _Leaf | None] = {}
    follows: dict[int, int] = {}
    for call in calls:
        index = call.call_index
        try:
            exchange, figures = call.exchange(), figures_of_fields(call.fields())
        except DamagedLog:
            leaves[index] = None
            continue
        addition = additions.of(index, exchange)
        history = _history(addition, whole)
        if addition.after is not None and (addition.echoed or addition.place.continuation == "refers"):
            follows[index] = addition.after
        elif addition.place.continuation == "repeats" and addition.after in follows:
            # The same request again, after a failure say: it goes on from what that one went on from.
            follows[index] = follows[addition.after]
        if history is not None:
            whole[index] = (*history, *addition.answer)
        failed = figures.error is not None or not isinstance(exchange.get("response"), Mapping)
        if failed or not addition.answer or figures.verifier_invocation_id is not None:
            continue
        # Only what ends a conversation itself takes the ends before it away: all of them, past failed calls too.
        before = follows.get(index)
        while before is not None:
            leaves.pop(before, None)
            before = follows.get(before)
        several = isinstance(exchange["response"].get("choices"), list)
        answers = tuple((each,) for each in addition.answer) if several else (addition.answer,)
        leaves[index] = _Leaf(history, answers, _tools(exchange.get("request")))
    for leaf in leaves.values():
        yield from [ChatLine(None, "unreadable")] if leaf is None else _lines(leaf)


def _history(addition: Addition, whole: Mapping[int, tuple[Message, ...]]) -> tuple[Message, ...] | None:
    """All that stands before a call's answer; None where that is not known."""
    if addition.history is None:
        return None
    if addition.history.previous is None:
        return addition.history.messages
    before = None if addition.after is None else whole.get(addition.after)
    return None if before is None else (*before, *addition.added)


def _lines(leaf: _Leaf) -> Iterator[ChatLine]:
    for answer in leaf.answers:
        if leaf.history is None:
            yield ChatLine(None, "unknown_history")
            continue
        messages = _messages((*leaf.history, *answer))
        if messages is None:
            yield ChatLine(None, "not_text")
        else:
            yield ChatLine({"messages": messages, **({"tools": leaf.tools} if leaf.tools else {})})


def _messages(messages: Sequence[Message]) -> list[Json] | None:
    """They in chat's shape; None if one of them holds what that cannot tell."""
    found: list[Json] = []
    for message in messages:
        texts: list[str] = []
        calls: list[Json] = []
        refusals: list[str] = []
        for piece in message.pieces:
            if piece.kind == "text":
                texts.append(piece.text)
            elif piece.kind == "tool_call":
                function = {"name": piece.name, "arguments": piece.text}
                calls.append({"id": piece.call_id, "type": "function", "function": function})
            elif piece.kind == "tool_result":
                found.append({"role": "tool", "tool_call_id": piece.call_id, "content": piece.text})
            elif piece.kind == "refusal":
                refusals.append(piece.text)
            elif piece.kind != "reasoning" and piece.name not in HIDDEN_REASONING:
                return None
        if not (texts or calls or refusals) and message.pieces:
            continue  # a tool's results, told above, or reasoning alone
        told: Json = {"role": message.role, "content": "\n".join(texts) if texts or not (calls or refusals) else None}
        told |= {"tool_calls": calls} if calls else {}
        told |= {"refusal": "\n".join(refusals)} if refusals else {}
        if found and told["role"] == found[-1]["role"] == "assistant":
            _join(found[-1], told)
        else:
            found.append(told)
    return found


def _join(before: Json, more: Json) -> None:
    """Responses tells one turn of the model as several items; in chat it is one message."""
    texts = [each["content"] for each in (before, more) if each["content"]]
    before["content"] = "\n".join(texts) if texts else None
    for key in ("tool_calls", "refusal"):
        if key in more:
            before[key] = before[key] + more[key] if key in before else more[key]


def _tools(request: Any) -> list[Json]:
    """The functions that were offered, in chat's shape; a provider's own tools are none."""
    found: list[Json] = []
    for tool in listed(request.get("tools") if isinstance(request, Mapping) else None):
        if not isinstance(tool, Mapping):
            continue
        function = tool.get("function")
        if isinstance(function, Mapping):
            found.append({"type": "function", "function": dict(function)})
        elif tool.get("type") in ("function", "custom", None) and isinstance(tool.get("name"), str):
            told = {key: tool[key] for key in ("name", "description", "parameters", "strict") if key in tool}
            if "input_schema" in tool:
                told["parameters"] = tool["input_schema"]
            found.append({"type": "function", "function": told})
    return found


__all__ = ["ChatLine", "chat_lines"]
