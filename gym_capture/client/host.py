"""Where a client core runs: in a daemon thread with a loop of its own (`loop_host`: on a loop that is there already).

Callers of any thread and loop append operations to a deque and wake the core's loop once a burst. Appending takes no
lock, so a finalizer may do it at any moment.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from gym_capture.client.answer import Answer
from gym_capture.client.blocking_mode import is_blocking
from gym_capture.client.core import ClientCore
from gym_capture.client.operations import Ask, Flush, GiveUp, Operation
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
_LAST_WORD_S = 1.0
"""How long a transport's own tasks may take to say goodbye."""


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
    ask = Ask(request, timeout_s)
    try:
        answer: tuple[Any, bytes] = await host.perform(ask)
    except BaseException:
        if not ask.done:
            host.post(GiveUp(ask))
        raise
    return answer


class _Running:
    """One core with its thread. After a fork the child keeps the parent's, untouched, and starts another."""

    def __init__(self, transport: Transport, options: ClientOptions, clock: Clock, entropy: Entropy) -> None:
        self.loop = asyncio.new_event_loop()
        self.core = ClientCore(transport, options, clock=clock, entropy=entropy, loop=self.loop)
        self.inbox: deque[Operation] = deque()
        self.woken = False
        self.ended = False
        self._gathering: asyncio.AbstractEventLoop | None = None
        self.thread = threading.Thread(target=self._run, name="gym_capture-client", daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._until_closed())
        finally:
            # First this, then the last look: whoever appends in between sees that it is over, or is answered.
            self.ended = True
            self.drain()
            asyncio.set_event_loop(None)
            self.loop.close()

    async def _until_closed(self) -> None:
        try:
            await self.core.run()
            if not self.core.closed:
                # The owner is final about not serving this client; callers are still answered.
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass  # closed: this task is the thread's last, nobody else can have cancelled it
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=_LAST_WORD_S)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # a closed connection is given up in the turn after

    def submit(self, operation: Operation) -> None:
        self.inbox.append(operation)
        if self.ended:
            raise RuntimeError("the client's thread has ended")
        if not self.woken:
            self.woken = True
            self.loop.call_soon_threadsafe(self.drain)

    def submit_later(self, operation: Operation, loop: asyncio.AbstractEventLoop) -> None:
        """The same for a coroutine of `loop`: the thread is woken once what is ready there now has had its turn.

        A burst of calls then wakes it once, and it does not contend with the burst for the interpreter. A call that is
        alone wakes it at once.
        """
        if not self.core.unsettled.total and not self.inbox:
            self.submit(operation)
            return
        self.inbox.append(operation)
        if self.ended:
            raise RuntimeError("the client's thread has ended")
        if not self.woken and self._gathering is not loop:
            self._gathering = loop
            loop.call_soon(self._gathered, loop)

    def _gathered(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._gathering is loop:
            self._gathering = None
        if self.inbox and not self.woken:
            self.woken = True
            try:
                self.loop.call_soon_threadsafe(self.drain)
            except RuntimeError:
                return  # it has ended meanwhile, and its last look has answered what was here

    def drain(self) -> None:
        self.woken = False
        inbox = self.inbox
        operations: list[Operation] = []
        while inbox:
            operations.append(inbox.popleft())
        if operations:
            self.core.handle(operations)


class CoreHost:
    """A core in a thread of its own, started by the first operation, and anew in a forked child.

    Args:
        transport: makes links; holds no connection itself.
        options: limits and times.
        clock, entropy: time and randomness.
    """

    def __init__(
        self,
        transport: Transport,
        options: ClientOptions | None = None,
        *,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self.options = options or ClientOptions()
        _ = self.options.redaction  # a rule that cannot work here is told now, not inside a call
        self.clock = clock or SystemClock()
        self.entropy = entropy or SystemEntropy()
        self._transport = transport
        self._lock = threading.Lock()
        self._running: _Running | None = None
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

    def _ensure(self) -> _Running:
        running = self._running
        if running is not None:
            return running
        with self._lock:
            if self._closed:
                raise ClientClosed(_CLOSED)
            if self._running is None:
                running = _Running(self._transport, self.options, self.clock, self.entropy)
                running.thread.start()
                self._running = running
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
        return asyncio.run_coroutine_threadsafe(work, self._ensure().loop).result()

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
        flush = Flush(timeout_s)
        flushed = False
        try:
            flushed = bool(await self.perform(flush))
        except ClientClosed:
            return True
        finally:
            if not flush.done:
                self.post(GiveUp(flush))
            self._end(running)
        return flushed

    def _end(self, running: _Running) -> None:
        if running.loop.is_closed():
            return
        try:
            running.loop.call_soon_threadsafe(running.core.close)
        except RuntimeError:  # another caller closed it
            return
        if threading.current_thread() is not running.thread:
            running.thread.join(_EXIT_FLUSH_S)

    def at_exit(self) -> None:
        """The interpreter ends: let what is on its way arrive."""
        running = self._running
        if running is None or running.loop.is_closed() or not running.thread.is_alive():
            return
        with self._lock:
            self._closed = True
        flush = Flush(_EXIT_FLUSH_S)
        gate = flush.gate = threading.Lock()
        gate.acquire()
        self.post(flush)
        if not gate.acquire(timeout=_EXIT_FLUSH_S + 1.0):
            logger.warning("capture did not come to rest at exit")
        self._end(running)

    def forked(self) -> None:
        """This process is a forked child: it is a new client, the parent's goes on in the parent."""
        if self._running is not None:
            # Its loop shares the selector with the parent's: closing it here would unregister the parent's sockets.
            _left_behind.append(self._running)
            self._running = None
        self._lock = threading.Lock()


_hosts: weakref.WeakSet[CoreHost] = weakref.WeakSet()
_left_behind: list[_Running] = []


def _at_exit() -> None:
    for host in list(_hosts):
        host.at_exit()


def _after_fork() -> None:
    for host in list(_hosts):
        host.forked()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
