"""Every case with a right answer, exactly: ids, records, merges, and real rollouts."""

from __future__ import annotations

import base64
import copy
from typing import Any

import pytest

from gym_capture.errors import InvalidRolloutId
from gym_capture.model.ids import rollout_id_from_record
from gym_capture.model.merge import RolloutEvidence, attach_capture
from gym_capture.model.record import build_model_call_record, derive_fields, record_view
from gym_capture.model.verifiers import verifier_declaration
from gym_capture.storage.nemo_gym import read_nemo_gym_lines
from tests.cases import read_cases
from tests.model.exact import exact

IDS = read_cases("rollout_ids.jsonl")
RECORDS = read_cases("records.jsonl")
MERGES = read_cases("merge.jsonl")
REAL = list(zip(read_cases("real_rollouts.jsonl"), read_cases("real_rollouts.expected.jsonl"), strict=True))


def evidence_of(
    record: dict[str, Any], exchanges: list[tuple[int, dict[str, Any]]], include_payloads: bool
) -> RolloutEvidence:
    """What a store that holds these exchanges knows of the record's rollout."""
    rollout_id = rollout_id_from_record(record)
    assert rollout_id is not None
    declared = [verifier_declaration(exchange) for _, exchange in exchanges]
    return RolloutEvidence(
        rollout_id=rollout_id,
        records=[
            record_view(derive_fields(exchange), index, exchange if include_payloads else None)
            for index, exchange in exchanges
        ],
        verifier_declarations=[each for each in declared if each is not None],
    )


def test_there_are_cases_of_every_kind() -> None:
    assert (len(IDS), len(RECORDS), len(MERGES), len(REAL)) == (25, 400, 110, 24)


@pytest.mark.parametrize("case", IDS, ids=range(len(IDS)))
def test_rollout_id_of_a_record(case: dict[str, Any]) -> None:
    if "error" in case["expected"]:
        assert case["expected"]["error"] == "ValueError"
        with pytest.raises(InvalidRolloutId):
            rollout_id_from_record(case["body"])
    else:
        assert rollout_id_from_record(case["body"]) == case["expected"]["ok"]


@pytest.mark.parametrize("case", RECORDS, ids=range(len(RECORDS)))
def test_record_of_an_exchange(case: dict[str, Any]) -> None:
    given = exact(case["exchange"])
    expected = exact(case["expected"]["ok"])
    view = record_view(derive_fields(case["exchange"]), case["call_index"], case["exchange"])
    assert exact(view) == expected
    assert exact(build_model_call_record(case["exchange"], case["call_index"]).model_dump()) == expected
    assert exact(case["exchange"]) == given


@pytest.mark.parametrize("case", MERGES, ids=range(len(MERGES)))
def test_merge_of_captured_lines(case: dict[str, Any]) -> None:
    lines = [base64.b64decode(line) for line in case["lines"] or []]
    exchanges, damaged = read_nemo_gym_lines(b"".join(line + b"\n" for line in lines))
    record = copy.deepcopy(case["record"])
    evidence = evidence_of(record, exchanges, case["include_payloads"])
    evidence.damaged = damaged
    evidence.incomplete = {} if case["incomplete"] else None
    assert attach_capture(record, evidence, case["include_payloads"]) is record
    assert exact(record) == exact(case["expected"]["ok"])


@pytest.mark.parametrize(("case", "expected"), REAL, ids=range(len(REAL)))
def test_merge_of_a_real_rollout(case: dict[str, Any], expected: dict[str, Any]) -> None:
    record = copy.deepcopy(case["record"])
    attach_capture(record, evidence_of(record, list(enumerate(case["exchanges"])), False))
    assert exact(record) == exact(expected["ok"])
