"""Ray workers that attempts are dispatched to: tasks, and actors that many runs share."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import ray

import gym_capture
from tests.crash.lab import in_process
from tests.crash.lab.held_memory import tell_what_is_held
from tests.crash.lab.journal import Journal
from tests.crash.lab.workload import Attempt, work

_journals: dict[Path, Journal] = {}


def journal_for(directory: str, kind: str) -> Journal:
    """This process's journal of a run. That of an earlier run ends."""
    folder = Path(directory).parent / "journals"
    if folder not in _journals:
        for earlier in _journals.values():
            earlier.end()
        _journals.clear()
        _journals[folder] = Journal(folder, kind)
        in_process.work_for(directory)
        bystander = in_process.bystander_of(directory)
        if bystander:
            ray.get_actor(*bystander).hear.remote(os.getpid())
    return _journals[folder]


async def attempt_here(capture: gym_capture.CaptureClient, attempt: Attempt, kind: str) -> int:
    """Work for an attempt in this process."""
    journal = journal_for(attempt.directory, kind)
    child = fork(capture, attempt) if attempt.fork else 0
    try:
        return await work(capture.rollout(attempt.rollout, attempt.generation), journal, attempt)
    finally:
        if child:
            await asyncio.to_thread(os.waitpid, child, 0)


def fork(capture: gym_capture.CaptureClient, attempt: Attempt) -> int:
    """A forked child that makes calls with the client that it inherits; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        journal = Journal(Path(attempt.directory).parent / "journals", "forked")
        done = threading.Event()

        def body() -> None:
            asyncio.run(work(capture.rollout(attempt.rollout, attempt.generation), journal, attempt, "forked-"))
            done.set()

        threading.Thread(target=body, daemon=True).start()  # the parent's loop seems to run in this thread
        done.wait(60.0)
    finally:
        os._exit(0)


@ray.remote(max_retries=0, num_cpus=1)
def attempt_task(capture: gym_capture.CaptureClient, attempt: Attempt) -> int:
    """An attempt in a task's process."""
    return asyncio.run(attempt_here(capture, attempt, "task"))


@ray.remote(max_retries=0, num_cpus=0)
def filler(size: int) -> bytes:
    """An object of that size."""
    return bytes(size)


class AttemptActor:
    """Attempts side by side in one actor's process."""

    async def attempt(self, capture: gym_capture.CaptureClient, attempt: Attempt) -> int:
        """Work for one."""
        return await attempt_here(capture, attempt, "actor")

    async def where(self) -> tuple[int, str]:
        """Its pid and node."""
        return os.getpid(), str(ray.get_runtime_context().get_node_id())


class Bystander:
    """An actor that each worker process calls once, as it does an owner's, and that only tells what it holds.

    What its memory does in a long run, Ray does.

    Args:
        directory: the capture directory.
    """

    def __init__(self, directory: str) -> None:
        tell_what_is_held(directory)
        self.heard = 0

    async def hear(self, pid: int) -> int:
        """Count a caller; its own pid."""
        self.heard += 1
        return os.getpid()


_decorate: Any = ray.remote(max_restarts=-1, max_task_retries=0, num_cpus=0)
_Remote: Any = _decorate(AttemptActor)


def bystander_on(node: str, name: str, directory: str) -> Any:
    """A bystander of that name, on that node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node, soft=True)
    options: Any = ray.remote(max_restarts=-1, num_cpus=0)(Bystander)
    return options.options(name=name, max_concurrency=1000, scheduling_strategy=strategy).remote(directory)


def actor_anywhere() -> Any:
    """A worker actor; Ray says where."""
    return _Remote.options(max_concurrency=64).remote()


def actor_on(node: str) -> Any:
    """A worker actor that begins on that node, and is restarted wherever there is one."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node, soft=True)
    return _Remote.options(max_concurrency=64, scheduling_strategy=strategy).remote()
