"""Where a client core runs: in a daemon thread (`core_thread`; `loop_host`: on a loop that is there already).

Callers of any thread and loop append operations to a deque and wake the core's loop once a burst. Appending takes no
lock, so a finalizer may do it at any moment.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from gym_capture.client.answer import Answer
from gym_capture.client.blocking_mode import is_blocking
from gym_capture.client.core import ClientCore
from gym_capture.client.core_thread import CoreThread, RunningCore
from gym_capture.client.operations import Ask, Flush, GiveUp, Operation, Rows
from gym_capture.client.options import ClientOptions
from gym_capture.client.transport import Transport
from gym_capture.client.trouble_log import logger
from gym_capture.client.work_aside import work_done
from gym_capture.errors import ClientClosed
from gym_capture.model.clock import Clock, SystemClock
from gym_capture.model.entropy import Entropy, SystemEntropy
from gym_capture.model.messages import Request

T = TypeVar("T")

_CLOSED = "this capture client is closed; open a new one with connect()"
_EXIT_FLUSH_S = 5.0


class Host(Protocol):
    """What handles and clients need of the place where the core runs."""

    @property
    def options(self) -> ClientOptions:
        """The client's limits and times."""

    @property
    def clock(self) -> Clock:
        """Where calls' times come from."""

    @property
    def entropy(self) -> Entropy:
        """Where ids come from."""

    @property
    def transport_name(self) -> str:
        """`stream`, `ray` or `in-process`."""

    @property
    def incarnation(self) -> object:
        """Another one after a fork: what was claimed before belongs to the parent process."""

    async def perform(self, operation: Operation) -> Any:
        """Hand in an operation and wait for its value. Cancelling the wait does not take the operation back."""

    def post(self, operation: Operation) -> None:
        """Hand in an operation without waiting. Safe in finalizers; ignored where no core runs."""

    async def foreign(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine that is not made of operations only, also for a blocking caller."""

    def core_stats(self) -> dict[str, Any]:
        """This process's counters."""

    async def close(self, timeout_s: float) -> bool:
        """Wait until all that was handed in is answered (at most `timeout_s`), then end. True: nothing was left."""


async def ask_owner(host: Host, request: Request, timeout_s: float) -> tuple[Any, bytes]:
    """The owner's answer to a request, and the message's body. Cancelling the wait takes the request back.

    Args:
        timeout_s: how long to wait for an owner that is away, seconds.

    Raises:
        OwnerUnavailable: it stayed away.
        GymCaptureError: what the owner answered.
    """
    answer: tuple[Any, bytes] = await perform_or_give_up(host, Ask(request, timeout_s))
    return answer


async def perform_or_give_up(host: Host, operation: Ask | Rows | Flush) -> Any:
    """Hand in an operation and wait for its value. Cancelling the wait takes it back, as far as it was not done."""
    try:
        return await host.perform(operation)
    except BaseException:
        if not operation.done:
            host.post(GiveUp(operation))
        raise


class CoreHost:
    """A core in a thread, started by the first operation, and anew in a forked child.

    Args:
        transport: makes links; holds no connection itself.
        options: limits and times.
        clock, entropy: time and randomness.
        thread: where the core runs, perhaps with those of other shards; None: in one of its own.
    """

    def __init__(
        self,
        transport: Transport,
        options: ClientOptions | None = None,
        *,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        thread: CoreThread | None = None,
    ) -> None:
        self.options = options or ClientOptions()
        _ = self.options.redaction  # a rule that cannot work here is told now, not inside a call
        self.clock = clock or SystemClock()
        self.entropy = entropy or SystemEntropy()
        self._transport = transport
        self._lock = threading.Lock()
        self._thread = thread or CoreThread()
        self._running: RunningCore | None = None
        self._closed = False
        _hosts.add(self)

    @property
    def transport_name(self) -> str:
        """`stream`, `ray` or `in-process`."""
        return self._transport.name

    @property
    def incarnation(self) -> object:
        """Another one after a fork."""
        return self._running

    @property
    def core(self) -> ClientCore:
        """The core that runs in this process; started when there is none. To be used in `loop` only."""
        return self._ensure().core

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The core's loop."""
        return self._ensure().loop

    def _ensure(self) -> RunningCore:
        running = self._running
        if running is not None:
            return running
        with self._lock:
            if self._closed:
                raise ClientClosed(_CLOSED)
            if self._running is None:
                self._running = self._thread.begin(self._transport, self.options, self.clock, self.entropy)
            return self._running

    def submit(self, operation: Operation) -> None:
        """Hand in an operation; its waiter is set.

        Raises:
            ClientClosed: the client was closed.
        """
        try:
            self._ensure().submit(operation)
        except RuntimeError as error:
            raise ClientClosed(_CLOSED) from error

    async def perform(self, operation: Operation) -> Any:
        """Hand in an operation and wait for its value."""
        if is_blocking():
            gate = operation.gate = threading.Lock()
            gate.acquire()
            self.submit(operation)
            gate.acquire()
        else:
            loop = operation.loop = asyncio.get_running_loop()
            answer = operation.answer = Answer(loop)
            try:
                self._ensure().submit_later(operation, loop)
            except RuntimeError as error:
                raise ClientClosed(_CLOSED) from error
            await answer
        if operation.error is not None:
            raise operation.error
        return operation.value

    def post(self, operation: Operation) -> None:
        """Hand in an operation without waiting."""
        running = self._running
        if running is None:
            return
        try:
            running.submit(operation)
        except RuntimeError:  # the thread has ended, and its claims with it
            return

    async def foreign(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine that is not made of operations only."""
        if not is_blocking():
            return await work
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._ensure().loop)
        except (ClientClosed, RuntimeError) as error:
            work.close()
            raise ClientClosed(_CLOSED) from error
        return future.result()

    def core_stats(self) -> dict[str, Any]:
        """This process's counters."""
        running = self._running
        return running.core.stats() if running is not None else {}

    async def close(self, timeout_s: float) -> bool:
        """Wait until all that was handed in is answered (at most `timeout_s`), then end."""
        with self._lock:
            running, self._closed = self._running, True
        if running is None:
            return True
        await work_done(self, timeout_s)
        flushed = False
        try:
            flushed = bool(await perform_or_give_up(self, Flush(timeout_s)))
        except ClientClosed:
            return True
        finally:
            self._end(running)
        return flushed

    def _end(self, running: RunningCore) -> None:
        running.thread.close(running, _EXIT_FLUSH_S)

    def begin_exit(self) -> Callable[[float], None] | None:
        """The interpreter ends: let what is on its way arrive.

        Returns:
            What waits for that, until a monotonic time at most, and ends the core; None: there is nothing to end.
        """
        running = self._running
        if running is None or not running.thread.is_alive():
            return None
        with self._lock:
            self._closed = True
        flush = Flush(_EXIT_FLUSH_S)
        gate = flush.gate = threading.Lock()
        gate.acquire()
        self.post(flush)

        def finish(deadline: float) -> None:
            if not gate.acquire(timeout=max(0.0, deadline - time.monotonic())):
                logger.warning("capture did not come to rest at exit")
            self._end(running)

        return finish

    def forked(self) -> None:
        """This process is a forked child: it is a new client, the parent's goes on in the parent."""
        self._running = None
        self._lock = threading.Lock()


_hosts: weakref.WeakSet[CoreHost] = weakref.WeakSet()


def _at_exit() -> None:
    # All at once: those of one client, and those of several, have the same few seconds.
    endings = [ending for host in list(_hosts) if (ending := host.begin_exit()) is not None]
    deadline = time.monotonic() + _EXIT_FLUSH_S + 1.0
    for ending in endings:
        ending(deadline)


def _after_fork() -> None:
    for host in list(_hosts):
        host.forked()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
