"""Writing exchanges into a directory at rest: batches to an owner of this process's own, by the ledger and the log."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gym_capture.directory.resting import serving_at_rest
from gym_capture.errors import GymCaptureError, HandshakeRefused, OwnerUnavailable
from gym_capture.model.messages import (
    PROTOCOL_VERSION,
    Answers,
    Batch,
    Goodbye,
    Hello,
    MessageSplitter,
    Welcome,
    decode_from_owner,
    encode_message,
)
from gym_capture.model.rows import ClientRow, Result
from gym_capture.service.capture_service import CaptureService
from gym_capture.service.settings import PACKAGE_VERSION
from gym_capture.storage.files import Files

_MOST_ANSWER_BYTES = 64 << 20


class OwnerAtRest:
    """An owner of this process's own, with this process as its one client. Made by `own_at_rest`."""

    def __init__(self, service: CaptureService) -> None:
        self._service = service
        self._splitter = MessageSplitter(_MOST_ANSWER_BYTES)
        self._answer: asyncio.Future[list[Result]] | None = None
        self._batch = 0
        self._client = uuid.uuid4().bytes
        self._session = service.connect(self._take, self._ended)
        hello = Hello(PROTOCOL_VERSION, PACKAGE_VERSION, service.token, service.run, self._client, [], "at rest")
        self._welcome = False
        self._send(hello)
        if not self._welcome:
            raise HandshakeRefused("an owner refused its own process")

    @property
    def files(self) -> Files:
        """The directory."""
        return self._service.files

    async def batch(self, rows: Sequence[ClientRow], body: bytes) -> list[Result]:
        """Apply rows in one step, and return once they are on disk.

        Raises:
            OwnerUnavailable: they could not be written, or another owner has taken the directory.
        """
        if self._session.ended:
            raise self._gone()
        self._answer = asyncio.get_running_loop().create_future()
        self._batch += 1
        self._session.heard = True  # whoever prepares a batch for long is not gone
        self._send(Batch(self._batch, self._batch - 1, list(rows)), body)
        return await self._answer

    def leave(self) -> None:
        """Say that nothing more comes."""
        self._send(Goodbye())

    def _send(self, message: Hello | Batch | Goodbye, body: bytes = b"") -> None:
        for head, data in MessageSplitter(self._service.settings.max_message_bytes).feed(
            b"".join(encode_message(message, (body,)))
        ):
            self._session.receive(head, data)

    def _take(self, buffers: Sequence[bytes | memoryview]) -> None:
        for head, _ in self._splitter.feed(b"".join(buffers)):
            message = decode_from_owner(head)
            if isinstance(message, Welcome):
                self._welcome = True
            elif isinstance(message, Answers) and self._answer is not None and not self._answer.done():
                self._answer.set_result(message.results or [])

    def _ended(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._gone())

    def _gone(self) -> GymCaptureError:
        return self._service.unavailable or OwnerUnavailable(
            f"{self._service.files.directory} could not be written. What was written before counts; run it again."
        )


@asynccontextmanager
async def own_at_rest(directory: str | Path, what: str) -> AsyncIterator[OwnerAtRest]:
    """Own a directory for a while. Arguments and errors: `serving_at_rest`."""
    async with serving_at_rest(directory, what) as service:
        owner = OwnerAtRest(service)
        yield owner
        owner.leave()


__all__ = ["OwnerAtRest", "own_at_rest"]
