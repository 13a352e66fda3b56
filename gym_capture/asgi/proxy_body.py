"""A request's body on its way through, and the one thing that is heard after it: that the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from gym_capture.asgi.messages import Message, Receive


class ClientGone(Exception):
    """The client closed its connection before its answer was complete."""


class UploadStalled(Exception):
    """The upstream takes no more of the request's body."""


class RequestBody:
    """Reads ahead by one message at most, so that a slow upstream slows the client down, and watches for its end.

    Args:
        receive: the ASGI channel; nobody else may read from it.
        first: the first message, read already.
        stall_s: how long the upstream may take nothing, seconds.
    """

    def __init__(self, receive: Receive, first: Message, stall_s: float) -> None:
        self._receive = receive
        self._stall_s = stall_s
        self._next: bytes | None = first.get("body", b"")
        self._whole = not first.get("more_body", False)
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()

    async def watch(self) -> None:
        """Feed `chunks` until the client is gone; returns then, and otherwise not. A task of its own runs it.

        Raises:
            UploadStalled: the upstream stopped taking what the client sends.
        """
        while not self._whole:
            await self._until_taken()
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            self._next, self._whole = message.get("body", b""), not message.get("more_body", False)
            self._changed.set()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _until_taken(self) -> None:
        try:
            async with asyncio.timeout(self._stall_s):
                await self._taken.wait()
        except TimeoutError:
            raise UploadStalled from None
        self._taken.clear()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, piece by piece. Never ends early: when the client goes, whoever iterates is cancelled."""
        while True:
            while self._next is None:
                self._changed.clear()
                await self._changed.wait()
            chunk, last, self._next = self._next, self._whole, None
            if chunk:
                yield chunk
            # Only now: what was yielded has gone into the upstream's socket buffer.
            self._taken.set()
            if last:
                return
