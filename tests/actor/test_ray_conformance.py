"""The transports' one suite against real owner actors: through Ray calls, and over their streams.

An actor takes its time to start, and what makes the configurations differ is said by clients or by the number of
shards. So all tests share the actors of one run for each number, and begin with every rollout cleared.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gym_capture.actor.launch import launch
from gym_capture.client.client import CaptureClient
from gym_capture.client.ray_transport import RayLink, RayTransport
from gym_capture.client.sharded_host import host_over
from gym_capture.client.stream_transport import StreamTransport
from gym_capture.client.transport import Transport
from gym_capture.config import load_config
from gym_capture.model.endpoint import Endpoint
from gym_capture.model.shards import shard_of
from gym_capture.reach.locators import ActorLocator
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.conformance import ROLLOUTS, TransportConformance
from gym_capture.testing.cutting_proxy import CuttingProxy
from tests.configurations import CONFIGURATIONS, Configuration
from tests.ray_cluster import DEADLINE_S, own_namespace

pytestmark = pytest.mark.ray


class Actors:
    """The owner actors of a run, one for each shard. Those that are killed Ray restarts by itself.

    Args:
        ray: the module, connected.
        directory: the run's; made when absent.
        namespace: the actors'.
        shards: how many.
    """

    def __init__(self, ray: Any, directory: Path, namespace: str, shards: int) -> None:
        self._ray = ray
        capture = {"namespace": namespace, "shards": shards, "endpoint": {"host": "127.0.0.1"}}
        given = load_config({"model_call_capture_dir": str(directory), "capture": capture})
        first = launch(given, timeout_s=DEADLINE_S)
        launched = [first, *first.further]
        self.handles = [each.handle for each in launched]
        self.locators = [ActorLocator(each.spec.name, each.spec.namespace) for each in launched]

    def answers(self, asked: list[Any]) -> list[Any]:
        """What calls that were made return."""
        found: list[Any] = self._ray.get(asked, timeout=DEADLINE_S)
        return found


ActorsOf = Callable[[int], Actors]


@pytest.fixture(scope="module")
def actors_of(ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActorsOf]:
    """The actors of a run with so many shards, started when they are first asked for."""
    directories: list[Path] = []
    with ExitStack() as namespaces:

        @cache
        def actors(shards: int) -> Actors:
            directories.append(tmp_path_factory.mktemp("shared") / "captures")
            return Actors(ray_cluster, directories[-1], namespaces.enter_context(own_namespace(ray_cluster)), shards)

        yield actors
    for directory in directories:  # what else the suite captured, no test would have found cleared
        assert set(CaptureStore(directory).rollout_ids()) <= set(ROLLOUTS)


class ActorOwners:
    """The owners of one test: actors that others used before it.

    Args:
        actors: they.
        history: whether the suite's clients store what repeats once.
    """

    def __init__(self, actors: Actors, history: bool) -> None:
        self.actors = actors
        self.history = history
        client = CaptureClient(host_over([RayTransport(each) for each in actors.locators]))
        client.sync.clear(ROLLOUTS, timeout_s=DEADLINE_S)
        assert client.sync.close(DEADLINE_S)

    def kill(self) -> None:
        """End processes as the kernel would: of several, that of the rollout that the suite does it to, and one more.

        All of them die at once in tests/client/test_conformance.py, where it costs nothing.
        """
        shards = len(self.actors.handles)
        first = shard_of(ROLLOUTS[1], shards)
        ended = {first, (first + 1) % shards}
        for ready in self.actors.answers([self.actors.handles[shard].ready.remote() for shard in sorted(ended)]):
            os.kill(ready.pid, signal.SIGKILL)

    def start(self) -> None:
        """Wait until they are back."""
        self.actors.answers([handle.ready.remote() for handle in self.actors.handles])

    def transport(self) -> Transport:
        """Nobody's: each shard has its own."""
        raise NotImplementedError


class PipedOwners(ActorOwners):
    """Reached through Ray calls; cutting closes the pipes at the owners."""

    def __init__(self, actors: Actors, history: bool) -> None:
        super().__init__(actors, history)
        self._pipes: list[tuple[Any, str]] = []

    def transports(self) -> list[Transport]:
        """Transports whose pipes are known here."""
        return [
            _Recording(RayTransport(locator), handle, self._pipes)
            for locator, handle in zip(self.actors.locators, self.actors.handles, strict=True)
        ]

    def cut(self) -> None:
        """Close every pipe."""
        pipes = list(self._pipes)
        self._pipes.clear()
        self.actors.answers([handle.tunnel_close.remote(pipe) for handle, pipe in pipes])

    def cut_soon(self, chance: random.Random) -> None:
        """Close every pipe, between whatever calls are under way."""
        self.cut()


class _Recording:
    name = "ray"

    def __init__(self, inner: RayTransport, handle: Any, pipes: list[tuple[Any, str]]) -> None:
        self._inner = inner
        self._handle = handle
        self._pipes = pipes

    async def connect(self) -> RayLink:
        link = await self._inner.connect()
        self._pipes.append((self._handle, link._pipe))
        return link


class StreamedOwners(ActorOwners):
    """Reached over their streams, through proxies that cut them."""

    def __init__(self, actors: Actors, history: bool) -> None:
        super().__init__(actors, history)
        self._proxied = [_Proxied(locator) for locator in actors.locators]

    def transports(self) -> list[Transport]:
        """Streams over the proxies."""
        return [StreamTransport(each) for each in self._proxied]

    def cut(self) -> None:
        """Break every connection."""
        for each in self._proxied:
            each.proxy.cut()

    def cut_soon(self, chance: random.Random) -> None:
        """Break one shard's connections a few kilobytes further on."""
        chance.choice(self._proxied).proxy.cut_after = chance.randrange(20_000)

    def close(self) -> None:
        """End the proxies."""
        for each in self._proxied:
            each.proxy.close()


class _Proxied:
    def __init__(self, locator: ActorLocator) -> None:
        self._locator = locator
        self.proxy = CuttingProxy()

    async def locate(self) -> Endpoint:
        found = await self._locator.locate()
        self.proxy.target = (found.host, found.port)
        return Endpoint(self.proxy.host, self.proxy.port, found.token, found.run, found.epoch)


exhaustive = pytest.mark.skipif(
    "GYM_CAPTURE_EXHAUSTIVE" not in os.environ,
    reason="tests/client/test_conformance.py has the stream in all configurations; make conformance has all here",
)


def some_of(*chosen: Configuration) -> list[Any]:
    """All configurations, as a fixture's parameters: those that are not chosen run in `make conformance` alone."""
    return [each if each in chosen else pytest.param(each, marks=exhaustive) for each in CONFIGURATIONS]


class TestThroughRayCalls(TransportConformance):
    @pytest.fixture(params=some_of(Configuration(1, True), Configuration(4, False)), ids=str)
    def owner(self, actors_of: ActorsOf, request: pytest.FixtureRequest) -> PipedOwners:
        configuration: Configuration = request.param
        return PipedOwners(actors_of(configuration.shards), configuration.history)


class TestOverTheActorsStreams(TransportConformance):
    @pytest.fixture(params=some_of(Configuration(1, True)), ids=str)
    def owner(self, actors_of: ActorsOf, request: pytest.FixtureRequest) -> Iterator[StreamedOwners]:
        configuration: Configuration = request.param
        owners = StreamedOwners(actors_of(configuration.shards), configuration.history)
        yield owners
        owners.close()
