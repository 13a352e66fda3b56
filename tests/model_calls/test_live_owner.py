"""The contract's functions through a live owner, from a process that is not connected to Ray; and when it goes away."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gym_capture
from gym_capture import CaptureClient, CaptureStore, model_calls
from gym_capture.client import core
from gym_capture.directory import locate
from gym_capture.errors import GymCaptureError, HandshakeRefused, OwnerUnavailable
from gym_capture.model.ids import rollout_id_from_record
from gym_capture.storage.names import epoch_file, nemo_gym_file
from tests.committable_cases import committable_cases
from tests.model.exact import exact
from tests.model_calls.threaded_owner import ThreadedOwner

Own = Callable[[], ThreadedOwner]


def exchange(call_id: str, tokens: int = 1) -> dict[str, Any]:
    return {"model_call_id": call_id, "dialect": "chat", "response": {"usage": {"prompt_tokens": tokens}}}


def merged(directory: Path, rollout_id: str = "r", include_payloads: bool = False) -> dict[str, Any]:
    record: dict[str, Any] = {"_ng_rollout_id": rollout_id}
    model_calls.merge_model_call_capture_into_record(record, [directory], include_payloads)
    value: dict[str, Any] = record["ng_model_call_capture"]
    return value


@pytest.fixture
def owner(own: Own) -> ThreadedOwner:
    return own()


@pytest.fixture
def client(owner: ThreadedOwner, tmp_path: Path) -> Iterator[CaptureClient]:
    capture = gym_capture.connect(tmp_path)
    yield capture
    capture.sync.close(timeout_s=1.0)


CASES = committable_cases()


def test_enough_cases_can_be_committed() -> None:
    assert len(CASES) >= 50


def test_every_case_merges_alike_through_the_owner_and_at_rest(
    owner: ThreadedOwner, client: CaptureClient, tmp_path: Path
) -> None:
    for case, exchanges in CASES:
        rollout_id = rollout_id_from_record(case["record"])
        assert rollout_id is not None
        for each in exchanges:
            client.sync.record(rollout_id, each)
    for stopped in (False, True):
        if stopped:
            owner.stop()
        for case, _ in CASES:
            record = copy.deepcopy(case["record"])
            model_calls.merge_model_call_capture_into_record(record, [tmp_path], case["include_payloads"])
            assert exact(record) == exact(case["expected"]["ok"])


async def test_a_merge_inside_a_running_loop_never_waits_for_claims(client: CaptureClient, tmp_path: Path) -> None:
    await client.record("r", exchange("done"))
    async with client.rollout("r").claim(dialect="chat") as call:
        before = time.monotonic()
        value = merged(tmp_path)
        assert time.monotonic() - before < model_calls.CAPTURE_DRAIN_TIMEOUT_S / 2
        assert value["gaps"] == [{"code": "model_call_capture_pending", "detail": "count=1"}]
        assert [each["model_call_id"] for each in value["calls"]] == ["done"]
        call.complete(response={})
    assert "gaps" not in merged(tmp_path)


async def test_quiescence_is_told_by_the_owner(client: CaptureClient, tmp_path: Path) -> None:
    async with client.rollout("r").claim(dialect="chat") as call:
        assert not await model_calls.await_model_call_capture_quiescence("r", [tmp_path], timeout_s=0.05)
        waiting = asyncio.create_task(
            model_calls.await_model_call_capture_quiescence("r", [tmp_path], timeout_s=30.0, poll_s=3600.0)
        )
        assert await model_calls.await_model_call_capture_quiescence("other", [tmp_path], timeout_s=30.0)
        assert not waiting.done()
        call.complete(response={})
    assert await waiting is True


async def test_clear_begins_the_next_generation_and_fences_the_last(client: CaptureClient, tmp_path: Path) -> None:
    await client.record("r", exchange("old"))
    (tmp_path / nemo_gym_file("r")).write_bytes(b'{"model_call_id":"older","dialect":"chat"}\n')
    model_calls.clear_model_call_captures_for_rollouts([{"_ng_rollout_id": "r"}], [tmp_path])
    assert not (tmp_path / nemo_gym_file("r")).exists()
    assert merged(tmp_path)["gaps"] == [{"code": "model_call_capture_no_records"}]
    with pytest.raises(GymCaptureError):
        await client.rollout("r", generation=0).record(exchange("late"))
    await client.record("r", exchange("new"))
    assert [each["model_call_id"] for each in merged(tmp_path)["calls"]] == ["new"]


def test_what_lies_beside_a_live_log_is_merged_where_the_log_knows_nothing(
    client: CaptureClient, tmp_path: Path
) -> None:
    client.sync.record("in-log", exchange("a"))
    (tmp_path / nemo_gym_file("beside")).write_bytes(b'{"model_call_id":"b","dialect":"chat"}\n')
    assert [each["model_call_id"] for each in merged(tmp_path, "beside")["calls"]] == ["b"]
    assert [each["model_call_id"] for each in merged(tmp_path, "in-log")["calls"]] == ["a"]
    assert merged(tmp_path, "nowhere")["gaps"] == [{"code": "model_call_capture_no_records"}]


def test_another_protocol_version_is_refused_and_says_so(
    owner: ThreadedOwner, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(core, "PROTOCOL_VERSION", 99)
    client = gym_capture.connect(tmp_path)
    with pytest.raises(HandshakeRefused, match="the client speaks protocol 99"):
        client.sync.stats()
    client.sync.close(timeout_s=0.0)


# -- at rest --------------------------------------------------------------------------------------------------------


def test_clear_at_rest_takes_an_epoch_journals_and_leaves(
    owner: ThreadedOwner, client: CaptureClient, tmp_path: Path, own: Own
) -> None:
    client.sync.record("r", exchange("old"))
    client.sync.record("other", exchange("kept"))
    client.sync.close()
    owner.stop()
    model_calls.clear_model_call_captures_for_rollouts([{"_ng_rollout_id": "r"}], [tmp_path])
    assert (tmp_path / epoch_file(2)).exists()
    assert locate.liveness(tmp_path) is locate.Liveness.AT_REST
    assert merged(tmp_path)["gaps"] == [{"code": "model_call_capture_no_records"}]
    assert [each["model_call_id"] for each in merged(tmp_path, "other")["calls"]] == ["kept"]
    assert CaptureStore(tmp_path).generation("r") == 1
    assert own().call(_generation_of("r", tmp_path)) == 1


async def _generation_of(rollout_id: str, directory: Path) -> int:
    return CaptureStore(directory).generation(rollout_id)


async def test_clear_at_rest_works_inside_a_running_loop(owner: ThreadedOwner, tmp_path: Path) -> None:
    await asyncio.to_thread(owner.stop)
    model_calls.clear_model_call_captures_for_rollouts([{"_ng_rollout_id": "r"}], [tmp_path])
    assert CaptureStore(tmp_path).generation("r") == 1


def test_a_killed_owners_directory_is_at_rest_once_its_beat_stood_still(
    owner: ThreadedOwner, client: CaptureClient, tmp_path: Path
) -> None:
    client.sync.record("r", exchange("a"))
    owner.vanish()
    watched: list[float] = []
    assert locate.liveness(tmp_path, wait=watched.append) is locate.Liveness.AT_REST
    assert sum(watched) == pytest.approx(5.0)
    assert locate.liveness(tmp_path, wait=watched.append) is locate.Liveness.AT_REST
    assert sum(watched) == pytest.approx(5.0)
    assert [each["model_call_id"] for each in merged(tmp_path)["calls"]] == ["a"]


async def test_claims_of_a_killed_owner_are_waited_for_until_the_time_is_over(
    owner: ThreadedOwner, client: CaptureClient, tmp_path: Path
) -> None:
    call = client.rollout("r").claim(dialect="chat")
    await call.__aenter__()  # left open: leaving it would wait for the owner
    await asyncio.to_thread(owner.vanish)
    assert locate.liveness(tmp_path, wait=lambda _seconds: None) is locate.Liveness.AT_REST
    assert not await model_calls.await_model_call_capture_quiescence("r", [tmp_path], timeout_s=0.1, poll_s=0.01)
    assert await model_calls.await_model_call_capture_quiescence("other", [tmp_path], timeout_s=30.0)
    assert merged(tmp_path)["gaps"] == [
        {"code": "model_call_capture_no_records"},
        {"code": "model_call_capture_pending", "detail": "count=1"},
    ]


# -- live and out of reach ------------------------------------------------------------------------------------------


def test_an_owner_out_of_reach_is_a_gap_in_merges_and_an_error_in_clears(
    owner: ThreadedOwner, client: CaptureClient, tmp_path: Path, monkeypatch: Any
) -> None:
    client.sync.record("r", exchange("a"))
    client.sync.close()
    owner.close_port()
    monkeypatch.setattr(
        gym_capture.api, "_DEFAULTS", gym_capture.api._DEFAULTS.model_copy(update={"drain_timeout_s": 0.2})
    )
    value = merged(tmp_path)
    assert value["gaps"] == [{"code": "model_call_capture_unreadable"}]
    assert [each["model_call_id"] for each in value["calls"]] == ["a"]
    with pytest.raises(OwnerUnavailable):
        model_calls.clear_model_call_captures_for_rollouts([{"_ng_rollout_id": "r"}], [tmp_path])
    assert CaptureStore(tmp_path).generation("r") == 0


def test_a_directory_that_cannot_be_read_is_a_gap(tmp_path: Path) -> None:
    assert merged(tmp_path / "absent")["gaps"] == [{"code": "model_call_capture_unreadable"}]


def test_threads_share_one_store(tmp_path: Path) -> None:
    (tmp_path / nemo_gym_file("r")).write_bytes(b'{"model_call_id":"b","dialect":"chat"}\n')
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(merged(tmp_path)["metrics"]["num_calls"])) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 16
