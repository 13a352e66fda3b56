"""The workers of a run: which of them takes an attempt, and what happens when one dies. Free of Ray."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gym_capture.collect.attempt import WORKER_DIED, Attempt, Ending, Failed
from gym_capture.collect.proxies import ProxyAddress
from gym_capture.errors import GymCaptureError, WorkersUnavailable

logger = logging.getLogger(__name__)

START_TRIES = 3
"""Workers in a row that may die as they start, in one place of the pool, before the run gives up."""

WAITING_NOTICE_S = 30.0


class WorkerLost(Exception):
    """The worker's process (or its node) is gone, or can't be told from one that is."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker is told of an attempt. `proxies`: those that its model calls may go through."""

    row: dict[str, Any]
    rollout_id: str
    attempt: int
    generation: int
    proxies: tuple[ProxyAddress, ...] = ()


class Worker(Protocol):
    """One worker process."""

    async def prepare(self) -> None:
        """Returns once it can run attempts. Raises WorkerLost, or GymCaptureError when no worker ever could."""

    async def run(self, assignment: Assignment) -> Ending:
        """Run one attempt to its end. Raises WorkerLost."""

    def kill(self) -> None:
        """End its process at once; also when it is dead already."""


class _Place:
    """One place in the pool and the worker that fills it now, None while one is starting."""

    __slots__ = ("load", "worker")

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.load = 0


class WorkerPool:
    """Keeps `workers` places filled, and spreads attempts over them.

    Args:
        start: makes a worker process (returns at once; `prepare` tells when it is up).
        workers: places.
        concurrency: attempts at once, over all; each worker takes its share.
        proxies: those that can be called at the moment; raises GymCaptureError when the run cannot go on without.
    """

    def __init__(
        self,
        start: Callable[[], Worker],
        workers: int,
        concurrency: int,
        proxies: Callable[[], Sequence[ProxyAddress]] = tuple,
    ) -> None:
        self._start = start
        self._proxies = proxies
        self._share = math.ceil(concurrency / workers)
        self._places = [_Place() for _ in range(workers)]
        self._starting: set[asyncio.Task[None]] = set()
        self._young: set[Worker] = set()
        self._changed = asyncio.Condition()
        self._error: GymCaptureError | None = None
        self.deaths = 0

    async def open(self) -> None:
        """Start all workers; returns when the first is up.

        Raises:
            GymCaptureError: none can be: RolloutFunctionError, WorkersUnavailable.
        """
        for place in self._places:
            self._fill(place)
        async with self._changed:
            while self._error is None and not any(place.worker for place in self._places):
                try:
                    await asyncio.wait_for(self._changed.wait(), WAITING_NOTICE_S)
                except TimeoutError:
                    logger.warning(
                        "no worker is up yet: the cluster may lack the CPUs or resources of collect.worker_num_cpus "
                        "and collect.worker_resources; still waiting"
                    )
        if self._error is not None:
            raise self._error

    async def run(self, attempt: Attempt, generation: int) -> Ending:
        """Run one attempt on the least loaded worker, waiting for a place.

        A worker that dies is replaced, and all that ran on it has failed (how many calls it issued is unknown then).

        Raises:
            GymCaptureError: there are no workers any more.
        """
        place, worker = await self._acquire()
        try:
            proxies = tuple(self._proxies())
            return await worker.run(
                Assignment(attempt.source.row, attempt.rollout_id, attempt.number, generation, proxies),
            )
        except WorkerLost as error:
            if place.worker is worker:
                self.deaths += 1
                logger.warning("a worker died while rollout %s ran on it: %s", attempt.rollout_id, error)
                place.worker = None
                place.load = 0
                # It may live on where we can't reach it.
                worker.kill()
                self._fill(place)
            return Failed(WORKER_DIED, str(error), "", None)
        finally:
            await asyncio.shield(self._release(place, worker))

    async def close(self) -> None:
        """End every worker, and what still runs on it."""
        for task in list(self._starting):
            task.cancel()
        while self._starting:
            await asyncio.wait(self._starting)
        for worker in [*self._young, *(place.worker for place in self._places if place.worker is not None)]:
            worker.kill()
        self._young.clear()
        for place in self._places:
            place.worker = None

    async def _acquire(self) -> tuple[_Place, Worker]:
        async with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                free = [place for place in self._places if place.worker is not None and place.load < self._share]
                if free:
                    place = min(free, key=lambda each: each.load)
                    if place.worker is not None:
                        place.load += 1
                        return place, place.worker
                await self._changed.wait()

    async def _release(self, place: _Place, worker: Worker) -> None:
        async with self._changed:
            if place.worker is worker:
                place.load -= 1
            self._changed.notify_all()

    def _fill(self, place: _Place) -> None:
        task = asyncio.create_task(self._bring_up(place))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _bring_up(self, place: _Place) -> None:
        reason = ""
        for _ in range(START_TRIES):
            worker = self._start()
            self._young.add(worker)
            try:
                await worker.prepare()
            except WorkerLost as error:
                self._drop(worker)
                reason = str(error)
                logger.warning("a worker died as it started: %s", reason)
                continue
            except GymCaptureError as error:
                self._drop(worker)
                await self._break(error)
                return
            self._young.discard(worker)
            async with self._changed:
                place.worker = worker
                self._changed.notify_all()
            return
        await self._break(
            WorkersUnavailable(
                f"{START_TRIES} workers in a row died as they started ({reason}). What is finished is kept; mend the "
                "cause and run again to go on from there."
            )
        )

    def _drop(self, worker: Worker) -> None:
        self._young.discard(worker)
        worker.kill()

    async def _break(self, error: GymCaptureError) -> None:
        async with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()
