"""The derivation: total on whatever an exchange holds, and the same through dict and typed record."""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gym_capture.model.json_values import is_standard
from gym_capture.model.record import (
    PAYLOAD_FIELDS,
    ModelCallRecord,
    build_model_call_record,
    derive_fields,
    record_view,
)
from tests.model.exact import exact

BLANK = derive_fields({})


class Hostile:
    """A value whose every method raises."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __bool__(self) -> bool:
        raise RuntimeError("bool")

    def __hash__(self) -> int:
        return hash("usage")

    def __str__(self) -> str:
        raise RuntimeError("str")

    __repr__ = __str__


class HostileDict(dict[str, Any]):
    """A dict whose reading raises."""

    def get(self, *_: object) -> Any:
        raise RuntimeError("get")

    def items(self) -> Any:
        raise RuntimeError("items")


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"output": [value], "usage": value}
    return value


def test_nothing_known_is_null_everywhere() -> None:
    assert {name for name, value in BLANK.items() if value is not None} == {"tool_calls"}
    assert BLANK["tool_calls"] == []
    assert not set(PAYLOAD_FIELDS) & set(BLANK)
    assert "call_index" not in BLANK


def test_one_malformed_part_costs_no_other() -> None:
    exchange = {
        "model_call_id": 7,
        "model_ref": "policy",
        "status_code": "odd",
        "started_at": [],
        "dialect": "chat",
        "response": {"id": "r", "usage": {"prompt_tokens": 3}, "choices": [None]},
    }
    assert derive_fields(exchange) == {**BLANK, "dialect": "chat", "response_id": "r", "tokens_in": 3}


def test_numbers_in_other_clothes_are_read_as_what_they_mean() -> None:
    fields = derive_fields({"status_code": "200", "latency_ms": 5, "upstream_attempted": 1, "completed_at": " 1.5 "})
    names = ("status_code", "latency_total_ms", "upstream_attempted", "completed_at")
    assert exact([fields[name] for name in names]) == "[200, 5.0, true, 1.5]"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "nan", "1e999", 10**400, "1" * 5000], ids=range(6))
def test_a_time_that_is_no_finite_number_is_unknown(value: object) -> None:
    assert derive_fields({"latency_ms": value}) == BLANK


def test_the_models_name_is_the_responses_else_the_requests() -> None:
    request, response = {"model": "asked"}, {"model": "served"}
    assert derive_fields({"request": request, "response": response})["model"] == "served"
    assert derive_fields({"request": request, "response": {"model": ""}})["model"] == "asked"
    assert derive_fields({"request": request, "response": "cut"})["model"] == "asked"


def test_the_finish_reason_is_the_first_that_is_text() -> None:
    response = {
        "stop_reason": None,
        "choices": [{"finish_reason": 3}, {"finish_reason": "length"}],
        "incomplete_details": {"reason": "max_output_tokens"},
    }
    assert derive_fields({"response": response})["finish_reason"] == "max_output_tokens"
    assert derive_fields({"response": {**response, "choices": [{"finish_reason": "stop"}]}})["finish_reason"] == "stop"
    assert derive_fields({"response": {**response, "stop_reason": "end_turn"}})["finish_reason"] == "end_turn"


def test_cache_hit_is_known_only_with_its_count() -> None:
    def hit(cached: object) -> Any:
        return derive_fields({"response": {"usage": {"cache_read_input_tokens": cached}}})["cache_hit"]

    assert (hit(4), hit(0), hit(None), hit("4")) == (True, False, None, None)


def test_a_verifiers_call_names_its_invocation_and_no_other_call_has_the_field() -> None:
    declared = {"verifier_invocation": {"invocation_id": "v-1", "name": "judge"}}
    assert derive_fields(declared) == {**BLANK, "verifier_invocation_id": "v-1"}
    assert build_model_call_record(declared, 0).model_dump()["verifier_invocation_id"] == "v-1"
    assert "verifier_invocation_id" not in build_model_call_record({}, 0).model_dump()


@pytest.mark.parametrize("declared", [None, "v", {}, {"invocation_id": "v"}, {"invocation_id": "", "name": "n"}])
def test_an_invalid_verifier_declaration_is_none(declared: object) -> None:
    assert derive_fields({"verifier_invocation": declared}) == BLANK


def test_what_is_derived_does_not_change_with_the_exchange() -> None:
    item: dict[str, Any] = {"type": "function_call", "name": ["n"], "arguments": {"a": [1]}}
    exchange: dict[str, Any] = {"response": {"output": [item]}, "model_ref": {"type": "t", "name": "n"}}
    fields = derive_fields(exchange)
    before = exact(fields)
    item["arguments"]["a"].append(2)
    item["name"].append("m")
    exchange["model_ref"]["name"] = "other"
    assert exact(fields) == before


def test_payloads_are_objects_and_raw_texts_and_nothing_else() -> None:
    exchange = {"request": [1], "response": {"a": "\ud800"}, "request_raw": "{", "response_raw": b"x"}
    view = record_view(BLANK, 3, exchange)
    assert [view[name] for name in PAYLOAD_FIELDS] == [None, {"a": "\ud800"}, "{", None]
    assert view["call_index"] == 3
    assert build_model_call_record(exchange, 3).model_dump() == view


def test_a_view_without_payloads_is_one_with_them_less_four_fields() -> None:
    with_payloads = record_view(BLANK, 0, {})
    assert list(with_payloads) == list(ModelCallRecord(call_index=0).model_dump())
    without = [name for name in with_payloads if name not in PAYLOAD_FIELDS]
    assert list(record_view(BLANK, 0)) == without


@pytest.mark.parametrize(
    "exchange",
    [
        {"response": HostileDict(usage={}), "request": HostileDict()},
        {"response": {"model": Hostile(), "usage": {Hostile(): 1}, "output": [Hostile()]}, "status_code": Hostile()},
        {"response": {"output": [{"type": Hostile()}], "usage": HostileDict()}},
        {"response": {"content": [{"type": "tool_use", "input": Hostile(), "id": Hostile()}]}},
        {"model_ref": HostileDict(), "verifier_invocation": HostileDict()},
        HostileDict(dialect="chat"),
        {Hostile(): 1, 5: 2, None: 3},
        None,
        "exchange",
        [1],
    ],
    ids=range(10),
)
def test_hostile_values_never_raise(exchange: Any) -> None:
    fields = derive_fields(exchange)
    assert is_standard(fields)
    ModelCallRecord.model_validate(record_view(fields, 0))


@pytest.mark.parametrize(
    "around", [lambda value: value, lambda value: {"content": [{"type": "tool_use", "input": value}]}]
)
def test_deep_values_never_raise(around: Callable[[Any], Any]) -> None:
    test_hostile_values_never_raise({"response": around(deep(50_000))})


def test_hostile_parts_leave_the_rest() -> None:
    exchange = {
        "model_call_id": "m",
        "status_code": Hostile(),
        "response": {"id": "r", "usage": HostileDict(), "output": [Hostile(), {"type": "function_call", "name": "f"}]},
    }
    assert derive_fields(exchange) == {
        **BLANK,
        "model_call_id": "m",
        "response_id": "r",
        "tool_calls": [{"call_id": None, "name": "f", "arguments": {}}],
    }


def test_an_exchange_of_another_mapping_type_is_read() -> None:
    assert derive_fields(UserDict({"dialect": "chat"})) == {**BLANK, "dialect": "chat"}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**4299, 10**4301)
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary(max_size=4)
    | st.sampled_from(["12", "1e5", "nan", "true", "upstream", '{"a": [1]}', '{"a": NaN}', '"\\ud800"']),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("id", "type", "name", "function", "arguments", "call_id", "message", "tool_calls", "summary"),
                    *("text", "input", "thinking", "reasoning", "model", "status", "usage", "output", "choices"),
                    *("content", "input_tokens", "prompt_tokens_details", "cached_tokens", "invocation_id"),
                ]
            ),
            inner,
            max_size=6,
        )
        | st.sampled_from(["function_call", "reasoning", "tool_use", "thinking"]).flatmap(
            lambda kind: st.fixed_dictionaries(
                {"type": st.just(kind)},
                optional={"arguments": inner, "input": inner, "summary": inner, "thinking": inner, "name": inner},
            )
        )
    ),
    max_leaves=12,
)
BODIES = VALUES | st.fixed_dictionaries(
    {},
    optional={
        "id": VALUES,
        "model": VALUES,
        "usage": VALUES,
        "output": st.lists(VALUES, max_size=3),
        "choices": st.lists(st.fixed_dictionaries({"message": VALUES}) | VALUES, max_size=3),
        "content": st.lists(VALUES, max_size=3),
    },
)
EXCHANGES = st.fixed_dictionaries(
    {},
    optional={
        **{name: VALUES for name in BLANK if name not in ("tool_calls", "response_id", "model")},
        "latency_ms": VALUES,
        "verifier_invocation": VALUES,
        "request": BODIES,
        "response": BODIES,
        "request_raw": VALUES,
        "response_raw": VALUES,
    },
)


@given(EXCHANGES)
@example({"response": {"usage": {"input_tokens": 10**5000, "cache_read_input_tokens": 10**3000}}})
def test_derive_never_raises_and_yields_standard_json_that_the_record_takes(exchange: dict[str, Any]) -> None:
    fields = derive_fields(exchange)
    assert list(fields)[: len(BLANK)] == list(BLANK)
    assert is_standard(fields)
    text = json.dumps(fields, allow_nan=False)
    text.encode()
    assert exact(json.loads(text)) == exact(fields)
    record = build_model_call_record(exchange, 5)
    assert exact({k: v for k, v in record.model_dump().items() if k not in PAYLOAD_FIELDS}) == exact(
        record_view(fields, 5)
    )
