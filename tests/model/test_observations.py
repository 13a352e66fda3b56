"""Which observation bundles are valid, and what they look like once read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gym_capture.model.observations import AgentObservationBundle


def bundle(*records: dict[str, Any], **fields: Any) -> AgentObservationBundle:
    return AgentObservationBundle.model_validate({"source": "agent", "records": list(records), **fields})


def invocation(name: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "agent_invocation", "invocation_id": name, **fields}


TOOL_CALL = {"kind": "tool_call", "invocation_id": "i", "tool_call_id": "t"}
COMPACTION = {"kind": "context_compaction", "invocation_id": "i"}
SANDBOX = {"kind": "sandbox", "role": "agent"}
SERVER = {"type": "responses_api_models", "name": "policy"}


def test_every_field_is_there_once_read() -> None:
    plain = bundle(invocation("i"), TOOL_CALL, COMPACTION, SANDBOX, gaps=[{"code": "x"}]).plain()
    assert plain == {
        "source": "agent",
        "records": [
            {
                **invocation("i"),
                **dict.fromkeys(("parent_invocation_id", "spawned_by_tool_call_id", "duration_ms", "error_type")),
                "status": "unknown",
                "model_calls": [],
                "conversation": [],
            },
            {
                **TOOL_CALL,
                **dict.fromkeys(("sandbox_id", "tool_name", "started_at", "completed_at", "duration_ms")),
                **dict.fromkeys(("timing_source", "error_type")),
                "status": "unknown",
            },
            {
                **COMPACTION,
                **dict.fromkeys(("observed_at", "trigger", "tokens_before", "tokens_after", "summary")),
                **dict.fromkeys(("first_kept_item_id", "before_model_call", "after_model_call")),
                "outcome": "unknown",
                "model_calls": [],
            },
            {
                **SANDBOX,
                **dict.fromkeys(("provider", "sandbox_id", "exit_code", "wall_time_s", "cpu_time_s")),
                **dict.fromkeys(("peak_memory_mib", "resource_usage_source", "error_type")),
                "outcome": "unknown",
            },
        ],
        "gaps": [{"code": "x", "invocation_id": None, "detail": None}],
    }


def test_conversation_items_are_the_very_same_objects() -> None:
    items = [{"role": "user", "content": [{"x": 1}], "unheard_of": float("nan")}, {"type": "compaction"}]
    conversation = bundle(invocation("i", conversation=items)).plain()["records"][0]["conversation"]
    assert all(out is given for out, given in zip(conversation, items, strict=True))


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "nonsense"},
        {"kind": "agent_invocation"},
        invocation("i", unknown_field=1),
        invocation("i", status="done"),
        invocation("i", duration_ms=-1),
        invocation("i", model_calls=[{}]),
        invocation("i", model_calls=[{"response_id": "r"}]),
        invocation("i", model_calls=[{"model_call_id": "", "model_ref": SERVER, "response_id": ""}]),
        invocation("i", model_calls=[{"model_call_id": "m", "model_ref": {"type": "other", "name": "x"}}]),
        invocation("i", conversation={}),
        {**TOOL_CALL, "started_at": 2.0, "completed_at": 1.0},
        {**TOOL_CALL, "timing_source": "guess"},
        {**COMPACTION, "tokens_before": -1},
        {**COMPACTION, "outcome": "fine"},
        {"kind": "sandbox"},
        {**SANDBOX, "peak_memory_mib": -0.5},
        None,
    ],
    ids=range(17),
)
def test_a_record_that_breaks_a_rule_is_refused(record: Any) -> None:
    with pytest.raises(ValidationError):
        bundle(record)


@pytest.mark.parametrize("value", [None, 5, [], "x", {}, {"source": None}, {"source": "a", "extra": 1}])
def test_what_is_no_bundle_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        AgentObservationBundle.model_validate(value)


def test_a_reference_names_a_call_in_one_of_two_ways() -> None:
    refs = [{"model_call_id": "m"}, {"model_ref": SERVER, "response_id": "r"}]
    read = bundle(invocation("i", model_calls=refs)).plain()["records"][0]["model_calls"]
    assert read == [
        {"model_call_id": "m", "model_ref": None, "response_id": None},
        {"model_call_id": None, "model_ref": SERVER, "response_id": "r"},
    ]


def test_invocation_ids_are_unique() -> None:
    with pytest.raises(ValidationError, match="stands for two invocations"):
        bundle(invocation("i"), invocation("i"))


def test_a_parent_that_was_not_observed_is_no_error() -> None:
    assert len(bundle(invocation("i", parent_invocation_id="elsewhere"), invocation("j")).records) == 2


@pytest.mark.parametrize("parents", [{"a": "a"}, {"a": "b", "b": "a"}, {"x": "a", "a": "b", "b": "c", "c": "a"}])
def test_an_invocation_is_never_its_own_ancestor(parents: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="its own ancestor"):
        bundle(*(invocation(name, parent_invocation_id=parent) for name, parent in parents.items()))


def test_a_long_chain_of_parents_is_read_in_one_pass() -> None:
    chain = [invocation(str(n), parent_invocation_id=str(n + 1)) for n in range(5_000)]
    assert len(bundle(*chain).records) == 5_000
