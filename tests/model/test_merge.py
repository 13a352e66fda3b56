"""What merge attaches, what it leaves alone, and which gaps it names in which order."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gym_capture.model.merge import RolloutEvidence, attach_capture, capture_value
from gym_capture.model.record import PAYLOAD_FIELDS, derive_fields, record_view

EXCHANGE: dict[str, Any] = {"model_call_id": "m", "request": {"model": "x"}, "response": {"id": "r"}}


def view(payloads: bool = False) -> dict[str, Any]:
    return record_view(derive_fields(EXCHANGE), 0, EXCHANGE if payloads else None)


def gaps_of(**fields: Any) -> list[tuple[str, str | None]]:
    evidence = RolloutEvidence(**{"rollout_id": "r", "records": [view()], **fields})
    return [(each["code"], each.get("detail")) for each in capture_value(evidence).get("gaps", [])]


def test_complete_evidence_has_no_gaps_key() -> None:
    assert list(capture_value(RolloutEvidence("r", [view()]))) == ["rollout_id", "metrics", "calls"]


def test_nothing_captured_is_a_gap_unless_marked_incomplete() -> None:
    assert gaps_of(records=[]) == [("model_call_capture_no_records", None)]
    assert gaps_of(records=[], incomplete={}) == [("model_call_capture_incomplete", None)]


def test_damaged_entries_alone_are_not_nothing() -> None:
    assert gaps_of(records=[], damaged=2) == [("model_call_capture_records_unreadable", "count=2")]


def test_incompleteness_gives_its_reasons() -> None:
    assert gaps_of(incomplete={"released": 1, "lost": 2}) == [("model_call_capture_incomplete", "lost=2, released=1")]


def test_outstanding_claims_are_pending() -> None:
    assert gaps_of(outstanding=3) == [("model_call_capture_pending", "count=3")]
    assert gaps_of(records=[], outstanding=1) == [
        ("model_call_capture_no_records", None),
        ("model_call_capture_pending", "count=1"),
    ]


def test_an_unreadable_capture_does_not_say_that_nothing_was_captured() -> None:
    assert gaps_of(records=[], unreadable=True) == [("model_call_capture_unreadable", None)]


def test_gaps_stand_in_one_order() -> None:
    record = {"ng_agent_observations": "nonsense"}
    evidence = RolloutEvidence(
        "r", [view()], [("v", "a"), ("v", "b")], damaged=1, incomplete={"lost": 1}, outstanding=2, unreadable=True
    )
    assert [each["code"] for each in attach_capture(record, evidence)["ng_model_call_capture"]["gaps"]] == [
        "model_call_capture_unreadable",
        "model_call_capture_records_unreadable",
        "model_call_capture_incomplete",
        "model_call_capture_pending",
        "verifier_invocation_conflict",
        "agent_observation_join_failed",
    ]


def test_payloads_are_shown_only_when_asked_for() -> None:
    evidence = RolloutEvidence("r", [view(payloads=True)])
    assert capture_value(evidence, include_payloads=True)["calls"] == [view(payloads=True)]
    shown = capture_value(evidence)["calls"]
    assert shown == [view()]
    assert not set(PAYLOAD_FIELDS) & set(shown[0])


def test_response_and_reward_are_not_touched() -> None:
    response: dict[str, Any] = {"output": []}
    record = {"_ng_task_index": 1, "reward": 0.5, "response": response}
    assert attach_capture(record, RolloutEvidence("1-0", [view()])) is record
    assert record["response"] is response
    assert list(record) == ["_ng_task_index", "reward", "response", "ng_model_call_capture"]
    assert response == {"output": []}


def test_a_second_merge_replaces_the_first() -> None:
    record: dict[str, Any] = {}
    attach_capture(record, RolloutEvidence("r", []))
    attach_capture(record, RolloutEvidence("r", [view()]))
    assert record["ng_model_call_capture"] == capture_value(RolloutEvidence("r", [view()]))


def looped() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("observations", [5, "x", [], {}, {"source": "a", "records": looped()}], ids=range(5))
def test_a_failed_join_leaves_the_bundle_as_it_was(observations: Any) -> None:
    record = {"ng_agent_observations": observations}
    attach_capture(record, RolloutEvidence("r", [view()]))
    assert record["ng_agent_observations"] is observations
    assert record["ng_model_call_capture"]["gaps"] == [{"code": "agent_observation_join_failed"}]


def test_observations_that_are_null_are_none() -> None:
    record: dict[str, Any] = {"ng_agent_observations": None}
    attach_capture(record, RolloutEvidence("r", [view()]))
    assert record["ng_agent_observations"] is None
    assert "gaps" not in record["ng_model_call_capture"]


def test_evidence_is_not_changed() -> None:
    evidence = RolloutEvidence("r", [view(payloads=True)], incomplete={"lost": 1})
    before = copy.deepcopy(evidence)
    attach_capture({"ng_agent_observations": {"source": "a"}}, evidence)
    assert evidence == before
