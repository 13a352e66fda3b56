"""Workers as Ray actors: the thin shell around `worker.RolloutWorker`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, TaskCancelledError

from gym_capture.collect.attempt import Ending, Failed
from gym_capture.collect.pool import Assignment, WorkerLost
from gym_capture.collect.worker import RolloutWorker, WorkerSpec
from gym_capture.config import CollectConfig
from gym_capture.errors import from_wire


class WorkerActor(RolloutWorker):
    """What runs in a worker's process: it knows its node, so that it calls that node's proxy."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec, node=str(ray.get_runtime_context().get_node_id()))


class RayWorker:
    """One worker process, an actor that Ray neither restarts nor retries: a retry would run a rollout twice under one
    id. The collector replaces it, and tries again under the next attempt's id."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def prepare(self) -> None:
        """As `pool.Worker` says. Waits as long as Ray needs to place the actor."""
        try:
            error = await self._actor.prepare.remote()
        except RayError as lost:
            raise WorkerLost(told(lost)) from lost
        if error is not None:
            raise from_wire(*error)

    async def run(self, assignment: Assignment) -> Ending:
        """As `pool.Worker` says."""
        try:
            ending: Ending = await self._actor.run.remote(assignment)
        except (RayActorError, TaskCancelledError) as lost:
            raise WorkerLost(told(lost)) from lost
        except RayError as error:
            # The worker lives; its answer could not be carried over (a record that does not pickle, a lost object).
            return Failed.by(error, None)
        return ending

    def kill(self) -> None:
        """End the process at once."""
        ray.kill(self._actor, no_restart=True)


def ray_workers(spec: WorkerSpec, collect: CollectConfig) -> Callable[[], RayWorker]:
    """A factory of workers for `pool.WorkerPool`. Ray must be initialised in this process."""
    # One actor carries its share of the rollouts on one event loop; the few more let `prepare` through.
    concurrency = -(-collect.concurrency // collect.workers) + 4
    kind = ray.remote(WorkerActor).options(
        num_cpus=collect.worker_num_cpus,
        resources=dict(collect.worker_resources) or None,
        max_restarts=0,
        max_task_retries=0,
        max_concurrency=concurrency,
        scheduling_strategy="SPREAD",
    )
    shared = ray.put(spec)
    return lambda: RayWorker(kind.remote(shared))


def told(error: RayError) -> str:
    """What Ray says, on one line and without its guesses."""
    text, _, _ = " ".join(str(error).split()).partition(" Some common causes include")
    return text[:1000]
