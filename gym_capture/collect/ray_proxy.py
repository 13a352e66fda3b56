"""Proxies as Ray actors: the thin shell around `asgi.proxy_server.CapturingProxy`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gym_capture.asgi.proxy_address import addresses
from gym_capture.collect.proxies import ProxyLost
from gym_capture.collect.ray_worker import told
from gym_capture.config import ProxyConfig
from gym_capture.errors import GymCaptureError, from_wire
from gym_capture.extras import require_extra

if TYPE_CHECKING:
    from gym_capture.asgi.proxy_server import CapturingProxy
    from gym_capture.client.client import CaptureClient


class ProxyActor:
    """What runs in the proxy's process.

    Args:
        settings: the `proxy` section.
        capture: a client of the run's owner; here it is one of its own.
    """

    def __init__(self, settings: ProxyConfig, capture: CaptureClient) -> None:
        self._settings = settings
        self._capture = capture
        self._proxy: CapturingProxy | None = None
        self._ending: asyncio.Task[bool] | None = None

    async def start(self, port: int) -> tuple[str, str] | str:
        """Listen. Returns the URL, or class name and message of what is wrong."""
        try:
            require_extra("proxy", "a capturing proxy")
            from gym_capture.asgi.proxy_server import CapturingProxy

            proxy = CapturingProxy(self._settings, self._capture)
            host, reached_at = addresses(self._settings.host)
            url = await proxy.start(host, port, reached_at=reached_at)
        except GymCaptureError as error:
            return type(error).__name__, str(error)
        self._proxy = proxy
        self._ending = asyncio.create_task(proxy.ended())
        return url

    async def ended(self) -> None:
        """Returns when it has stopped; a process that is killed is heard of as an error of this call."""
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def drain(self) -> None:
        """Stop, and return once all that was captured is on disk, or cannot be."""
        if self._proxy is not None and self._ending is not None:
            self._proxy.stop()
            await asyncio.shield(self._ending)


class RayProxy:
    """One proxy process, an actor that Ray does not restart: the fleet does, and knows its port."""

    def __init__(self, actor: Any, port: int) -> None:
        self._actor = actor
        self._port = port

    async def start(self) -> str:
        """As `proxies.Proxy` says. Waits as long as Ray needs to place the actor."""
        try:
            found = await self._actor.start.remote(self._port)
        except RayError as lost:
            raise ProxyLost(told(lost)) from lost
        if not isinstance(found, str):
            raise from_wire(*found)
        return found

    async def lost(self) -> str:
        """As `proxies.Proxy` says."""
        try:
            await self._actor.ended.remote()
        except RayError as lost:
            return told(lost)
        return "it was told to stop"

    async def drain(self) -> None:
        """As `proxies.Proxy` says."""
        try:
            await self._actor.drain.remote()
        except RayError as lost:
            raise ProxyLost(told(lost)) from lost

    def kill(self) -> None:
        """End the process at once."""
        with contextlib.suppress(RayError):
            ray.kill(self._actor, no_restart=True)


def ray_proxies(settings: ProxyConfig, capture: CaptureClient) -> Callable[[str, int | None], RayProxy]:
    """What makes proxies for `proxies.ProxyFleet`. Ray must be initialised in this process."""
    kind = ray.remote(ProxyActor)
    shared = ray.put(capture)

    def launch(node: str, port: int | None) -> RayProxy:
        actor = kind.options(
            num_cpus=0,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(settings, shared)
        return RayProxy(actor, settings.port if port is None else port)

    return launch


def ray_nodes() -> Callable[[], Awaitable[Collection[str]]]:
    """What lists the cluster's nodes that are alive."""

    def listed() -> list[str]:
        found = ray.nodes()  # type: ignore[no-untyped-call]
        return [entry["NodeID"] for entry in found if entry["Alive"]]

    async def nodes() -> Collection[str]:
        try:
            return await asyncio.to_thread(listed)
        except RayError as error:
            raise GymCaptureError(told(error)) from error

    return nodes
