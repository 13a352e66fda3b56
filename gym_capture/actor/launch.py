"""Starting the owner: the directory and its run's marker, then a named, detached actor, made or found."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError, RuntimeEnvSetupError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gym_capture.actor.capture_actor import actor_class
from gym_capture.actor.naming import differing_keys
from gym_capture.actor.owner_spec import OwnerSpec, Ready, spec_of
from gym_capture.config import CaptureConfig, PlacementConfig
from gym_capture.errors import ConfigError, NameTaken, OwnerUnavailable, SettingsDiffer, from_wire
from gym_capture.storage.posix_files import make_capture_directory
from gym_capture.storage.run_layout import create_or_adopt_shards

START_TIMEOUT_S = 120.0
"""How long Ray may take to place the actor, and the actor to recover the directory, before `launch` gives up."""

FROZEN_AFTER_S = 20.0
"""How long `launch(takeover=True)` waits for an actor of the same name to answer before it ends that one."""

_RETRY_PAUSE_S = 0.1
_STOP_S = 10.0

_CAUSE = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): ")
"""A line that names an exception, in a worker's traceback."""


class Launched(NamedTuple):
    """A live owner; of a run of several shards, that of shard 0.

    Fields: the actor's `handle`, what it said of itself, the spec that this start asked for, whether this start
    `created` the actor (or found it), and the owners of the `further` shards, in order.
    """

    handle: Any
    ready: Ready
    spec: OwnerSpec
    created: bool
    further: tuple[Launched, ...] = ()


def launch(
    config: CaptureConfig,
    *,
    takeover: bool = False,
    timeout_s: float = START_TIMEOUT_S,
    frozen_after_s: float = FROZEN_AFTER_S,
) -> Launched:
    """Get or create the owner of the configured directory. Blocks; Ray must be initialised in this process.

    Args:
        takeover: fence another live owner of the directory, and end an actor of the same name that does not answer.
        timeout_s: how long all of it may take.
        frozen_after_s: with `takeover`, how long such an actor may take.

    Raises:
        ConfigError: Ray is not initialised, the settings cannot work, or gym_capture cannot be imported where the
            actor is to run.
        CaptureDirectoryError: the directory cannot be made, or cannot be used where the actor runs.
        MissingRunMarker: the directory has a log whose `RUN` file was lost; nothing was written.
        NameTaken, SettingsDiffer, DirectoryHeld: see their classes; nothing was changed. The directory of a run with
            another number of shards is a `SettingsDiffer`, too.
        OwnerUnavailable: no owner answered within `timeout_s`.
    """
    if not ray.is_initialized():
        raise ConfigError(
            "Ray is not initialised in this process, so no owner can be started or found through it. Nothing was "
            "changed; call ray.init() first, or gym_capture.start(), which does it as config.ray says."
        )
    make_capture_directory(config.directory)
    shards = config.capture.shards
    run = create_or_adopt_shards(str(config.directory), shards).run
    start = uuid.uuid4().hex
    specs = [spec_of(config, run, start=start, takeover=takeover, shard=shard) for shard in range(shards)]
    kind = actor_class(config.capture.max_concurrency)
    deadline = time.monotonic() + timeout_s
    options = [actor_options(spec, config.capture.placement) for spec in specs]
    try_one = partial(_launch, kind, deadline=deadline, timeout_s=timeout_s, frozen_after_s=frozen_after_s)
    first, *further = _all_or_none([partial(try_one, *each) for each in zip(options, specs, strict=True)])
    return first._replace(further=tuple(further))


def _all_or_none(starts: Sequence[Callable[[], Launched]]) -> list[Launched]:
    """Start the owners of all shards at once. Half a run is no run: if one fails, those that were created go again."""
    if len(starts) == 1:
        return [starts[0]()]
    with ThreadPoolExecutor(len(starts), thread_name_prefix="gym_capture-launch") as threads:
        futures = [threads.submit(start) for start in starts]
    errors = [error for future in futures if (error := future.exception()) is not None]
    launched = [future.result() for future in futures if future.exception() is None]
    if errors:
        for each in launched:
            if each.created:
                _stop(each.handle)
        raise errors[0]
    return launched


def _launch(
    kind: Any, options: dict[str, Any], spec: OwnerSpec, *, deadline: float, timeout_s: float, frozen_after_s: float
) -> Launched:
    while True:
        launched = _try_launch(kind, options, spec, deadline, frozen_after_s)
        if launched is not None:
            return launched
        if time.monotonic() > deadline:
            raise OwnerUnavailable(
                f"no owner of {spec.directory} came up within {timeout_s:g} s: its actor {spec.name} (namespace "
                f"{spec.namespace}) died while it started. What was captured is safe; see its log in Ray's session "
                "directory, then start again."
            )
        time.sleep(_RETRY_PAUSE_S)


def actor_options(spec: OwnerSpec, placement: PlacementConfig) -> dict[str, Any]:
    """Ray's options for an owner's actor. Ray spreads the shards of a run over the nodes, as far as it is free to.

    Raises:
        ConfigError: the placement names a node that is no node id.
    """
    options: dict[str, Any] = {
        "name": spec.name,
        "namespace": spec.namespace,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        # Every method may run twice: see CaptureActor's docstring for why that is safe.
        "max_task_retries": -1,
    }
    if placement.resources:
        options["resources"] = dict(placement.resources)
    if placement.node != "any" and not (placement.node == "driver" and spec.shard):
        options["scheduling_strategy"] = _affinity(placement)
    elif spec.shards > 1:
        options["scheduling_strategy"] = "SPREAD"
    return options


def _affinity(placement: PlacementConfig) -> NodeAffinitySchedulingStrategy:
    if placement.node == "driver":
        here = ray.get_runtime_context().get_node_id()
        return NodeAffinitySchedulingStrategy(here, soft=True)
    try:
        return NodeAffinitySchedulingStrategy(placement.node, soft=False)
    except ValueError as error:
        raise ConfigError(
            f"capture.placement.node is {placement.node!r}: give driver, any, or a node id as ray.nodes() shows it."
        ) from error


def _try_launch(
    kind: Any, options: dict[str, Any], spec: OwnerSpec, deadline: float, frozen_after_s: float
) -> Launched | None:
    """One attempt; None when the actor that was found died under our hands (it ends, or another start failed)."""
    found = _is_there(spec)
    try:
        handle = kind.options(**options).remote(spec)
    except ValueError:
        # Ray looked the name up between the death of one actor and the birth of the next.
        return None
    if not hasattr(handle, "ready"):
        raise NameTaken(
            f"actor {spec.name} (namespace {spec.namespace}) is alive and is no capture owner. Nothing was changed; "
            "give this run another capture.name or capture.namespace."
        )
    left = max(0.0, deadline - time.monotonic())
    frozen_counts = spec.takeover and found
    try:
        ready: Ready = ray.get(handle.ready.remote(), timeout=min(left, frozen_after_s) if frozen_counts else left)
    except RuntimeEnvSetupError as error:
        raise ConfigError(
            f"Ray cannot set up ray.runtime_env for the owner's actor {spec.name} (namespace {spec.namespace}): "
            f"{error}. What was captured is safe; correct ray.runtime_env, then start again."
        ) from error
    except ActorDiedError as error:
        if error.actor_init_failed:
            raise _cannot_be_made(spec, error) from error
        return None
    except ActorUnavailableError:
        return None
    except GetTimeoutError as error:
        if frozen_counts and time.monotonic() < deadline:
            ray.kill(handle, no_restart=True)
            return None
        if not found:
            _end(handle)
            raise OwnerUnavailable(
                f"Ray has not started actor {spec.name} (namespace {spec.namespace}) in time: it may have no node that "
                "fits capture.placement, or be busy. The actor was withdrawn; see `ray status`, correct the placement, "
                "start again."
            ) from error
        raise OwnerUnavailable(
            f"actor {spec.name} (namespace {spec.namespace}) was there before and does not answer: the node that it "
            "runs on may be frozen. Nothing was changed; see `ray list actors`, or start with takeover=True.",
            frozen=True,
        ) from error
    created = ready.start == spec.start
    same_place = os.path.realpath(ready.directory) == os.path.realpath(spec.directory)
    same_run = (ready.run, ready.shard, same_place) == (spec.run, spec.shard, True)
    if ready.error is not None:
        if created or same_run:
            _end(handle)
        if created:
            raise from_wire(*ready.error)
        return None
    if not same_run:
        raise NameTaken(
            f"actor {spec.name} (namespace {spec.namespace}) is alive and serves run {ready.run} in "
            f"{ready.directory}, not run {spec.run} in {spec.directory}. Nothing was changed; stop that owner, or give "
            "this run another capture.name.",
            run=ready.run,
            directory=ready.directory,
        )
    keys = differing_keys(spec.settings, ready.settings)
    if keys:
        shown = ", ".join(f"{key}: {ready.settings.get(key)!r} there, {spec.settings.get(key)!r} here" for key in keys)
        raise SettingsDiffer(
            f"the owner of {spec.directory} is running with other settings ({shown}). Nothing was changed; start with "
            "the same settings, connect() without any, or stop the owner first.",
            keys=keys,
        )
    return Launched(handle, ready, spec, created)


def _cannot_be_made(spec: OwnerSpec, error: ActorDiedError) -> ConfigError:
    """The actor's class or spec could not be loaded where Ray put it; its constructor keeps other errors for `ready`.

    Another try would come to the same, until the deadline hides the cause.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # The worker's traceback ends in its cause.
    cause = next((line for line in reversed(lines) if _CAUSE.match(line)), lines[-1] if lines else "no cause given")
    return ConfigError(
        f"the owner's actor {spec.name} (namespace {spec.namespace}) cannot be made where Ray put it: {cause}. What "
        "was captured is safe and no owner runs. Ray's workers must be able to import gym_capture, the same version as "
        "here: install it in their environment, or bring it by ray.runtime_env; then start again.",
        cause=cause,
    )


def _is_there(spec: OwnerSpec) -> bool:
    try:
        ray.get_actor(spec.name, spec.namespace)
    except ValueError:
        return False
    return True


def _stop(handle: Any) -> None:
    try:
        ray.get(handle.stop.remote(), timeout=_STOP_S)
    except (RayError, GetTimeoutError):
        _end(handle)


def _end(handle: Any) -> None:
    try:
        ray.kill(handle, no_restart=True)
    except RayError:
        pass  # it is gone already, which is what is wanted
