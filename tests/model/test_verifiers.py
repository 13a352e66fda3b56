"""Verifier invocations: names, conflicts, and metrics of their own."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gym_capture.model.merge import RolloutEvidence, attach_capture, capture_value
from gym_capture.model.record import derive_fields, record_view
from gym_capture.model.verifiers import (
    VerifierInvocation,
    resolve_verifiers,
    split_metrics,
    verifier_declaration,
    verifier_from_headers,
    verifier_headers,
)


def exchange(tokens: int, verifier: tuple[str, str] | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = {"response": {"usage": {"input_tokens": tokens}}}
    if verifier is not None:
        fields["verifier_invocation"] = {"invocation_id": verifier[0], "name": verifier[1]}
    return fields


def evidence(*exchanges: dict[str, Any]) -> RolloutEvidence:
    declared = [verifier_declaration(each) for each in exchanges]
    return RolloutEvidence(
        "r",
        [record_view(derive_fields(each), index) for index, each in enumerate(exchanges)],
        [each for each in declared if each is not None],
    )


def test_a_verifiers_calls_are_listed_but_summed_apart() -> None:
    value = capture_value(
        evidence(
            exchange(1), exchange(10, ("v2", "judge")), exchange(20, ("v1", "lint")), exchange(30, ("v2", "judge"))
        )
    )
    assert [call.get("verifier_invocation_id") for call in value["calls"]] == [None, "v2", "v1", "v2"]
    assert (value["metrics"]["tokens_in"], value["metrics"]["num_calls"]) == (1, 1)
    assert [
        (each["invocation_id"], each["name"], each["metrics"]["tokens_in"], each["metrics"]["num_calls"])
        for each in value["verifiers"]
    ] == [("v2", "judge", 40, 2), ("v1", "lint", 20, 1)]
    assert list(value) == ["rollout_id", "metrics", "calls", "verifiers"]


def test_a_rollout_without_verifiers_has_no_such_key() -> None:
    assert "verifiers" not in capture_value(evidence(exchange(1)))


def test_a_rollout_of_verifier_calls_alone_has_unknown_metrics_of_its_own() -> None:
    value = capture_value(evidence(exchange(5, ("v", "judge"))))
    assert value["metrics"]["tokens_in"] is None
    assert value["metrics"]["num_calls"] == 0
    assert "gaps" not in value


def test_two_names_for_one_invocation_keep_the_first_and_say_so_once() -> None:
    value = capture_value(
        evidence(exchange(1, ("v", "judge")), exchange(2, ("v", "other")), exchange(3, ("v", "third")))
    )
    assert [(each["name"], each["metrics"]["tokens_in"]) for each in value["verifiers"]] == [("judge", 6)]
    assert value["gaps"] == [{"code": "verifier_invocation_conflict", "detail": "v"}]


def test_a_conflict_stands_before_a_failed_join() -> None:
    record: dict[str, Any] = {"ng_agent_observations": 5}
    attach_capture(record, evidence(exchange(1, ("v", "a")), exchange(1, ("v", "b"))))
    assert [each["code"] for each in record["ng_model_call_capture"]["gaps"]] == [
        "verifier_invocation_conflict",
        "agent_observation_join_failed",
    ]


def test_an_invocation_whose_name_was_lost_still_has_its_metrics() -> None:
    _, theirs = split_metrics([{"verifier_invocation_id": "v", "tokens_in": 2}], {})
    assert [(each["name"], each["metrics"]["tokens_in"]) for each in theirs] == [(None, 2)]


def test_resolving_keeps_the_order_of_appearance() -> None:
    verifiers, conflicts = resolve_verifiers([("b", "x"), ("a", "y"), ("b", "x"), ("a", "z")])
    assert list(verifiers.values()) == [
        VerifierInvocation(invocation_id="b", name="x"),
        VerifierInvocation(invocation_id="a", name="y"),
    ]
    assert conflicts == ["a"]


@pytest.mark.parametrize("fields", [{}, {"invocation_id": "v"}, {"invocation_id": "", "name": "n"}])
def test_an_invocation_needs_an_id_and_a_name(fields: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        VerifierInvocation.model_validate(fields)


@pytest.mark.parametrize("name", ["judge", "Richter für 100 %", "評", "a b\r\nx: y", "\U0001f600", "a+b"])
def test_headers_carry_any_text_and_stay_one_ascii_line(name: str) -> None:
    invocation = VerifierInvocation(invocation_id=f"id {name}", name=name)
    headers = verifier_headers(invocation)
    assert list(headers) == ["x-ng-verifier-invocation-id", "x-ng-verifier-name"]
    assert all(value.isascii() and value.isprintable() and " " not in value for value in headers.values())
    assert verifier_from_headers(headers) == invocation


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"x-ng-verifier-name": "judge"}, None),
        ({"x-ng-verifier-invocation-id": " "}, None),
        ({"x-ng-verifier-invocation-id": "v1"}, ("v1", "verifier")),
        ({"x-ng-verifier-invocation-id": " v1\t", "x-ng-verifier-name": ""}, ("v1", "verifier")),
        ({"x-ng-verifier-invocation-id": "v%FF", "x-ng-verifier-name": "100%"}, ("v%FF", "100%")),
        ({"x-ng-verifier-invocation-id": "v\udcff", "x-ng-verifier-name": "%ED%A0%80"}, ("v\\udcff", "%ED%A0%80")),
    ],
)
def test_headers_that_are_not_as_they_should_be_still_declare_what_can_be_read(
    headers: dict[str, str], expected: tuple[str, str] | None
) -> None:
    found = verifier_from_headers(headers)
    assert (found and (found.invocation_id, found.name)) == expected
