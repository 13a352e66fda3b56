"""Calls that were issued and are nowhere, for real: killed with their process, or dropped from a full buffer."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gym_capture
from gym_capture.client.options import ClientOptions
from gym_capture.reach.opening import open_client
from gym_capture.reach.source import Source
from gym_capture.storage.posix_files import PosixFiles, make_capture_directory
from gym_capture.storage.run_marker import create_or_adopt_run
from tests.crash.processes import Child
from tests.ray_cluster import wait_until

ROLLOUT = "9-0"
CALLER = "tests.crash.caller_process"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A capture directory with its run's marker."""
    path = tmp_path / "captures"
    make_capture_directory(path)
    create_or_adopt_run(PosixFiles(str(path)))
    return path


@pytest.fixture
def owner(directory: Path) -> Iterator[Child]:
    """A real owner of it."""
    with Child("tests.crash.owner_process", str(directory), "owner") as child:
        assert child.hear()["serving"]
        yield child


def merged(capture: gym_capture.CaptureClient, issued: int | None = None) -> dict[str, Any]:
    """The merged capture of the rollout."""
    record: dict[str, Any] = {"_ng_rollout_id": ROLLOUT}
    capture.sync.merge(record, issued=issued, timeout_s=10.0)
    value: dict[str, Any] = record["ng_model_call_capture"]
    return value


@pytest.mark.crash
def test_a_claim_dies_with_its_process_and_is_a_gap_once_the_lease_has_ended(directory: Path, owner: Child) -> None:
    capture = gym_capture.connect(capture_dir=directory)
    try:
        with Child(CALLER, str(directory), ROLLOUT) as caller:
            assert caller.ask("commit")["outcome"] == "durable"
            assert caller.ask("claim") == {"claimed": True}
            caller.signal(signal.SIGKILL)
            # Not quiescent while the claim may still be held; then the lease ends, and the waiter wakes.
            assert capture.sync.quiesce(ROLLOUT, timeout_s=30.0)
        value = merged(capture, issued=2)
        assert len(value["calls"]) == 1
        assert value["gaps"] == [{"code": "model_call_capture_incomplete", "detail": "lost=1"}]
    finally:
        capture.sync.close()


@pytest.mark.crash
def test_a_call_that_was_never_claimed_dies_with_its_process_and_is_missed_by_the_count(
    directory: Path, owner: Child
) -> None:
    capture = gym_capture.connect(capture_dir=directory)
    try:
        with Child(CALLER, str(directory), ROLLOUT) as caller:
            assert caller.ask("commit")["outcome"] == "durable"
            owner.signal(signal.SIGSTOP)
            owner.wait_stopped()
            # The owner is away and patience is short: the call goes on unclaimed, its exchange waits in the process.
            assert caller.ask("commit")["outcome"] == "buffered"
            issued = caller.ask("issued")["issued"]
            caller.signal(signal.SIGKILL)
            caller.process.wait(30)
        owner.signal(signal.SIGCONT)
        assert issued == 2
        wait_until(lambda: capture.sync.quiesce(ROLLOUT, timeout_s=5.0), "the owner is back")
        value = merged(capture, issued)
        assert len(value["calls"]) == 1
        (gap,) = value["gaps"]
        assert gap["code"] == "model_call_capture_incomplete"
        assert gap["detail"] in ("unaccounted=1", "lost=1"), "lost: its claim had arrived, unacknowledged, before"
    finally:
        capture.sync.close()


@pytest.mark.crash
def test_what_a_full_buffer_drops_is_counted_and_journaled_when_the_owner_is_back(
    directory: Path, owner: Child
) -> None:
    run = owner.ask("stats")["stats"]["run"]
    options = ClientOptions(run=run, patience_s=0.5, lease_s=1.5, client_buffer_bytes=50_000)
    capture = open_client(Source(run, str(directory), None, "tests", "stream", options))
    try:
        capture.sync.stats(timeout_s=30.0)  # connected: patience is for an owner that is away
        rollout = capture.sync.rollout(ROLLOUT)
        with rollout.claim(dialect="chat") as first:
            first.complete(request={}, response={"id": "first"}, status_code=200)
        assert first.outcome == "durable"
        owner.signal(signal.SIGSTOP)
        owner.wait_stopped()
        outcomes: list[str] = []
        for number in range(8):
            with rollout.claim(dialect="chat") as call:
                text = random.Random(number).randbytes(10_000)  # not to be compressed away
                call.complete(request=text, response={"id": f"r{number}"}, status_code=200)
            outcomes.append(str(call.outcome))
        dropped = outcomes.count("dropped")
        assert dropped > 0
        assert dropped + outcomes.count("buffered") == 8
        owner.signal(signal.SIGCONT)
        wait_until(lambda: capture.sync.quiesce(ROLLOUT, timeout_s=5.0), "the owner is back")
        wait_until(lambda: len(merged(capture)["calls"]) == 9 - dropped, "what was buffered has landed")
        wait_until(lambda: "gaps" in merged(capture), "the loss has landed")
        value = merged(capture, issued=9)
        assert value["gaps"] == [{"code": "model_call_capture_incomplete", "detail": f"dropped={dropped}"}]
    finally:
        capture.sync.close()


@pytest.mark.crash
def test_a_row_that_lands_after_the_merge_is_counted_late_until_a_merge_returns_it(
    directory: Path, owner: Child
) -> None:
    capture = gym_capture.connect(capture_dir=directory)
    try:
        with Child(CALLER, str(directory), ROLLOUT) as caller:
            caller.ask("commit")
            assert len(merged(capture)["calls"]) == 1
            assert capture.sync.stats(ROLLOUT)["late"] == 0
            caller.ask("commit")
        assert capture.sync.stats(ROLLOUT)["late"] == 1
        assert len(merged(capture)["calls"]) == 2
        assert capture.sync.stats(ROLLOUT)["late"] == 0
    finally:
        capture.sync.close()
