"""Workers that die, and who takes what."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from gym_capture.collect.attempt import Attempt, Ending, Failed, Finished
from gym_capture.collect.collector import unless_stopped
from gym_capture.collect.pool import Assignment, WorkerLost, WorkerPool
from gym_capture.collect.stop import StopRequest
from gym_capture.errors import RolloutFunctionError, WorkersUnavailable
from tests.collect.fakes import input_row


class FakeWorker:
    """Ends its attempts when told to; `lost` is what its process's death looks like."""

    def __init__(self, number: int, fault: Exception | None = None) -> None:
        self.number = number
        self.fault = fault
        self.killed = False
        self.up = asyncio.Event()
        self.up.set()
        self.taken: list[str] = []
        self._running: list[asyncio.Future[Ending]] = []

    async def prepare(self) -> None:
        await self.up.wait()
        if self.fault is not None:
            raise self.fault

    async def run(self, assignment: Assignment) -> Ending:
        self.taken.append(assignment.rollout_id)
        self._running.append(asyncio.get_running_loop().create_future())
        return await self._running[-1]

    def kill(self) -> None:
        self.killed = True

    def finish(self) -> None:
        for each in self._running:
            if not each.done():
                each.set_result(Finished(None, self.number))

    def die(self) -> None:
        for each in self._running:
            if not each.done():
                each.set_exception(WorkerLost("killed by signal 9"))


class Workshop:
    """Makes workers and keeps them all."""

    def __init__(self, faults: list[Exception | None] | None = None) -> None:
        self.made: list[FakeWorker] = []
        self.faults = faults or []

    def __call__(self) -> FakeWorker:
        fault = self.faults.pop(0) if self.faults else None
        self.made.append(FakeWorker(len(self.made), fault))
        return self.made[-1]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def attempt(line: int) -> Attempt:
    return Attempt(input_row(line), 0, 0)


async def test_attempts_spread_evenly_and_never_beyond_each_workers_share() -> None:
    workshop = Workshop()
    pool = WorkerPool(workshop, workers=3, concurrency=9)
    await pool.open()
    await settle()
    running = [asyncio.create_task(pool.run(attempt(line), 1)) for line in range(12)]
    await settle()
    assert [len(worker.taken) for worker in workshop.made] == [3, 3, 3]
    for _ in range(2):
        for worker in workshop.made:
            worker.finish()
        await settle()
    assert sum(len(worker.taken) for worker in workshop.made) == 12
    assert Counter(type(each) for each in await asyncio.gather(*running)) == {Finished: 12}
    await pool.close()
    assert all(worker.killed for worker in workshop.made)


async def test_all_that_ran_on_a_dead_worker_has_failed_and_one_other_takes_its_place() -> None:
    workshop = Workshop()
    pool = WorkerPool(workshop, workers=1, concurrency=2)
    await pool.open()
    running = [asyncio.create_task(pool.run(attempt(line), 1)) for line in range(3)]
    await settle()
    workshop.made[0].die()
    assert await asyncio.gather(*running[:2]) == [Failed("WorkerDied", "killed by signal 9", "", None)] * 2
    await settle()
    assert len(workshop.made) == 2
    assert workshop.made[0].killed
    assert workshop.made[1].taken == ["2-0"]
    assert pool.deaths == 1
    workshop.made[1].finish()
    assert await running[2] == Finished(None, 1)
    await pool.close()


async def test_one_worker_that_is_up_is_enough_to_begin() -> None:
    workshop = Workshop()
    slow = FakeWorker(99)
    slow.up.clear()
    made = iter([slow])
    pool = WorkerPool(lambda: next(made, None) or workshop(), workers=2, concurrency=2)
    await pool.open()
    running = asyncio.create_task(pool.run(attempt(0), 4))
    await settle()
    assert workshop.made[0].taken == ["0-0"]
    workshop.made[0].finish()
    assert await running == Finished(None, 0)
    await pool.close()
    assert slow.killed


async def test_a_worker_that_dies_as_it_starts_is_made_again() -> None:
    workshop = Workshop([WorkerLost("no memory"), WorkerLost("no memory")])
    pool = WorkerPool(workshop, workers=1, concurrency=1)
    await pool.open()
    assert [worker.killed for worker in workshop.made] == [True, True, False]
    await pool.close()


async def test_workers_that_never_start_end_the_run() -> None:
    workshop = Workshop([WorkerLost("no memory")] * 3)
    pool = WorkerPool(workshop, workers=1, concurrency=1)
    with pytest.raises(WorkersUnavailable, match=r"3 workers in a row died as they started \(no memory\)"):
        await pool.open()
    with pytest.raises(WorkersUnavailable):
        await pool.run(attempt(0), 1)
    await pool.close()


async def test_a_rollout_function_that_no_worker_can_load_is_not_tried_again() -> None:
    workshop = Workshop([RolloutFunctionError("not there")])
    pool = WorkerPool(workshop, workers=1, concurrency=1)
    with pytest.raises(RolloutFunctionError, match="not there"):
        await pool.open()
    assert len(workshop.made) == 1
    await pool.close()


async def test_a_cancelled_attempt_gives_its_place_back() -> None:
    workshop = Workshop()
    pool = WorkerPool(workshop, workers=1, concurrency=1)
    await pool.open()
    first = asyncio.create_task(pool.run(attempt(0), 1))
    second = asyncio.create_task(pool.run(attempt(1), 1))
    await settle()
    first.cancel()
    await settle()
    assert workshop.made[0].taken == ["0-0", "1-0"]
    workshop.made[0].finish()
    assert await second == Finished(None, 0)
    await pool.close()


async def test_a_stop_ends_the_wait_for_workers_that_never_come() -> None:
    never = FakeWorker(0)
    never.up.clear()
    pool = WorkerPool(lambda: never, workers=1, concurrency=1)
    stop = StopRequest(grace_s=3600.0)
    opening = asyncio.create_task(unless_stopped(pool.open(), stop))
    await settle()
    assert not opening.done()
    stop.request()
    await opening
    stop.expire()
    await pool.close()
    assert never.killed
