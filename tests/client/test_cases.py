"""The cases through clients and owners: the answers are the same in every configuration, and at rest afterwards."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gym_capture import model_calls
from gym_capture.client.client import CaptureClient
from gym_capture.client.options import ClientOptions
from gym_capture.client.sharded_host import host_over
from gym_capture.model.ids import rollout_id_from_record
from gym_capture.model.shards import shard_of
from gym_capture.testing.threaded_shards import ThreadedShards
from tests.cases import read_cases
from tests.committable_cases import committable_cases
from tests.configurations import CONFIGURATIONS, Configuration
from tests.model.exact import exact

Json = dict[str, Any]

MERGES = committable_cases()
REAL = list(zip(read_cases("real_rollouts.jsonl"), read_cases("real_rollouts.expected.jsonl"), strict=True))


class Run:
    """Owners in this process, and a client of them.

    Args:
        directory: the run's; not made yet.
        configuration: of both.
        way: how the client reaches the owners: `in-process` or `stream`.
    """

    def __init__(self, directory: Path, configuration: Configuration, way: str) -> None:
        self.directory = directory
        self.shards = configuration.shards
        self.owners = ThreadedShards(directory, configuration.shards)
        self.owners.start()
        streams, links = self.owners.stream_transports, self.owners.in_process_transports
        options = ClientOptions(history=configuration.history, drain_timeout_s=60.0)
        self.client = CaptureClient(host_over(streams() if way == "stream" else links(), options))

    def record(self, rollouts: Sequence[tuple[Json, Sequence[Json]]]) -> None:
        """Record each record's exchanges, those of all rollouts by turns."""
        self.client.sync.clear([_id(record) for record, _ in rollouts])
        deepest = max(len(exchanges) for _, exchanges in rollouts)
        for turn in range(deepest):
            pairs = [(_id(record), exchanges[turn]) for record, exchanges in rollouts if turn < len(exchanges)]
            assert self.client.sync.record_many(pairs) == [turn] * len(pairs)
        assert self.client.sync.quiesce()

    def merged(self, record: Json, payloads: bool = False) -> Json:
        """The record with what the owner merges into it."""
        return self.client.sync.merge(copy.deepcopy(record), payloads)

    def merged_at_rest(self, record: Json, payloads: bool = False) -> Json:
        """The record with what a reader of the directory merges into it."""
        value = copy.deepcopy(record)
        return model_calls.merge_model_call_capture_into_record(value, [self.directory], payloads)


def _id(record: Json) -> str:
    found = rollout_id_from_record(record)
    assert found is not None
    return found


@pytest.fixture(
    params=[*((each, "in-process") for each in CONFIGURATIONS), (Configuration(4, history=True), "stream")],
    ids=lambda value: f"{value[0]}-{value[1]}",
)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """Each configuration in process, and one over the stream."""
    made = Run(tmp_path / "captures", *request.param)
    yield made
    made.client.sync.close()
    made.owners.close()


def test_every_case_merges_as_it_should(run: Run) -> None:
    run.record([(case["record"], exchanges) for case, exchanges in MERGES])
    wanted = [exact(case["expected"]["ok"]) for case, _ in MERGES]
    assert [exact(run.merged(case["record"], case["include_payloads"])) for case, _ in MERGES] == wanted
    run.client.sync.stop()
    assert [exact(run.merged_at_rest(case["record"], case["include_payloads"])) for case, _ in MERGES] == wanted


def test_real_rollouts_come_back_and_merge_as_they_should(run: Run) -> None:
    records = [case["record"] for case, _ in REAL]
    assert {shard_of(_id(record), run.shards) for record in records} == set(range(run.shards))
    run.record([(case["record"], case["exchanges"]) for case, _ in REAL])
    wanted = [exact(expected["ok"]) for _, expected in REAL]
    sent = [[exact((each["request"], each["response"])) for each in case["exchanges"]] for case, _ in REAL]
    for merged in (run.merged, run.merged_at_rest):
        assert [exact(merged(record)) for record in records] == wanted
        values = [merged(record, True)["ng_model_call_capture"]["calls"] for record in records]
        assert [[exact((each["request"], each["response"])) for each in calls] for calls in values] == sent
        if merged == run.merged:
            run.client.sync.stop()
