"""Attempts under way: limits, retries, what is written when, and how a run ends early."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gym_capture.collect.attempt import Attempt, Failed, Finished
from gym_capture.collect.dispatch import Dispatcher
from gym_capture.collect.stop import StopRequest
from gym_capture.collect.summary import Progress
from gym_capture.errors import Fenced, InputRowError, OutputError, OwnerUnavailable
from tests.collect.fakes import FakeCapture, FakeLines, FakePool, input_row


class StoppedClock:
    """Always the same moment."""

    def monotonic(self) -> float:
        return 0.0

    def time(self) -> float:
        return 1786000000.0


class Run:
    """A dispatcher over fakes."""

    def __init__(
        self,
        attempts: Iterator[Attempt] | int,
        pool: FakePool | None = None,
        concurrency: int = 4,
        retries: int = 1,
    ) -> None:
        self.capture = FakeCapture()
        self.pool = pool or FakePool()
        self.output, self.failures = FakeLines(), FakeLines()
        self.progress = Progress()
        self.stop = StopRequest(grace_s=3600.0)
        if isinstance(attempts, int):
            attempts = iter([Attempt(input_row(line), 0, retries) for line in range(attempts)])
        self.dispatcher = Dispatcher(
            attempts,
            pool=self.pool,
            capture=self.capture,
            patience_s=120.0,
            output=self.output,
            failures=self.failures,
            concurrency=concurrency,
            include_payloads=False,
            progress=self.progress,
            stop=self.stop,
            clock=StoppedClock(),
        )

    async def go(self) -> None:
        await asyncio.wait_for(self.dispatcher.run(), 30)

    def written(self) -> list[str]:
        return sorted(record["ng_model_call_capture"]["rollout_id"] for record in self.output.records)


async def until(condition: Any) -> None:
    """Turn the loop until `condition()`; the tests' timeout bounds it."""
    while not condition():  # noqa: ASYNC110 - what is awaited has no event of its own
        await asyncio.sleep(0)


def fail_first(attempt: Attempt, generation: int) -> Finished | Failed:
    if attempt.number == 0:
        return Failed("ValueError", "bad luck", "Traceback …", 3)
    return Finished({"answer": 1}, 2)


async def test_every_row_is_cleared_run_merged_and_written() -> None:
    run = Run(3)
    await run.go()
    assert sorted(run.capture.cleared) == ["0-0", "1-0", "2-0"]
    assert sorted(run.capture.merged) == [("0-0", 2), ("1-0", 2), ("2-0", 2)]
    assert sorted(run.output.records, key=lambda record: record["_ng_task_index"])[1] == {
        "answer": "1-0",
        "generation": 1,
        "_ng_task_index": 1,
        "_ng_rollout_index": 0,
        "ng_model_call_capture": {"rollout_id": "1-0", "metrics": {"tokens_in": 5}, "calls": [{}, {}]},
    }
    assert run.failures.records == []
    assert (run.progress.finished, run.progress.calls, run.progress.running, run.progress.settling) == (3, 6, 0, 0)


async def test_never_more_than_the_concurrency_runs() -> None:
    run = Run(40, concurrency=3)
    await run.go()
    assert run.pool.most == 3
    assert len(run.output.records) == 40


async def test_input_is_read_only_as_fast_as_it_can_be_started() -> None:
    read: list[int] = []
    release = asyncio.Event()

    def attempts() -> Iterator[Attempt]:
        for line in range(100):
            read.append(line)
            yield Attempt(input_row(line), 0, 0)

    async def wait(attempt: Attempt, generation: int) -> Finished:
        await release.wait()
        return Finished(None, 0)

    run = Run(attempts(), FakePool(wait), concurrency=5)
    going = asyncio.create_task(run.go())
    await until(lambda: run.pool.now == 5)
    assert len(read) == 5
    release.set()
    await going
    assert len(read) == 100


async def test_a_merge_that_waits_does_not_hold_up_what_runs() -> None:
    run = Run(10, concurrency=2)
    release = asyncio.Event()

    async def merging(rollout_id: str) -> None:
        if rollout_id in ("0-0", "1-0"):
            await release.wait()

    run.capture.merging = merging
    going = asyncio.create_task(run.go())
    await until(lambda: len(run.output.records) == 8 and run.progress.settling == 2)
    release.set()
    await going
    assert len(run.output.records) == 10


async def test_merges_that_pile_up_hold_up_new_rollouts() -> None:
    run = Run(500, concurrency=1)
    release = asyncio.Event()

    async def merging(rollout_id: str) -> None:
        await release.wait()

    run.capture.merging = merging
    going = asyncio.create_task(run.go())
    await until(lambda: run.progress.settling == 64 and run.progress.running == 0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(run.pool.started) == 64
    release.set()
    await going
    assert len(run.output.records) == 500


async def test_a_failed_attempt_is_kept_with_its_evidence_and_tried_again_under_the_next_id() -> None:
    run = Run(1, FakePool(fail_first))
    await run.go()
    assert run.pool.started == ["0-0", "0-0-a1"]
    assert run.failures.records == [
        {
            "_ng_task_index": 0,
            "_ng_rollout_index": 0,
            "rollout_id": "0-0",
            "attempt": 0,
            "input_line": 1,
            "error": {"type": "ValueError", "message": "bad luck", "traceback": "Traceback …"},
            "issued": 3,
            "failed_at": 1786000000.0,
            "ng_model_call_capture": {"rollout_id": "0-0", "metrics": {"tokens_in": 5}, "calls": [{}, {}]},
        }
    ]
    assert run.capture.merged == [("0-0", 3), ("0-0-a1", 2)]
    (record,) = run.output.records
    assert (record["_ng_attempt_index"], record["answer"]) == (1, 1)
    assert run.dispatcher.failed == []


async def test_the_next_attempt_starts_only_once_the_failure_is_on_disk() -> None:
    run = Run(1, FakePool(fail_first))
    release = asyncio.Event()

    async def merging(rollout_id: str) -> None:
        await release.wait()

    run.capture.merging = merging
    going = asyncio.create_task(run.go())
    await until(lambda: run.progress.settling == 1)
    for _ in range(50):
        await asyncio.sleep(0)
    assert run.pool.started == ["0-0"]
    release.set()
    await going
    assert run.pool.started == ["0-0", "0-0-a1"]


async def test_a_failure_counts_and_is_retried_only_once_its_line_is_synced() -> None:
    run = Run(1, FakePool(fail_first))
    run.failures.syncing.clear()
    going = asyncio.create_task(run.go())
    await until(lambda: run.capture.merged == [("0-0", 3)])
    # What is written is encoded in a thread; a call of its own there comes back after it.
    for _ in range(50):
        await asyncio.to_thread(int)
    assert (run.pool.started, run.progress.failed_attempts, run.progress.settling) == (["0-0"], 0, 1)
    run.failures.syncing.set()
    await going
    assert (run.pool.started, run.progress.failed_attempts) == (["0-0", "0-0-a1"], 1)


async def test_a_failure_that_cannot_be_written_is_not_tried_again() -> None:
    run = Run(1, FakePool(fail_first))
    run.failures.error = OutputError("disk full")
    with pytest.raises(OutputError, match="disk full"):
        await run.go()
    assert run.pool.started == ["0-0"]


async def test_a_row_without_tries_left_is_named_and_the_others_go_on() -> None:
    def behaviour(attempt: Attempt, generation: int) -> Finished | Failed:
        if attempt.source.line == 2:
            return Failed("WorkerDied", "killed by signal 9", "", None)
        return Finished(None, 0)

    run = Run(3, FakePool(behaviour), retries=2)
    await run.go()
    assert run.written() == ["0-0", "2-0"]
    assert [entry["rollout_id"] for entry in run.failures.records] == ["1-0", "1-0-a1", "1-0-a2"]
    (failed,) = run.dispatcher.failed
    assert (failed.rollout_id, failed.error_type, failed.line) == ("1-0-a2", "WorkerDied", 2)
    assert (run.progress.failed_attempts, run.progress.failed) == (3, 1)
    assert ("1-0", None) in run.capture.merged


async def test_a_rollout_that_returns_nothing_hands_back_its_row() -> None:
    run = Run(1, FakePool(lambda attempt, generation: Finished(None, 0)))
    await run.go()
    assert run.output.records[0]["question"] == 0


async def test_the_row_itself_is_never_changed() -> None:
    source = input_row(0, {"nested": {"deep": [1]}})
    run = Run(iter([Attempt(source, 0, 0)]), FakePool(lambda attempt, generation: Finished(None, 0)))
    await run.go()
    assert source.row == {"nested": {"deep": [1]}}


async def test_a_record_that_is_not_json_is_a_failed_attempt() -> None:
    run = Run(1, FakePool(lambda attempt, generation: Finished({"answer": object()}, 4)), retries=0)
    await run.go()
    assert run.output.records == []
    assert run.failures.records[0]["error"]["type"] == "InvalidRecord"
    assert run.failures.records[0]["issued"] == 4


async def test_gaps_are_counted() -> None:
    run = Run(2)
    run.capture.gaps["1-0"] = [{"code": "model_call_capture_incomplete", "detail": "lost=1"}]
    await run.go()
    assert run.progress.with_gaps == 1
    assert [each.rollout_id for each in run.dispatcher.finished if each.gaps] == ["1-0"]


async def test_a_generation_that_somebody_else_began_is_not_this_attempts() -> None:
    run = Run(1, retries=0)
    run.capture.merge_error = Fenced("generation 1 was cleared since")
    await run.go()
    assert run.output.records == []
    (entry,) = run.failures.records
    assert (entry["error"]["type"], entry["issued"]) == ("Fenced", 2)
    assert entry["ng_model_call_capture"]["gaps"] == [{"code": "model_call_capture_unreadable"}]


async def test_an_owner_that_is_away_is_waited_for_before_a_rollout_starts() -> None:
    run = Run(1)
    await run.go()
    assert run.capture.patience_s == 120.0


async def test_a_capture_that_cannot_be_merged_is_a_gap_and_keeps_the_rollout() -> None:
    run = Run(1)
    run.capture.merge_error = OwnerUnavailable("away")
    await run.go()
    (record,) = run.output.records
    assert record["answer"] == "0-0"
    assert record["ng_model_call_capture"]["gaps"] == [{"code": "model_call_capture_unreadable"}]


async def test_without_an_owner_to_clear_the_run_ends_and_says_why() -> None:
    run = Run(5)
    run.capture.clear_error = OwnerUnavailable("away")
    with pytest.raises(OwnerUnavailable, match="away"):
        await run.go()
    assert run.pool.started == []


async def test_an_output_that_cannot_be_written_ends_the_run() -> None:
    run = Run(100, concurrency=2)
    run.output.error = OutputError("disk full")
    with pytest.raises(OutputError, match="disk full"):
        await run.go()
    assert len(run.pool.started) < 100


async def test_a_bad_line_later_on_lets_what_runs_finish() -> None:
    def attempts() -> Iterator[Attempt]:
        yield Attempt(input_row(0), 0, 0)
        yield Attempt(input_row(1), 0, 0)
        raise InputRowError("line 3 is not JSON", line=3)

    run = Run(attempts())
    with pytest.raises(InputRowError, match="line 3"):
        await run.go()
    assert run.written() == ["0-0", "1-0"]


async def test_an_unexpected_error_is_raised_not_swallowed() -> None:
    def behaviour(attempt: Attempt, generation: int) -> Finished:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        await Run(3, FakePool(behaviour)).go()


async def test_a_stop_lets_what_runs_finish_and_starts_nothing_more() -> None:
    release = asyncio.Event()

    async def wait(attempt: Attempt, generation: int) -> Finished:
        await release.wait()
        return Finished(None, 0)

    run = Run(20, FakePool(wait), concurrency=3)
    going = asyncio.create_task(run.go())
    await until(lambda: run.pool.now == 3)
    run.stop.request()
    release.set()
    await going
    assert run.written() == ["0-0", "1-0", "2-0"]


async def test_a_second_stop_gives_up_what_runs_and_still_settles_the_rest() -> None:
    settle = asyncio.Event()

    async def behaviour(attempt: Attempt, generation: int) -> Finished:
        if attempt.source.line > 1:
            await asyncio.Event().wait()
        return Finished(None, 0)

    run = Run(20, FakePool(behaviour), concurrency=3)

    async def merging(rollout_id: str) -> None:
        await settle.wait()

    run.capture.merging = merging
    going = asyncio.create_task(run.go())
    await until(lambda: run.pool.now == 3 and run.progress.settling == 1)
    run.stop.request()
    run.stop.request()
    await until(lambda: run.pool.now == 0)
    settle.set()
    await going
    assert run.written() == ["0-0"]
    assert sorted(run.pool.cancelled) == ["1-0", "2-0", "3-0"]
    assert run.failures.records == []


async def test_a_stop_expires_by_itself() -> None:
    async def forever(attempt: Attempt, generation: int) -> Finished:
        await asyncio.Event().wait()
        return Finished(None, 0)

    run = Run(2, FakePool(forever))
    run.stop.grace_s = 0.0
    going = asyncio.create_task(run.go())
    await until(lambda: run.pool.now == 2)
    run.stop.request()
    await going
    assert run.output.records == []


async def test_a_cancelled_run_leaves_no_task_behind() -> None:
    async def forever(attempt: Attempt, generation: int) -> Finished:
        await asyncio.Event().wait()
        return Finished(None, 0)

    run = Run(2, FakePool(forever))
    going = asyncio.create_task(run.dispatcher.run())
    await until(lambda: run.pool.now == 2)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert sorted(run.pool.cancelled) == ["0-0", "1-0"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
