"""The record: the observability view that is derived from one exchange.

`derive_fields` is the derivation, on plain dicts because every commit runs it; `ModelCallRecord` is the same view as
a typed object for callers. The fields, their order and their rules are NeMo Gym 0.7's (`cases/records.jsonl`), save
that one malformed part never costs the others: it is null, and the rest is derived.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from gym_capture.model.json_values import plain_copy
from gym_capture.model.scalars import boolean, integer, number, text
from gym_capture.model.tool_calls import tool_calls_and_reasoning
from gym_capture.model.usage import cached_tokens, extract_token_stats
from gym_capture.model.verifiers import VERIFIER_ID_FIELD, verifier_declaration

DERIVATION_VERSION = 1
"""Raised whenever the same exchange would derive other fields, so that stored rows say how they were derived."""

PAYLOAD_FIELDS = ("request", "response", "request_raw", "response_raw")

_NOTHING: dict[str, Any] = {}


def derive_fields(exchange: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of the record but `call_index` and the payloads, in the record's order.

    Never raises: what can't be read is None. The values are standard JSON (`json_values.is_standard`), though
    integers may exceed 64 bits, and share nothing that could change with the exchange.

    Args:
        exchange: the exchange as parsed JSON, malformed in any part.

    Returns:
        The fields; `verifier_invocation_id` is among them (last) only when the exchange declares a verifier.
    """
    try:
        return _derive(exchange)
    except Exception:  # noqa: BLE001 - keys, values or the exchange itself have methods that raise: read what is plain
        return _derive_plain(exchange)


def reads_request(response: object) -> bool:
    """Whether deriving the fields of an exchange with this response looks into its request: for the `model`, where the
    response names none.
    """
    return not (isinstance(response, dict) and response.get("model"))


def _derive_plain(exchange: Any) -> dict[str, Any]:
    """The fields of what is plain JSON in an exchange of any type."""
    try:
        plain = plain_copy(exchange if isinstance(exchange, dict) else dict(exchange))
        return _derive(plain if isinstance(plain, dict) else _NOTHING)
    except Exception:  # noqa: BLE001 - not a mapping, or no stack left to read it with
        return _derive(_NOTHING)


def _derive(exchange: Mapping[str, Any]) -> dict[str, Any]:
    # Every commit comes through here: plain lookups, no guard around each; see derive_fields.
    get = exchange.get
    response = get("response")
    if not isinstance(response, dict):
        response = _NOTHING
    request = get("request")
    if not isinstance(request, dict):
        request = _NOTHING
    usage = response.get("usage")
    tokens = extract_token_stats(usage)
    cached = cached_tokens(usage)
    tool_calls, reasoning = tool_calls_and_reasoning(response)
    fields = {
        "model_call_id": text(get("model_call_id")),
        "response_id": text(response.get("id")),
        "client_session_id": text(get("client_session_id")),
        "model_ref": _model_ref(get("model_ref")),
        "model": text(response.get("model") or request.get("model")),
        "dialect": text(get("dialect")),
        "status_code": integer(get("status_code")),
        "response_status": text(response.get("status")),
        "finish_reason": _finish_reason(response),
        "upstream_attempted": boolean(get("upstream_attempted")),
        "response_source": _response_source(get("response_source")),
        "upstream_status_code": integer(get("upstream_status_code")),
        "local_response_reason": text(get("local_response_reason")),
        "started_at": number(get("started_at")),
        "completed_at": number(get("completed_at")),
        "tokens_in": tokens["tokens_in"],
        "tokens_out": tokens["tokens_out"],
        "tokens_reasoning": tokens["tokens_reasoning"],
        "tokens_total": tokens["tokens_total"],
        "tool_calls": tool_calls,
        "reasoning_content": reasoning,
        "cache_hit": None if cached is None else cached > 0,
        "cached_tokens": cached,
        "cache_creation_tokens": tokens["cache_creation_tokens"],
        "error_category": text(get("error_category")),
        "latency_total_ms": number(get("latency_ms")),
        "latency_ttft_ms": number(get("latency_ttft_ms")),
    }
    verifier = verifier_declaration(exchange)
    if verifier is not None:
        fields[VERIFIER_ID_FIELD] = verifier[0]
    return fields


def _model_ref(value: Any) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    kind, name = text(value.get("type")), text(value.get("name"))
    return None if kind is None or name is None else {"type": kind, "name": name}


def _response_source(value: Any) -> str | None:
    source = text(value)
    return source if source in ("upstream", "local") else None


def _finish_reason(response: dict[str, Any]) -> str | None:
    """Why the model stopped: Anthropic's field, else the first choice's, else why a response is incomplete."""
    reason = text(response.get("stop_reason"))
    if reason is not None:
        return reason
    choices = response.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        reason = text(choices[0].get("finish_reason"))
        if reason is not None:
            return reason
    details = response.get("incomplete_details")
    return text(details.get("reason")) if isinstance(details, dict) else None


def payload_fields(exchange: Mapping[str, Any]) -> dict[str, Any]:
    """The four payloads of an exchange as the record shows them: JSON objects and raw texts, anything else None."""
    request, response = exchange.get("request"), exchange.get("response")
    request_raw, response_raw = exchange.get("request_raw"), exchange.get("response_raw")
    return {
        "request": request if isinstance(request, dict) else None,
        "response": response if isinstance(response, dict) else None,
        "request_raw": request_raw if isinstance(request_raw, str) else None,
        "response_raw": response_raw if isinstance(response_raw, str) else None,
    }


def record_view(
    fields: Mapping[str, Any], call_index: int, payloads: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The whole record as a dict, `call_index` and payloads at their place in its order.

    Args:
        fields: what `derive_fields` returned.
        call_index: the exchange's place in the durable order of its rollout.
        payloads: the exchange, or a mapping with its payloads; None leaves the four payload fields out.
    """
    view: dict[str, Any] = {}
    for name, value in fields.items():
        view[name] = value
        if name == "client_session_id":
            view["call_index"] = call_index
        elif name == "tokens_total" and payloads is not None:
            view.update(payload_fields(payloads))
    return view


class ModelRef(BaseModel):
    """The model server that was called: its kind and its name."""

    type: str
    name: str


class ModelCallRecord(BaseModel):
    """The observability view of one model call. None is unknown, never 0.

    Args:
        call_index: durable append order in the rollout; not the order in time of concurrent calls.
        started_at, completed_at: UTC Unix seconds.
        latency_total_ms, latency_ttft_ms: milliseconds, whole call and time to the first token.
        tokens_in: prompt tokens with cached ones included, whatever the provider's convention.
        request, response: payloads as JSON objects; `request_raw` and `response_raw` as text where they were none.
        verifier_invocation_id: the verifier invocation that made the call; left out of dumps when there is none.
    """

    model_config = ConfigDict(protected_namespaces=())

    model_call_id: str | None = None
    response_id: str | None = None
    client_session_id: str | None = None
    call_index: int
    model_ref: ModelRef | None = None
    model: str | None = None
    dialect: str | None = None
    status_code: int | None = None
    response_status: str | None = None
    finish_reason: str | None = None
    upstream_attempted: bool | None = None
    response_source: Literal["upstream", "local"] | None = None
    upstream_status_code: int | None = None
    local_response_reason: str | None = None
    started_at: float | None = None
    completed_at: float | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_reasoning: int | None = None
    tokens_total: int | None = None
    # Any, because payloads are handed back as they were captured, whatever is in them.
    request: Any = None
    response: Any = None
    request_raw: Any = None
    response_raw: Any = None
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)
    reasoning_content: str | None = None
    cache_hit: bool | None = None
    cached_tokens: int | None = None
    cache_creation_tokens: int | None = None
    error_category: str | None = None
    latency_total_ms: float | None = None
    latency_ttft_ms: float | None = None
    verifier_invocation_id: str | None = None

    @model_serializer(mode="wrap")
    def _without_absent_verifier(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        if self.verifier_invocation_id is None:
            fields.pop(VERIFIER_ID_FIELD, None)
        return fields


def build_model_call_record(exchange: Mapping[str, Any], call_index: int) -> ModelCallRecord:
    """The record of one exchange, payloads included.

    Args:
        exchange: the exchange as parsed JSON, malformed in any part.
        call_index: its place in the durable order of its rollout.
    """
    return ModelCallRecord.model_validate(record_view(derive_fields(exchange), call_index, exchange))


__all__ = [
    "DERIVATION_VERSION",
    "PAYLOAD_FIELDS",
    "ModelCallRecord",
    "ModelRef",
    "build_model_call_record",
    "derive_fields",
    "extract_token_stats",
    "payload_fields",
    "reads_request",
    "record_view",
]
