"""The transports' one suite against a real owner actor: through Ray calls, and over its stream."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from gym_capture.actor.launch import launch
from gym_capture.client.ray_transport import RayLink, RayTransport
from gym_capture.client.stream_transport import StreamTransport
from gym_capture.client.transport import Transport
from gym_capture.config import load_config
from gym_capture.model.endpoint import Endpoint
from gym_capture.reach.locators import ActorLocator
from gym_capture.testing.conformance import TransportConformance
from gym_capture.testing.cutting_proxy import CuttingProxy
from tests.ray_cluster import DEADLINE_S

pytestmark = pytest.mark.ray


class ActorOwner:
    """An owner actor that can be killed; Ray restarts it by itself."""

    def __init__(self, ray: Any, config: dict[str, Any]) -> None:
        self._ray = ray
        launched = launch(load_config(config), timeout_s=DEADLINE_S)
        self.actor = launched.handle
        self.locator = ActorLocator(launched.spec.name, launched.spec.namespace)

    def kill(self) -> None:
        """End the process as the kernel would."""
        os.kill(self._ray.get(self.actor.ready.remote()).pid, signal.SIGKILL)

    def start(self) -> None:
        """Wait until it is back."""
        self._ray.get(self.actor.ready.remote(), timeout=DEADLINE_S)


class PipedOwner(ActorOwner):
    """Reached through Ray calls; cutting closes the pipes at the owner."""

    def __init__(self, ray: Any, config: dict[str, Any]) -> None:
        super().__init__(ray, config)
        self._pipes: list[str] = []

    def transport(self) -> Transport:
        """A transport whose pipes are known here."""
        return _Recording(RayTransport(self.locator), self._pipes)

    def cut(self) -> None:
        """Close every pipe."""
        pipes = list(self._pipes)
        self._pipes.clear()
        self._ray.get([self.actor.tunnel_close.remote(pipe) for pipe in pipes], timeout=DEADLINE_S)

    def cut_soon(self, chance: random.Random) -> None:
        """Close every pipe, between whatever calls are under way."""
        self.cut()


class _Recording:
    name = "ray"

    def __init__(self, inner: RayTransport, pipes: list[str]) -> None:
        self._inner = inner
        self._pipes = pipes

    async def connect(self) -> RayLink:
        link = await self._inner.connect()
        self._pipes.append(link._pipe)
        return link


class StreamedOwner(ActorOwner):
    """Reached over its stream, through a proxy that cuts it."""

    def __init__(self, ray: Any, config: dict[str, Any]) -> None:
        super().__init__(ray, config)
        self.proxy = CuttingProxy()

    async def locate(self) -> Endpoint:
        """Where the owner is reached: the proxy."""
        found = await self.locator.locate()
        self.proxy.target = (found.host, found.port)
        return Endpoint(self.proxy.host, self.proxy.port, found.token, found.run, found.epoch)

    def transport(self) -> Transport:
        """A stream over the proxy."""
        return StreamTransport(self)

    def cut(self) -> None:
        """Break every connection."""
        self.proxy.cut()

    def cut_soon(self, chance: random.Random) -> None:
        """Break every connection a few kilobytes further on."""
        self.proxy.cut_after = chance.randrange(20_000)


class TestThroughRayCalls(TransportConformance):
    @pytest.fixture
    def owner(self, ray_cluster: Any, capture_config: dict[str, Any]) -> Iterator[PipedOwner]:
        return PipedOwner(ray_cluster, capture_config)  # type: ignore[return-value]


class TestOverTheActorsStream(TransportConformance):
    @pytest.fixture
    def owner(self, ray_cluster: Any, capture_config: dict[str, Any]) -> Iterator[StreamedOwner]:
        owner = StreamedOwner(ray_cluster, capture_config)
        yield owner
        owner.proxy.close()
