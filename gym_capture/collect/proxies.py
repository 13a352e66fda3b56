"""The proxies of a run: so many on each node, started again where one dies. Free of Ray."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from gym_capture.errors import GymCaptureError, ProxyUnavailable

logger = logging.getLogger(__name__)

START_TRIES = 3
"""Proxies in a row that may fail to start, in one place, before that place is given up."""

TRY_AGAIN_S = 0.5
"""Between two tries, times their number: a dead process's port is free a moment later."""

NODES_EVERY_S = 5.0


class ProxyLost(Exception):
    """The proxy's process (or its node) is gone."""


@dataclass(frozen=True, slots=True)
class ProxyAddress:
    """A proxy that can be called: its node, and `http://host:port`."""

    node: str
    url: str


class Proxy(Protocol):
    """One proxy process."""

    async def start(self) -> str:
        """Its URL, once it listens. Raises ProxyLost, ProxyUnavailable, or another GymCaptureError when none could."""

    async def lost(self) -> str:
        """Returns once its process is gone, with what is known of why."""

    async def drain(self) -> None:
        """Let its requests finish and its captures reach the disk. Raises ProxyLost."""

    def kill(self) -> None:
        """End its process at once; also when it is dead already."""


class _Place:
    """One proxy's place on a node. Its port stays once it has one, so that callers find the next one there too."""

    __slots__ = ("given_up", "node", "port", "proxy", "task", "up", "url")

    def __init__(self, node: str) -> None:
        self.node = node
        self.port: int | None = None
        self.proxy: Proxy | None = None
        self.url: str | None = None
        self.up = False
        self.given_up = False
        self.task: asyncio.Task[None] | None = None


class ProxyFleet:
    """Keeps `replicas` proxies on each node.

    Args:
        launch: makes a proxy process on a node, to listen on a port (None: as configured); returns at once.
        nodes: the ids of the nodes that are alive.
        replicas: proxies on each.
    """

    def __init__(
        self,
        launch: Callable[[str, int | None], Proxy],
        nodes: Callable[[], Awaitable[Collection[str]]],
        replicas: int,
    ) -> None:
        self._launch = launch
        self._nodes = nodes
        self._replicas = replicas
        self._places: list[_Place] = []
        self._changed = asyncio.Condition()
        self._watch: asyncio.Task[None] | None = None
        self._error: GymCaptureError | None = None
        self.deaths = 0

    async def open(self) -> None:
        """Start them all; returns when the first can be called.

        Raises:
            GymCaptureError: none can be started.
        """
        await self._follow_nodes()
        self._watch = asyncio.create_task(self._follow())
        async with self._changed:
            await self._changed.wait_for(lambda: self._error is not None or any(each.up for each in self._places))
        self.current()

    def current(self) -> tuple[ProxyAddress, ...]:
        """Those that can be called now; when all are starting again, where they will be.

        Raises:
            GymCaptureError: there are none any more.
        """
        if self._error is not None:
            raise self._error
        known = [each for each in self._places if each.url is not None and not each.given_up]
        chosen = [each for each in known if each.up] or known
        return tuple(ProxyAddress(each.node, str(each.url)) for each in chosen)

    async def close(self) -> None:
        """Drain them all, then end them."""
        tasks = [each.task for each in self._places if each.task is not None]
        if self._watch is not None:
            tasks.append(self._watch)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.gather(*(self._end(each) for each in self._places))
        self._places.clear()

    async def _end(self, place: _Place) -> None:
        proxy, place.proxy = place.proxy, None
        if proxy is None:
            return
        try:
            if place.up:
                await proxy.drain()
        except ProxyLost as error:
            logger.warning(
                "the proxy %s on node %s was lost as it was drained (%s); the calls that it had open become gaps of "
                "their rollouts",
                place.url,
                place.node,
                error,
            )
        finally:
            proxy.kill()

    # -- nodes --------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(NODES_EVERY_S)
            try:
                await self._follow_nodes()
            except GymCaptureError as error:
                logger.warning("the cluster's nodes cannot be listed (%s); asked again later", error)

    async def _follow_nodes(self) -> None:
        alive = set(await self._nodes())
        for place in [each for each in self._places if each.node not in alive]:
            self._places.remove(place)
            if place.task is not None:
                place.task.cancel()
            if place.proxy is not None:
                place.proxy.kill()
        for node in sorted(alive - {each.node for each in self._places}):
            for _ in range(self._replicas):
                place = _Place(node)
                self._places.append(place)
                place.task = asyncio.create_task(self._keep(place))

    # -- one place ----------------------------------------------------------------------------------------------

    async def _keep(self, place: _Place) -> None:
        """Keep a proxy in this place."""
        while await self._bring_up(place):
            proxy = place.proxy
            if proxy is None:
                return
            reason = await proxy.lost()
            self.deaths += 1
            logger.warning(
                "the proxy %s on node %s died (%s) and is started again; the calls that it had open become gaps of "
                "their rollouts",
                place.url,
                place.node,
                reason,
            )
            place.up = False
            proxy.kill()

    async def _bring_up(self, place: _Place) -> bool:
        reason = ""
        for tried in range(1, START_TRIES + 1):
            proxy = place.proxy = self._launch(place.node, place.port)
            try:
                url = await proxy.start()
            except (ProxyLost, ProxyUnavailable) as error:
                proxy.kill()
                reason = str(error)
                logger.warning("a proxy on node %s did not start: %s", place.node, reason)
                if tried < START_TRIES:
                    await asyncio.sleep(TRY_AGAIN_S * tried)
                continue
            except GymCaptureError as error:
                proxy.kill()
                await self._tell(error)
                return False
            place.url, place.port, place.up = url, urlsplit(url).port, True
            await self._tell()
            return True
        place.proxy, place.given_up = None, True
        logger.error("node %s goes on without this proxy: %d in a row did not start", place.node, START_TRIES)
        if all(each.given_up for each in self._places):
            await self._tell(
                ProxyUnavailable(
                    f"{START_TRIES} proxies in a row did not start ({reason}). What is finished is kept; mend the "
                    "cause and run again to go on from there."
                )
            )
        return False

    async def _tell(self, error: GymCaptureError | None = None) -> None:
        async with self._changed:
            self._error = self._error or error
            self._changed.notify_all()


def choose_proxy(proxies: Sequence[ProxyAddress], node: str | None, rollout_id: str) -> str | None:
    """The URL that a rollout calls: of a proxy on its own node where there is one; rollouts spread over them.

    Args:
        proxies: those that can be called.
        node: the rollout's; None: unknown.
        rollout_id: the same id finds the same proxy, as long as they stay.
    """
    near = [each for each in proxies if each.node == node] or list(proxies)
    if not near:
        return None
    near.sort(key=lambda each: each.url)
    return near[zlib.crc32(rollout_id.encode()) % len(near)].url
