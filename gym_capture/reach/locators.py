"""Where an owner listens, asked anew for every connection: of its directory, of its actor, or of both."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from gym_capture.client.ray_calls import call_actor, check_connected, never_starting
from gym_capture.client.ray_transport import Tunnel
from gym_capture.client.stream_transport import Locator
from gym_capture.directory.locate import endpoint_of
from gym_capture.errors import CaptureDirectoryError, GymCaptureError, OwnerNotFound, OwnerUnavailable
from gym_capture.model.endpoint import Endpoint
from gym_capture.model.shards import run_actor_name
from gym_capture.reach.blocking_calls import in_thread

ACTOR_ANSWER_S = 20.0
"""How long an actor may take to say where it listens: it may be restarting."""


_inherited = False
"""Whether this process is a fork of one that was connected to Ray. Ray's threads stayed there: its calls hang here."""


def ray_is_initialised() -> bool:
    """Whether this process is connected to a Ray cluster, and not by its parent's connection. Never loads Ray."""
    ray = sys.modules.get("ray")
    return not _inherited and ray is not None and bool(getattr(ray, "is_initialized", lambda: False)())


def _after_fork() -> None:
    global _inherited
    _inherited = _inherited or ray_is_initialised()


os.register_at_fork(after_in_child=_after_fork)


class DirectoryLocator:
    """Asks the capture directory.

    Args:
        directory: its path.
        run: the run that is meant: on another node another directory may lie under the same path.
    """

    def __init__(self, directory: str, run: str) -> None:
        self._directory = directory
        self._run = run

    async def locate(self) -> Endpoint:
        """Where the owner listens.

        Raises:
            OwnerNotFound, OwnerUnavailable, CaptureDirectoryError: as `endpoint_of`; the directory of another run
                tells nothing.
        """
        endpoint = await in_thread(lambda: endpoint_of(self._directory))
        if endpoint.run != self._run:
            raise OwnerUnavailable(
                f"{self._directory} on this node belongs to run {endpoint.run}, not to {self._run}: another file "
                "system is mounted there. Nothing was sent; mount the run's, or connect by name through Ray."
            )
        return endpoint


class ActorLocator:
    """Asks the named actor, through Ray. It is the client's lookup for Ray pipes too.

    Args:
        name, namespace: the actor's.
        was_stopped: whether the directory says that the owner ended cleanly (blocks); asked when there is no actor.
    """

    def __init__(self, name: str, namespace: str, was_stopped: Callable[[], bool] = lambda: False) -> None:
        self._name = name
        self._namespace = namespace
        self._was_stopped = was_stopped

    async def locate(self) -> Endpoint:
        """Where the owner listens. An actor that is being restarted answers once it serves.

        Raises:
            OwnerNotFound: there is no actor of that name; `stopped` says whether the owner ended cleanly.
            OwnerUnavailable: it does not answer now, or this process is not connected to Ray.
        """
        return (await self._ask())[1]

    async def find(self) -> Tunnel:
        """The actor, and what a hello must show it. Raises like `locate`."""
        actor, endpoint = await self._ask()
        return Tunnel(actor, endpoint.token, endpoint.run)

    async def _ask(self) -> tuple[Any, Endpoint]:
        if not ray_is_initialised():
            why = (
                "was forked off one that is connected to Ray, whose calls hang in it"
                if _inherited
                else ("is not connected to Ray")
            )
            raise OwnerUnavailable(
                f"actor {self._name} cannot be asked: this process {why}. Nothing was sent; connect by the capture "
                "directory, or in a process that calls ray.init() itself."
            )
        from ray.exceptions import RayError

        try:
            # Ray's lookup blocks on the cluster's control store.
            actor = await in_thread(lambda: find_actor(self._name, self._namespace))
            async with asyncio.timeout(ACTOR_ANSWER_S):
                return actor, await call_actor(actor.endpoint)
        except OwnerNotFound as error:
            error.fields["stopped"] = await in_thread(self._was_stopped)
            raise
        except GymCaptureError:
            raise
        except (RayError, TimeoutError, AttributeError) as error:
            # AttributeError: Ray is being shut down in this process under the lookup.
            why = str(error).partition("\n")[0] or "no answer"
            raise OwnerUnavailable(
                f"actor {self._name} did not say where it listens ({why}). Nothing was sent; it is asked again."
            ) from error


def find_actor(name: str, namespace: str) -> Any:
    """The handle of a live owner. Blocks; Ray is initialised.

    Raises:
        OwnerNotFound: there is none of that name; those of the namespace are its `candidates`.
    """
    import ray

    check_connected()
    try:
        return never_starting(ray.get_actor)(name, namespace)
    except ValueError:
        found = named_actors(namespace)
        raise OwnerNotFound(
            f"there is no live actor {name} in namespace {namespace} (there: {', '.join(found) or 'none'}). What was "
            "captured is safe in its directory; start() its owner again, or connect to another one.",
            candidates=found,
        ) from None


def named_actors(namespace: str) -> list[str]:
    """The names of the live actors of a namespace, sorted; a run of several shards has one. Blocks.

    Ray is initialised.
    """
    import ray

    check_connected()
    listed = never_starting(ray.util.list_named_actors)(all_namespaces=True)
    found = {entry["name"] for entry in listed if entry["namespace"] == namespace}
    return sorted(name for name in found if run_actor_name(name) == name or run_actor_name(name) not in found)


class FirstLocator:
    """Asks several one after the other, until one knows.

    Args:
        locators: the preferred one first.
    """

    def __init__(self, locators: Sequence[Locator]) -> None:
        self._locators = locators

    async def locate(self) -> Endpoint:
        """The first answer.

        Raises:
            OwnerNotFound: all say that there is no owner.
            OwnerUnavailable, CaptureDirectoryError: some could not tell.
        """
        errors: list[GymCaptureError] = []
        for locator in self._locators:
            try:
                return await locator.locate()
            except (OwnerNotFound, OwnerUnavailable, CaptureDirectoryError) as error:
                errors.append(error)
        raise next((error for error in errors if not isinstance(error, OwnerNotFound)), errors[-1])
