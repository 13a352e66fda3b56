"""A captured exchange in the words of OpenTelemetry's semantic conventions for generative AI. Pure, without its SDK.

The names are those of the conventions' development version after 1.37 (`gen_ai.provider.name`, messages as one JSON
text each), https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/. What they have no name for is
`gym_capture.*`. Null is unknown and gives no attribute.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gym_capture.reading.history import HistoryReader, answer_of
from gym_capture.reading.message import Message, Piece

Attribute = str | bool | int | float | list[str]

_MOST = 2**63 - 1
_SETTINGS = {
    "temperature": ("temperature", float),
    "top_p": ("top_p", float),
    "top_k": ("top_k", float),
    "frequency_penalty": ("frequency_penalty", float),
    "presence_penalty": ("presence_penalty", float),
    "seed": ("seed", int),
    "max_tokens": ("max_tokens", int),
    "max_completion_tokens": ("max_tokens", int),
    "max_output_tokens": ("max_tokens", int),
    "stream": ("stream", bool),
}
"""A request's key: the convention's name for it behind `gen_ai.request.`, and its type."""

_PROVIDERS = {"chat": "openai", "responses": "openai", "messages": "anthropic"}


def call_name(attributes: Mapping[str, Attribute]) -> str:
    """The span's name: what is done, and the model that was asked."""
    model = attributes.get("gen_ai.request.model") or attributes.get("gen_ai.response.model")
    return f"chat {model}" if model else "chat"


def call_attributes(
    exchange: Mapping[str, Any], fields: Mapping[str, Any], *, content: bool = False
) -> dict[str, Attribute]:
    """What one exchange says.

    Args:
        exchange: as it was captured, malformed in any part.
        fields: what `derive_fields` makes of it.
        content: what was said, too: messages, instructions, tool calls and their results.
    """
    request = _mapping(exchange.get("request"))
    response = _mapping(exchange.get("response"))
    found: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        # The format that was spoken, which is all that can be known: many servers speak OpenAI's.
        "gen_ai.provider.name": _PROVIDERS.get(fields["dialect"] or "", "_OTHER"),
        "gen_ai.request.model": _text(request.get("model")),
        "gen_ai.response.model": _text(response.get("model")),
        "gen_ai.response.id": fields["response_id"],
        "gen_ai.response.finish_reasons": _finish_reasons(response, fields["finish_reason"]),
        "gen_ai.usage.input_tokens": fields["tokens_in"],
        "gen_ai.usage.output_tokens": fields["tokens_out"],
        "gen_ai.usage.reasoning.output_tokens": fields["tokens_reasoning"],
        "gen_ai.usage.cache_read.input_tokens": fields["cached_tokens"],
        "gen_ai.usage.cache_creation.input_tokens": fields["cache_creation_tokens"],
        "gen_ai.response.time_to_first_chunk": _seconds(fields["latency_ttft_ms"]),
        "http.response.status_code": fields["status_code"],
        "error.type": error_type(fields),
        "gym_capture.model_call_id": fields["model_call_id"],
        "gym_capture.verifier_invocation_id": fields.get("verifier_invocation_id"),
    }
    found |= _settings(request)
    if content:
        found |= _content(fields["dialect"], request, response)
    return cleaned(found)


def error_type(fields: Mapping[str, Any]) -> str | None:
    """What kind of error a call ended in, None where it ended in none: its category, else its status."""
    category, status = fields["error_category"], fields["status_code"]
    return category or (str(status) if status is not None and status >= 400 else None)


def cleaned(found: Mapping[str, Any]) -> dict[str, Attribute]:
    """Attributes that can be encoded: nothing unknown, no lone surrogate, integers of 64 bits."""
    return {name: _encodable(value) for name, value in found.items() if value is not None}


def _encodable(value: Any) -> Attribute:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [each.encode("utf-8", "replace").decode() for each in value]
    if isinstance(value, int) and not -_MOST <= value <= _MOST:
        return str(value) if value.bit_length() < 4096 else "an integer too long to write"
    return value  # type: ignore[no-any-return]


def _settings(request: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, (name, kind) in _SETTINGS.items():
        value = request.get(key)
        if kind is float and type(value) is int and abs(value) <= _MOST:
            value = float(value)
        if type(value) is kind:
            found[f"gen_ai.request.{name}"] = value
    stop = request.get("stop", request.get("stop_sequences"))
    stops = [stop] if isinstance(stop, str) else stop
    if isinstance(stops, list) and stops and all(isinstance(each, str) for each in stops):
        found["gen_ai.request.stop_sequences"] = stops
    count = request.get("n")
    if type(count) is int and count != 1:
        found["gen_ai.request.choice.count"] = count
    return found


def _finish_reasons(response: Mapping[str, Any], first: str | None) -> list[str] | None:
    """One for each choice, as far as they have one."""
    choices = response.get("choices")
    reasons = (
        [_text(each.get("finish_reason")) for each in choices if isinstance(each, dict)]
        if isinstance(choices, list)
        else []
    )
    return [reason for reason in reasons if reason is not None] or ([first] if first is not None else None)


def _content(dialect: str | None, request: Mapping[str, Any], response: Mapping[str, Any]) -> dict[str, Any]:
    history = HistoryReader().read(dialect, request)
    asked = history.messages if history is not None else ()
    return {
        "gen_ai.input.messages": _messages_text(asked),
        "gen_ai.output.messages": _messages_text(answer_of(dialect, response)),
    }


def _messages_text(messages: Iterable[Message]) -> str | None:
    told = [{"role": each.role, "parts": [_part(piece) for piece in each.pieces]} for each in messages]
    return json.dumps(told, ensure_ascii=False) if told else None


def _part(piece: Piece) -> dict[str, Any]:
    """A piece in the conventions' shape. Media is told by size and digest, not sent."""
    if piece.kind == "tool_call":
        return {"type": "tool_call", "id": piece.call_id, "name": piece.name, "arguments": piece.text}
    if piece.kind == "tool_result":
        return {"type": "tool_call_response", "id": piece.call_id, "response": piece.text}
    return {"type": piece.kind, "content": piece.text}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None or not 0 <= milliseconds < _MOST else milliseconds / 1000


__all__ = ["Attribute", "call_attributes", "call_name", "cleaned", "error_type"]
