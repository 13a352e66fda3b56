"""The least client that speaks the protocol: numbered batches, sent again on every new link until they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from gym_capture.client.transport import Link, Transport
from gym_capture.errors import GymCaptureError, OwnerUnavailable, from_wire
from gym_capture.model.exchange import SealedExchange, seal
from gym_capture.model.messages import (
    PROTOCOL_VERSION,
    Answers,
    Batch,
    Beat,
    BeatReply,
    Call,
    Cancel,
    Failure,
    FromOwner,
    Goodbye,
    Hello,
    Refused,
    Reply,
    Request,
    Welcome,
    decode_from_owner,
    encode_message,
)
from gym_capture.model.rows import CURRENT, NO_CLAIM, ClaimRow, ClientRow, CommitRow, Part, ReleaseRow, Result


def sealed(call_id: str, text: str = "hello") -> SealedExchange:
    """A small exchange."""
    return seal(
        {
            "model_call_id": call_id,
            "dialect": "chat",
            "model_ref": {"type": "model", "name": "m"},
            "request": {"model": "m", "messages": [{"role": "user", "content": text}]},
            "response": {"choices": [{"message": {"role": "assistant", "content": text[::-1]}}]},
            "status_code": 200,
        }
    )


def commit_row(
    rollout: str, exchange: SealedExchange, claim: int = NO_CLAIM, generation: int = CURRENT, at: int = 0
) -> CommitRow:
    """A commit whose parts begin at `at` of the batch's body."""
    parts = [Part(p.kind, p.flags, p.offset + at, p.length, p.raw, p.crc) for p in exchange.parts]
    return CommitRow(rollout, claim, exchange.model_call_id, exchange.digest, parts, generation)


class Pending:
    """A batch that was not answered yet."""

    def __init__(self, number: int, rows: Sequence[ClientRow], body: bytes) -> None:
        self.number = number
        self.rows = list(rows)
        self.body = body
        self.answer: asyncio.Future[list[Result] | None] = asyncio.get_running_loop().create_future()


class RawClient:
    """One client process. `start`, then `batch` and `call`; it reconnects by itself unless `steady` is false."""

    def __init__(self, transport: Transport, client: bytes = b"c" * 16, *, steady: bool = True) -> None:
        self.transport = transport
        self.id = client
        self.steady = steady
        self.link: Link | None = None
        self.unanswered: dict[int, Pending] = {}
        self.calls: dict[int, tuple[Request, asyncio.Future[tuple[Any, bytes]]]] = {}
        self.number = 0
        self.call_number = 0
        self.claim_number = 0
        self.open_claims: set[int] = set()
        self.welcomes: list[Welcome] = []
        self.answers_seen: list[Answers] = []
        self.beats = 0
        self.error: GymCaptureError | None = None
        self.welcome = asyncio.Event()
        self._beaten = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> RawClient:
        """Connect and wait for the welcome."""
        self._task = asyncio.create_task(self._run())
        waiting = asyncio.create_task(self.welcome.wait())
        await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self.error is not None:
            raise self.error
        return self

    async def close(self) -> None:
        """Let go without a goodbye."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.link is not None:
            self.link.close()

    @property
    def confirmed(self) -> int:
        return min(self.unanswered, default=self.number + 1) - 1

    def batch(self, rows: Sequence[ClientRow], body: bytes = b"") -> asyncio.Future[list[Result] | None]:
        """Send a batch; the future is its answer."""
        self.number += 1
        pending = self.unanswered[self.number] = Pending(self.number, rows, body)
        if self.welcome.is_set():
            self._send_batch(pending)
        return pending.answer

    def claim_row(self, rollout: str, generation: int = CURRENT, call_id: str = "") -> ClaimRow:
        """A claim under this client's next number."""
        self.claim_number += 1
        self.open_claims.add(self.claim_number)
        return ClaimRow(rollout, self.claim_number, call_id, generation)

    async def claim(self, rollout: str, generation: int = CURRENT) -> int:
        """An acknowledged claim's number."""
        row = self.claim_row(rollout, generation)
        await self.batch([row])
        return row.claim

    def commit(
        self, rollout: str, call_id: str, claim: int = NO_CLAIM, text: str = "hello", generation: int = CURRENT
    ) -> asyncio.Future[list[Result] | None]:
        """Send one exchange."""
        exchange = sealed(call_id, text)
        return self.batch([commit_row(rollout, exchange, claim, generation)], b"".join(exchange.body))

    def release(self, rollout: str, claim: int, reason: str = "released") -> asyncio.Future[list[Result] | None]:
        """Close a claim without an exchange."""
        return self.batch([ReleaseRow(rollout, claim, reason)])

    def call(self, request: Request) -> asyncio.Future[tuple[Any, bytes]]:
        """Ask something; the future is the reply's value and body."""
        self.call_number += 1
        future: asyncio.Future[tuple[Any, bytes]] = asyncio.get_running_loop().create_future()
        self.calls[self.call_number] = (request, future)
        if self.welcome.is_set():
            self._send(Call(self.call_number, request))
        return future

    def cancel(self, number: int) -> None:
        """Nobody waits for that call any more."""
        del self.calls[number]
        self._send(Cancel(number))

    async def beat(self) -> None:
        """Say that the client lives; returns with the owner's answer, after all that it had received before."""
        self._beaten.clear()
        self._send(Beat())
        await self._beaten.wait()

    def goodbye(self) -> None:
        """End for good."""
        self.steady = False
        self._send(Goodbye())

    def _send(self, message: Any, body: bytes = b"") -> None:
        if self.link is not None:
            self.link.send(encode_message(message, [body] if body else ()))

    def _send_batch(self, pending: Pending) -> None:
        self._send(Batch(pending.number, self.confirmed, pending.rows), pending.body)

    async def _run(self) -> None:
        while True:
            try:
                await self._connected()
            except OwnerUnavailable as error:
                if not self.steady:
                    self.error = error
                    return
            except GymCaptureError as error:
                self.error = error
                return
            finally:
                self.welcome.clear()
            await asyncio.sleep(0)

    async def _connected(self) -> None:
        self.link = await self.transport.connect()
        claims = sorted(self.open_claims)
        self._send(Hello(PROTOCOL_VERSION, "test", self.link.token, self.link.run, self.id, claims, "a test"))
        while True:
            for head, body in await self.link.receive():
                self._take(decode_from_owner(head), body)

    def _take(self, message: FromOwner, body: bytes) -> None:
        if isinstance(message, Welcome):
            self.welcomes.append(message)
            self.welcome.set()
            for pending in self.unanswered.values():
                self._send_batch(pending)
            for number, (request, _) in self.calls.items():
                self._send(Call(number, request))
        elif isinstance(message, Refused):
            raise from_wire(message.code, message.message)
        elif isinstance(message, Answers):
            self.answers_seen.append(message)
            pending_or_none = self.unanswered.pop(message.batch, None)
            if pending_or_none is None:
                return
            for row in pending_or_none.rows:
                if isinstance(row, CommitRow | ReleaseRow):
                    self.open_claims.discard(row.claim)
            if not pending_or_none.answer.done():
                pending_or_none.answer.set_result(message.results)
        elif isinstance(message, Reply | Failure):
            asked = self.calls.pop(message.number, None)
            if asked is None or asked[1].done():
                return
            if isinstance(message, Reply):
                asked[1].set_result((message.value, body))
            else:
                asked[1].set_exception(from_wire(message.code, message.message))
        elif isinstance(message, BeatReply):
            self.beats += 1
            self._beaten.set()
