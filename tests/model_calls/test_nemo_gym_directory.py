"""The contract's functions on a directory that NeMo Gym wrote, with no owner and no Ray."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest

from gym_capture import model_calls
from gym_capture.errors import DamagedLog
from gym_capture.model.record import ModelCallRecord
from gym_capture.model.verifiers import VerifierInvocation
from gym_capture.storage.names import nemo_gym_file, nemo_gym_incomplete_file
from tests.cases import read_cases
from tests.model.exact import exact
from tests.model_calls.legacy import write_case

MERGES = read_cases("merge.jsonl")

EXCHANGE = b'{"model_call_id":"%s","dialect":"chat","response":{"usage":{"prompt_tokens":%d,"completion_tokens":1}}}\n'


def lines(*tokens: int) -> bytes:
    return b"".join(EXCHANGE % (b"call-%d" % index, count) for index, count in enumerate(tokens))


@pytest.mark.parametrize("case", MERGES, ids=range(len(MERGES)))
def test_merge_of_captured_lines(case: dict[str, Any], tmp_path: Path) -> None:
    write_case(tmp_path, case)
    record = copy.deepcopy(case["record"])
    merged = model_calls.merge_model_call_capture_into_record(record, [tmp_path], case["include_payloads"])
    assert merged is record
    assert exact(record) == exact(case["expected"]["ok"])


def test_all_cases_are_in_one_directory_without_mixing(tmp_path: Path) -> None:
    expected: dict[str, Any] = {}
    for case in MERGES:
        expected.setdefault(write_case(tmp_path, case), case)
    assert len(expected) == len(MERGES)
    for case in MERGES:
        record = copy.deepcopy(case["record"])
        model_calls.merge_model_call_capture_into_record(record, [tmp_path], case["include_payloads"])
        assert exact(record) == exact(case["expected"]["ok"])


def test_a_record_without_an_id_is_returned_unchanged(tmp_path: Path) -> None:
    record = {"reward": 1.0}
    assert model_calls.merge_model_call_capture_into_record(record, [tmp_path]) is record
    assert record == {"reward": 1.0}


def test_without_directories_nothing_is_attached() -> None:
    record = {"_ng_rollout_id": "r"}
    assert model_calls.merge_model_call_capture_into_record(record, []) == {"_ng_rollout_id": "r"}


def test_clear_removes_file_and_marker_of_the_records_ids_only(tmp_path: Path) -> None:
    for rollout_id in ("0-0", "0-1"):
        (tmp_path / nemo_gym_file(rollout_id)).write_bytes(lines(1))
        (tmp_path / nemo_gym_incomplete_file(rollout_id)).touch()
    model_calls.clear_model_call_captures_for_rollouts(
        [{"_ng_task_index": 0, "_ng_rollout_index": 0}, {"reward": 0}], [tmp_path]
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-1.capture.incomplete", "0-1.capture.jsonl"]


def test_clear_of_a_directory_that_is_not_there_is_nothing_to_do(tmp_path: Path) -> None:
    model_calls.clear_model_call_captures_for_rollouts([{"_ng_rollout_id": "r"}], [tmp_path / "absent"])
    assert not (tmp_path / "absent").exists()


async def test_nothing_is_outstanding_where_nobody_claims(tmp_path: Path) -> None:
    (tmp_path / nemo_gym_file("r")).write_bytes(lines(1))
    assert await model_calls.await_model_call_capture_quiescence("r", [tmp_path], timeout_s=0.0)
    assert await model_calls.await_model_call_capture_quiescence("r", [tmp_path / "absent"], timeout_s=0.0)
    assert await model_calls.await_model_call_capture_quiescence("r", [], timeout_s=0.0)


def test_records_are_read_in_durable_order(tmp_path: Path) -> None:
    (tmp_path / nemo_gym_file("r")).write_bytes(lines(5, 7))
    store = model_calls._store_for_rollout("r", [tmp_path])
    assert store is not None
    records = model_calls.read_model_call_records(store, "r")
    assert all(isinstance(record, ModelCallRecord) for record in records)
    assert [(record.call_index, record.model_call_id, record.tokens_in) for record in records] == [
        (0, "call-0", 5),
        (1, "call-1", 7),
    ]


def test_damage_raises_in_the_strict_reader_and_is_counted_by_the_other(tmp_path: Path) -> None:
    (tmp_path / nemo_gym_file("r")).write_bytes(b"{not json\n" + lines(5))
    store = model_calls._store_for_rollout("r", [tmp_path])
    assert store is not None
    with pytest.raises(DamagedLog):
        model_calls.read_model_call_records(store, "r")
    records, damaged = model_calls.read_available_model_call_records(store, "r")
    assert ([record.call_index for record in records], damaged) == ([1], 1)


def test_the_store_that_knows_the_rollout_is_found(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (second / nemo_gym_file("r")).write_bytes(lines(1))
    (first / nemo_gym_incomplete_file("marked")).touch()
    found = model_calls._store_for_rollout("r", [first, second])
    assert found is not None
    assert [record.tokens_in for record in model_calls.read_model_call_records(found, "r")] == [1]
    assert model_calls._store_for_rollout("marked", [first, second]) is not None
    assert model_calls._store_for_rollout("unknown", [first, second]) is None


def test_a_directory_is_opened_once_a_process(tmp_path: Path) -> None:
    (tmp_path / nemo_gym_file("r")).write_bytes(lines(1))
    first = model_calls._store_for_rollout("r", [tmp_path])
    assert first is model_calls._store_for_rollout("r", [tmp_path])


def test_what_is_appended_later_is_seen(tmp_path: Path) -> None:
    path = tmp_path / nemo_gym_file("r")
    path.write_bytes(lines(1))
    record: dict[str, Any] = {"_ng_rollout_id": "r"}
    assert (
        model_calls.merge_model_call_capture_into_record(record, [tmp_path])["ng_model_call_capture"]["metrics"][
            "num_calls"
        ]
        == 1
    )
    path.write_bytes(lines(1, 2))
    assert (
        model_calls.merge_model_call_capture_into_record(record, [tmp_path])["ng_model_call_capture"]["metrics"][
            "tokens_in"
        ]
        == 3
    )


def test_metrics_leave_out_what_a_verifier_called(tmp_path: Path) -> None:
    judge = b'{"model_call_id":"v","dialect":"chat","verifier_invocation":{"invocation_id":"i","name":"judge"}}\n'
    (tmp_path / nemo_gym_file("r")).write_bytes(lines(5) + judge)
    store = model_calls._store_for_rollout("r", [tmp_path])
    assert store is not None
    records, verifiers, damaged = model_calls._read_capture_records(store, "r")
    assert [record.verifier_invocation_id for record in records] == [None, "i"]
    assert verifiers == {"i": VerifierInvocation(invocation_id="i", name="judge")}
    assert damaged == 0


def test_aggregate_sums_every_call(tmp_path: Path) -> None:
    (tmp_path / nemo_gym_file("r")).write_bytes(lines(5, 7))
    store = model_calls._store_for_rollout("r", [tmp_path])
    assert store is not None
    metrics = model_calls.aggregate_model_call_metrics(store, "r")
    assert (metrics["tokens_in"], metrics["tokens_out"], metrics["num_calls"]) == (12, 2, 2)


def test_constants_are_those_of_the_contract() -> None:
    assert (model_calls.CAPTURE_DRAIN_TIMEOUT_S, model_calls._CAPTURE_DRAIN_POLL_S) == (10.0, 0.05)
    assert isinstance(model_calls.logger, logging.Logger)
