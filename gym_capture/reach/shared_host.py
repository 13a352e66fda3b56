"""One host for each run and process, whoever opens clients: `start`, `connect`, or a client that arrives pickled.

A run of several shards has a core for each in it. A core outlives its clients, since a worker's next task brings
another one; when a core for another run is made, those that nobody can need any more are ended.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from gym_capture.client.host import Host
from gym_capture.client.operations import Flush, Operation
from gym_capture.client.options import ClientOptions
from gym_capture.client.work_aside import work_done
from gym_capture.errors import ClientClosed
from gym_capture.model.clock import Clock
from gym_capture.model.entropy import Entropy

_ENDING_S = 1.0

T = TypeVar("T")
Key = tuple[Hashable, ...]
"""Run, transport, and what is redacted."""


class _Core:
    """A core and the clients that use it; the last one to close ends it."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.users: weakref.WeakSet[SharedHost] = weakref.WeakSet()

    def needless(self) -> bool:
        """Nobody holds a client of it, it has nothing left to say, and no owner to say it to."""
        if self.users:
            return False
        stats = self.host.core_stats()
        # Whatever is handed in without a client that waits belongs to a claim, which is open until that is answered.
        return not stats or not (stats["connected"] or stats["unanswered"] or stats["open_claims"])


_cores: dict[Key, _Core] = {}
_forgotten: list[_Core] = []
"""Those that only the clients have that share them already."""
_lock = threading.Lock()


def share_host(key: Key, make: Callable[[], Host]) -> SharedHost:
    """A client's share in the core of a run; `make` makes the core when this is the first."""
    with _lock:
        core = _cores.get(key)
        needless = [] if core is not None else _needless()
        if core is None:
            core = _cores[key] = _Core(make())
        share = SharedHost(key, core)
        core.users.add(share)
    if needless:
        threading.Thread(target=_end, args=(needless,), name="gym_capture-ending", daemon=True).start()
    return share


def _needless() -> list[Host]:
    """Take out the cores of runs that are over: each would look for its owner for as long as this process lives."""
    found = [key for key, core in _cores.items() if core.needless()]
    hosts = [_cores.pop(key).host for key in found]
    hosts += [core.host for core in _forgotten if core.needless()]
    _forgotten[:] = [core for core in _forgotten if core.host not in hosts]
    return hosts


def _end(hosts: list[Host]) -> None:
    for host in hosts:
        asyncio.run(host.close(_ENDING_S))


def forget_core(key: Key) -> None:
    """Let the next client make a core of its own; clients that share the present one keep it."""
    with _lock:
        core = _cores.pop(key, None)
        if core is not None:
            _forgotten.append(core)


class SharedHost:
    """What one client holds of a core (a `client.host.Host`). Made by `share_host`."""

    def __init__(self, key: Key, core: _Core) -> None:
        self._key = key
        self._core = core
        self._closed = False

    @property
    def options(self) -> ClientOptions:
        """The limits and times of whoever opened the core first."""
        return self._core.host.options

    @property
    def clock(self) -> Clock:
        """Where calls' times come from."""
        return self._core.host.clock

    @property
    def entropy(self) -> Entropy:
        """Where ids come from."""
        return self._core.host.entropy

    @property
    def transport_name(self) -> str:
        """`stream` or `ray`."""
        return self._core.host.transport_name

    @property
    def incarnation(self) -> object:
        """Another one after a fork."""
        return self._core.host.incarnation

    def perform(self, operation: Operation) -> Coroutine[Any, Any, Any]:
        """Hand in an operation and wait for its value.

        Raises:
            ClientClosed: this client was closed, whoever else goes on using the core.
        """
        if self._closed:
            raise ClientClosed("this capture client is closed; open a new one with connect()")
        return self._core.host.perform(operation)

    def post(self, operation: Operation) -> None:
        """Hand in an operation without waiting."""
        self._core.host.post(operation)

    async def foreign(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine that is not made of operations only."""
        return await self._core.host.foreign(work)

    def core_stats(self) -> dict[str, Any]:
        """The core's counters."""
        return self._core.host.core_stats()

    async def close(self, timeout_s: float) -> bool:
        """Wait until all that was handed in is answered; the last client of the core ends it."""
        await work_done(self, timeout_s)
        with _lock:
            if self._closed:
                return True
            self._closed = True
            self._core.users.discard(self)
            last = not self._core.users
            if last and _cores.get(self._key) is self._core:
                del _cores[self._key]
            elif last and self._core in _forgotten:
                _forgotten.remove(self._core)
        if last:
            return await self._core.host.close(timeout_s)
        return bool(await self._core.host.perform(Flush(timeout_s)))


def _after_fork() -> None:
    # A lock that another thread held at the fork would never be released in the child.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
