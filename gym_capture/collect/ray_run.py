"""What a run holds of Ray and of its owner, from start to end."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import ray

from gym_capture import api
from gym_capture.actor.naming import default_actor_name
from gym_capture.collect.ray_proxy import RayProxy, ray_nodes, ray_proxies
from gym_capture.collect.ray_worker import RayWorker, ray_workers
from gym_capture.collect.worker import WorkerSpec
from gym_capture.config import CaptureConfig
from gym_capture.directory.locate import owner_of
from gym_capture.errors import DirectoryHeld, GymCaptureError, OwnerUnavailable
from gym_capture.reach.locators import named_actors

if TYPE_CHECKING:
    from gym_capture.client.client import CaptureClient

logger = logging.getLogger(__name__)

EMBEDDED_DIES_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that can be dispatched: its client, and what makes its workers and proxies."""

    capture: CaptureClient
    start_worker: Callable[[], RayWorker]
    start_proxy: Callable[[str, int | None], RayProxy]
    nodes: Callable[[], Awaitable[Collection[str]]]


@asynccontextmanager
async def open_run(config: CaptureConfig, rollout: str) -> AsyncIterator[OpenRun]:
    """Start or join Ray and the owner; what was started here ends with it. Blocks the event loop while it starts.

    Args:
        rollout: the rollout function's import path.
    """
    own_ray = not ray.is_initialized()
    api.initialise_ray(config.ray)
    try:
        joined = not config.observability_enabled or _owner_name(config) in named_actors(config.capture.namespace)
        capture = _start(config)
        try:
            spec = WorkerSpec(rollout, (os.getcwd(),), capture, config.collect.rollout_timeout_s)
            yield OpenRun(capture, ray_workers(spec, config.collect), ray_proxies(config.proxy, capture), ray_nodes())
        finally:
            await _leave(capture, stop_owner=not joined)
    finally:
        if own_ray:
            ray.shutdown()


def _start(config: CaptureConfig) -> CaptureClient:
    """The owner's client. An embedded Ray that was killed with its driver may take a moment to die, its owner too.

    Raises:
        DirectoryHeld: a live owner has it, and still has once the wait is over.
    """
    patience_s = EMBEDDED_DIES_WITHIN_S if config.ray.address == "local" else 0.0
    deadline = time.monotonic() + patience_s
    told = False
    while True:
        try:
            return api.start(config)
        except DirectoryHeld as error:
            held = f"{config.directory} is held by a live owner ({_who(config.directory)})"
            if time.monotonic() >= deadline:
                raise DirectoryHeld(
                    f"{held}. Nothing was changed; wait until its run ends, end it with `gym-capture stop "
                    f"{config.directory}`, or give another model_call_capture_dir.",
                    **error.fields,
                ) from error
            if not told:
                logger.warning("%s; waiting up to %g s in case its run was killed", held, patience_s)
                told = True
        except OwnerUnavailable as error:
            if not error.fields.get("frozen"):
                raise
            raise OwnerUnavailable(
                f"the owner of {config.directory} ({_who(config.directory)}) does not answer: the node that it runs on "
                "may be frozen. Nothing was changed; see `ray list actors`, and run again once it answers or is gone.",
                **error.fields,
            ) from error


def _who(directory: Path) -> str:
    """The owner's process and node, as the directory names them."""
    try:
        owner = owner_of(directory)
    except GymCaptureError:
        owner = None
    if owner is None:
        return "unknown"
    return f"pid {owner.identity.pid}, node {owner.identity.node or 'unknown'}"


def _owner_name(config: CaptureConfig) -> str:
    return config.capture.name or default_actor_name(config.directory)


async def _leave(capture: CaptureClient, *, stop_owner: bool) -> None:
    """End an owner that was started here, so that the directory is at rest, and this process's client."""
    try:
        if stop_owner:
            await capture.stop()
    except GymCaptureError as error:
        logger.warning("the owner could not be stopped (%s); what it acknowledged is on disk", error)
    finally:
        await capture.close()
