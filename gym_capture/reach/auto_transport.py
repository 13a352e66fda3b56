"""The stream where it can be reached, else Ray calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gym_capture.client.transport import Link, Transport
from gym_capture.errors import OwnerUnavailable

STREAM_TRY_S = 5.0
"""How long one attempt at the stream may take while there is another way."""


class AutoTransport:
    """Prefers one transport, and takes another while the first cannot be used from here.

    An owner that is merely away is away on both ways, so the detour is taken only when the second way finds it alive
    and the first, tried once more, still does not. Every new link tries the first way again.

    Args:
        preferred: the stream.
        fallback: Ray calls.
        fallback_is_there: whether the fallback can be used in this process now.
    """

    def __init__(self, preferred: Transport, fallback: Transport, fallback_is_there: Callable[[], bool]) -> None:
        self._preferred = preferred
        self._fallback = fallback
        self._fallback_is_there = fallback_is_there
        self._last = preferred

    @property
    def name(self) -> str:
        """That of the transport which the last link was made with."""
        return self._last.name

    async def connect(self) -> Link:
        """A link over whichever way works.

        Raises:
            OwnerUnavailable: neither does.
            OwnerNotFound, HandshakeRefused: trying again cannot help.
        """
        try:
            return await self._try_preferred()
        except OwnerUnavailable:
            if not self._fallback_is_there():
                raise
        detour = await self._fallback.connect()
        try:
            link = await self._try_preferred()
        except OwnerUnavailable:
            self._last = self._fallback
            return detour
        except BaseException:
            detour.close()
            raise
        detour.close()
        return link

    async def _try_preferred(self) -> Link:
        try:
            async with asyncio.timeout(STREAM_TRY_S):
                link = await self._preferred.connect()
        except TimeoutError as error:
            raise OwnerUnavailable(
                f"the owner's stream could not be opened within {STREAM_TRY_S:g} s. Nothing was sent."
            ) from error
        self._last = self._preferred
        return link
