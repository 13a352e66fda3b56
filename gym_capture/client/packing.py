"""Large exchanges are packed beside the client's loop, so that its timers and its link do not wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

from gym_capture.client.trouble_log import logger
from gym_capture.model.exchange import SealedExchange


class Packing:
    """Packs in a thread. Used from the client's loop only.

    Args:
        executor: None: a thread of its own, from the first large exchange on.
        turn: called after each exchange.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor | None, turn: Callable[[], None]) -> None:
        self._loop = loop
        self._executor = executor
        self._turn = turn

    def pack_elsewhere(
        self, work: Callable[[], SealedExchange], packed: Callable[[SealedExchange | None], None]
    ) -> None:
        """Pack, then call back in the loop; with None when it could not be packed."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="gym_capture-pack")

        def done(future: asyncio.Future[SealedExchange]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is not None or future.cancelled():
                logger.error("an exchange could not be packed and is lost: %r", error)
                packed(None)
            else:
                packed(future.result())
            self._turn()

        self._loop.run_in_executor(self._executor, work).add_done_callback(done)

    def close(self) -> None:
        """Begin nothing more."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
