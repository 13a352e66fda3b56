"""The daemon thread that a client's cores run in: one for all of its shards."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque

from gym_capture.client.core import ClientCore
from gym_capture.client.leftover import warn_of_leftovers
from gym_capture.client.operations import Operation
from gym_capture.client.options import ClientOptions
from gym_capture.client.transport import Transport
from gym_capture.model.clock import Clock
from gym_capture.model.entropy import Entropy

_LAST_WORD_S = 1.0
"""How long a transport's own tasks may take to say goodbye."""


class RunningCore:
    """A core in its thread, and what callers of any thread and loop have handed in for it. Made by `CoreThread`."""

    def __init__(self, thread: LoopThread, core: ClientCore) -> None:
        self.thread = thread
        self.loop = thread.loop
        self.core = core
        self.inbox: deque[Operation] = deque()
        self.woken = False
        self.closing = False
        self.ended = False
        self._gathering: asyncio.AbstractEventLoop | None = None

    async def until_closed(self) -> None:
        """Run the core."""
        try:
            await self.core.run()
            if not self.core.closed:
                # The owner is final about not serving this client; callers are still answered.
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass  # closed: nobody else can have cancelled it

    def submit(self, operation: Operation) -> None:
        """Hand in an operation. RuntimeError: the thread has ended."""
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
        """Give the core what was handed in. In the loop only, or once it has ended."""
        self.woken = False
        inbox = self.inbox
        operations: list[Operation] = []
        while inbox:
            operations.append(inbox.popleft())
        if operations:
            self.core.handle(operations)


class LoopThread:
    """A thread and its loop, from the first core in it to the end of the last."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="gym_capture-client", daemon=True)
        self._cores: list[RunningCore] = []
        self._unclosed = 0
        self._lock = threading.Lock()
        self._wanted = asyncio.Event()

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.thread.is_alive() and not self.loop.is_closed()

    def take(self, running: RunningCore) -> bool:
        """Run a core here. False: the thread is about to end."""
        with self._lock:
            if self.loop.is_closed() or (self._cores and not self._unclosed):
                return False
            self._cores.append(running)
            self._unclosed += 1
        if not self.thread.is_alive():
            self.thread.start()
        else:
            self.loop.call_soon_threadsafe(self._wanted.set)
        return True

    def close(self, running: RunningCore, wait_s: float) -> None:
        """End a core; with the last one, wait for the thread to end."""
        with self._lock:
            if running.closing:
                return  # another caller closed it
            running.closing = True
            self._unclosed -= 1
            last = not self._unclosed
        try:
            self.loop.call_soon_threadsafe(running.core.close)
        except RuntimeError:  # the thread has ended by itself
            return
        if last and threading.current_thread() is not self.thread:
            self.thread.join(wait_s)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._until_closed())
        finally:
            # First this, then the last look: whoever appends in between sees that it is over, or is answered.
            for running in self._cores:
                running.ended = True
                running.drain()
            asyncio.set_event_loop(None)
            self.loop.close()
            # Whoever closes the last core waits for this thread, the interpreter's end too, so the line gets out.
            warn_of_leftovers(left for running in self._cores if (left := running.core.leftover) is not None)

    async def _until_closed(self) -> None:
        tasks: list[asyncio.Task[None]] = []
        news = self.loop.create_task(self._wanted.wait())
        while True:
            tasks += [self.loop.create_task(running.until_closed()) for running in self._cores[len(tasks) :]]
            left = [task for task in tasks if not task.done()]
            if not left and len(tasks) == len(self._cores):
                break
            if news.done():
                self._wanted.clear()
                news = self.loop.create_task(self._wanted.wait())
            await asyncio.wait([*left, news], return_when=asyncio.FIRST_COMPLETED)
        news.cancel()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=_LAST_WORD_S)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # a closed connection is given up in the turn after


class CoreThread:
    """Where a client's cores run: a thread that the first one starts, and another one in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        _threads.add(self)

    def begin(self, transport: Transport, options: ClientOptions, clock: Clock, entropy: Entropy) -> RunningCore:
        """Run a new core."""
        with self._lock:
            while True:
                thread = self._thread
                if thread is None:
                    thread = self._thread = LoopThread()
                core = ClientCore(transport, options, clock=clock, entropy=entropy, loop=thread.loop)
                running = RunningCore(thread, core)
                if thread.take(running):
                    return running
                self._thread = None

    def forked(self) -> None:
        """This process is a forked child: the thread is the parent's."""
        if self._thread is not None:
            # Its loop shares the selector with the parent's: closing it here would unregister the parent's sockets.
            _left_behind.append(self._thread)
            self._thread = None
        self._lock = threading.Lock()


_threads: weakref.WeakSet[CoreThread] = weakref.WeakSet()
_left_behind: list[LoopThread] = []


def _after_fork() -> None:
    for thread in list(_threads):
        thread.forked()


os.register_at_fork(after_in_child=_after_fork)
