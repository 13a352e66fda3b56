"""One connected client: what it says goes in, what it is told comes out. Knows nothing of sockets."""

from __future__ import annotations

import asyncio
import hmac
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import isnan
from typing import TYPE_CHECKING, Any

from gym_capture.errors import GymCaptureError, HandshakeRefused, InvalidRolloutId, OwnerUnavailable, ProtocolError
from gym_capture.model.codec import FrameKind, FrameRef, PendingFrame, encode_rows
from gym_capture.model.ids import validate_rollout_id
from gym_capture.model.ledger import Repeated
from gym_capture.model.messages import (
    MAX_HEAD_BYTES,
    PREFIX_BYTES,
    PROTOCOL_VERSION,
    Answers,
    Batch,
    Beat,
    BeatReply,
    Call,
    Cancel,
    Failure,
    FromOwner,
    Hello,
    Merge,
    Quiesce,
    ReadParts,
    Refused,
    Reply,
    Stats,
    Stop,
    Welcome,
    decode_from_client,
    encode_message,
)
from gym_capture.model.rows import ClientRow, CommitRow, HistoryRow, Outcome, Result
from gym_capture.model.run_quiescence import Standing
from gym_capture.service.row_check import DamagedOnTheWay, check_rows
from gym_capture.service.settings import PACKAGE_VERSION
from gym_capture.service.state import State
from gym_capture.service.waiters import Waiter

if TYPE_CHECKING:
    from gym_capture.service.capture_service import CaptureService

Send = Callable[[Sequence[bytes | memoryview]], None]
"""Queue one encoded message; never blocks, and a broken connection swallows it."""

_CLIENT_ID_BYTES = 16
_PLACE_CHARACTERS = 256
_WITH_PARTS = (CommitRow, HistoryRow)
_MAX_CALLS = 200_000
_DAMAGED_TRIES = 3
"""A batch that arrived damaged so often was so when it was sent; its damaged exchanges are refused."""


class Session:
    """A connection, from its hello to its end. Made by `CaptureService.connect`.

    Its owner calls `receive` for every message and `lost` once when the connection is gone. The session calls `send`,
    `close` (at most once, and not after `lost`) and `hold(True)`/`hold(False)`: stop reading, read on.

    Attributes:
        client: the client's id once it is welcome, else empty.
        place: where the client says it is.
        heard: set by whoever reads the connection when bytes came in; they renew the lease even before the message is
            complete.
        unanswered: bytes of batches that are not answered yet, and of all that is held back.
        paused: whether reading should stop.
    """

    __slots__ = (
        "_calls",
        "_close",
        "_ended",
        "_held",
        "_hold",
        "_send",
        "_service",
        "client",
        "heard",
        "paused",
        "place",
        "unanswered",
    )

    def __init__(
        self, service: CaptureService, send: Send, close: Callable[[], None], hold: Callable[[bool], None]
    ) -> None:
        self._service = service
        self._send = send
        self._close = close
        self._hold = hold
        self._ended = False
        self._calls: dict[int, Waiter | asyncio.Task[None]] = {}
        self._held: deque[tuple[bytes, bytes]] | None = None
        self.client = b""
        self.place = ""
        self.heard = False
        self.unanswered = 0
        self.paused = False

    @property
    def ended(self) -> bool:
        """Whether the connection is over."""
        return self._ended

    def receive(self, head: bytes, body: bytes) -> None:
        """Take one message. What is no message, or not allowed now, ends the connection."""
        if self._ended:
            return
        if self.client and self._service.state is not State.SERVING:
            return  # an owner that ends takes nothing more; the client sends it again to the next one
        if self._held is not None:
            self._held.append((head, body))
            self._service.connections.received(self, len(head) + len(body))
        else:
            self._take(head, body)

    def _take(self, head: bytes, body: bytes) -> None:
        try:
            message = decode_from_client(head)
            if not self.client:
                self._hello(message)
            elif type(message) is Batch:
                missing = self._service.paging.missing(row.rollout for row in message.rows)
                if missing:
                    self._hold_back(missing, head, body)
                else:
                    self._batch(message, body, len(head) + len(body))
            else:
                self._other(message)
        except ProtocolError as error:
            self.broken(error)
        except Exception as error:  # noqa: BLE001  # half of a batch may be applied: only the log knows what is true
            self._service.tenure.fail(error)
            self.end()

    def _hold_back(self, missing: list[str], head: bytes, body: bytes) -> None:
        """A batch is of rollouts that are not in memory: it waits for them, and all that comes after it waits too."""
        self._held = deque([(head, body)])
        self._service.connections.received(self, len(head) + len(body))
        self._service.paging.start(missing, self._go_on)

    def _go_on(self) -> None:
        held, self._held = self._held, None
        while held and not self._ended and self._service.state is State.SERVING:
            head, body = held.popleft()
            self._service.connections.answered(self, len(head) + len(body))  # what is taken counts itself
            self._take(head, body)
            if self._held is not None:
                self._held += held
                return
        self._let_go(held or ())
        self._service.connections.resume()

    def _let_go(self, held: Iterable[tuple[bytes, bytes]]) -> None:
        """What was held back is not taken any more."""
        for head, body in held:
            self._service.connections.answered(self, len(head) + len(body))

    def broken(self, error: ProtocolError) -> None:
        """The connection carries something that it must not; it is counted and closed."""
        self._service.note_protocol_error(error)
        self.end()

    def lost(self) -> None:
        """The connection is gone. Claims stay open: the client may come back until its lease ends."""
        if self._ended:
            return
        self._ended = True
        for call in self._calls.values():
            self._drop_call(call)
        self._calls.clear()
        self._service.connections.ended(self)
        if self._held:
            held, self._held = self._held, None
            self._let_go(held)
            self._service.connections.resume()

    def end(self) -> None:
        """Close the connection from this side."""
        if not self._ended:
            self.lost()
            self._close()

    def _tell(self, message: FromOwner) -> None:
        self._reply(encode_message(message))

    def _reply(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Say something. All that is said is a sign of life, so an owner that may have a successor says nothing.

        All but `_say_now` comes by here: the welcome, which is decided upon when it is sure, and last words, after
        which the client has to look the owner up again.
        """
        self._service.when_sure(lambda: self._put(buffers))

    def _say_now(self, message: FromOwner) -> None:
        self._put(encode_message(message))

    def _put(self, buffers: Sequence[bytes | memoryview]) -> None:
        if not self._ended:
            self._send(buffers)

    def set_paused(self, paused: bool) -> None:
        """Stop or resume reading."""
        if paused != self.paused and not self._ended:
            self.paused = paused
            self._hold(paused)

    # -- hello --------------------------------------------------------------------------------------------------

    def _hello(self, message: Any) -> None:
        if type(message) is not Hello:
            raise ProtocolError(f"the first message is a hello, not a {type(message).__name__}")
        refusal = self._refusal(message)
        if refusal is not None:
            self._service.connections.counts["refused_connections"] += 1
            self._say_now(Refused(type(refusal).__name__, str(refusal)))
            self.end()
            return
        self._held = deque()  # what is said before the welcome waits for it
        self._service.ledger.renew(message.client, self._service.now())
        self._service.when_sure(lambda: self._welcome(message))

    def _welcome(self, hello: Hello) -> None:
        if self._ended:
            return
        self.client = hello.client
        self.place = hello.place[:_PLACE_CHARACTERS]
        service = self._service
        # Before the welcome: the claims that are lost must be so before any batch of this connection.
        service.admit(self, hello.open_claims)
        settings = service.settings
        self._say_now(
            Welcome(
                PROTOCOL_VERSION,
                PACKAGE_VERSION,
                service.run,
                service.epoch,
                settings.lease_s,
                settings.window_bytes,
                settings.max_exchange_bytes,
                settings.max_batch_bytes,
            )
        )
        self._go_on()

    def _refusal(self, hello: Hello) -> GymCaptureError | None:
        service = self._service
        unavailable = service.unavailable
        if unavailable is not None:
            return unavailable
        # The token first: who cannot show it learns nothing else.
        shown = hello.token.encode(errors="replace")
        if not hmac.compare_digest(shown, service.token.encode()):
            if service.earlier_token and hmac.compare_digest(shown, service.earlier_token.encode()):
                return OwnerUnavailable(
                    "the token is an earlier owner's. Nothing was changed; look the owner up again."
                )
            return HandshakeRefused(
                "the token is not this owner's. Nothing was changed; look the owner up again (its token is in a file "
                "of the capture directory, or told by the actor)."
            )
        if hello.protocol != PROTOCOL_VERSION:
            return HandshakeRefused(
                f"the client speaks protocol {hello.protocol} (gym_capture {hello.version}), the owner "
                f"{PROTOCOL_VERSION} (gym_capture {PACKAGE_VERSION}). Nothing was changed; use one version everywhere."
            )
        if hello.run and hello.run != service.run:
            return HandshakeRefused(
                f"the client means run {hello.run}, this owner serves run {service.run}. Nothing was changed; connect "
                "by the capture directory of the run that is meant."
            )
        if len(hello.client) != _CLIENT_ID_BYTES:
            return HandshakeRefused(f"a client id has {_CLIENT_ID_BYTES} bytes, this one {len(hello.client)}.")
        return None

    # -- batches ------------------------------------------------------------------------------------------------

    def _batch(self, batch: Batch, body: bytes, size: int) -> None:
        service = self._service
        ledger = service.ledger
        if batch.batch < 1 or not 0 <= batch.confirmed < batch.batch:
            raise ProtocolError(f"batch {batch.batch} cannot confirm batch {batch.confirmed}")
        rows = self._checked(batch, body)
        ref = FrameRef(ledger.last_sequence + 1, service.epoch)
        now, wall, arrived = service.now(), service.clock.time(), service.clock.monotonic()
        counts = ledger.counts
        claims, commits = counts["claims"], counts["commits"]
        applied = ledger.apply_batch(self.client, batch.batch, batch.confirmed, rows, ref, now, wall)
        if isinstance(applied, Repeated):
            self._repeat(batch.batch, applied)
            return
        kept = body and any(type(row) in _WITH_PARTS and row.outcome == Outcome.APPLIED for row in rows)
        frame = PendingFrame(
            FrameKind.BATCH,
            encode_rows(applied.rows),
            len(applied.rows),
            (body,) if kept else (),
            ref,
            rollouts={row.rollout for row in rows},
        )
        service.connections.received(self, size)
        claims, commits = counts["claims"] - claims, counts["commits"] - commits
        answer = partial(self._answer_first, batch.batch, applied.results, size, arrived, claims, commits)
        service.commit.submit(frame, answer)

    def _checked(self, batch: Batch, body: bytes) -> Sequence[ClientRow]:
        """The batch's rows as the ledger may apply them."""
        service = self._service
        damaged = service.connections.damaged
        last_try = bool(damaged) and damaged[self.client, batch.batch] >= _DAMAGED_TRIES
        try:
            rows = check_rows(
                batch.rows, body, service.ledger.rollouts, service.settings.max_exchange_bytes, last_try=last_try
            )
        except DamagedOnTheWay:
            damaged[self.client, batch.batch] += 1
            raise
        if damaged:
            damaged.pop((self.client, batch.batch), None)
        return rows

    def _answer_first(
        self, batch: int, results: list[Result], size: int, arrived: float, claims: int, commits: int, durable: bool
    ) -> None:
        if durable:
            service = self._service
            service.latency.add(service.clock.monotonic() - arrived, claims, commits)
        self._answer(batch, results, size, durable)

    def _answer(self, batch: int, results: list[Result] | None, size: int, durable: bool) -> None:
        self._service.connections.answered(self, size)
        if durable:
            self._tell(Answers(batch, results))

    def _repeat(self, batch: int, repeated: Repeated) -> None:
        """Told again from what was decided then, and no sooner than that is durable."""
        if repeated.sequence <= self._service.ledger.durable_sequence:
            self._tell(Answers(batch, repeated.results))
        else:
            self._service.commit.when_durable(repeated.sequence, partial(self._answer, batch, repeated.results, 0))

    # -- everything else ----------------------------------------------------------------------------------------

    def _other(self, message: Any) -> None:
        service = self._service
        kind = type(message)
        if kind is Beat:
            service.ledger.renew(self.client, service.now())
            self._tell(BeatReply(service.epoch))
        elif kind is Call:
            service.ledger.renew(self.client, service.now())
            self._call(message)
        elif kind is Cancel:
            call = self._calls.pop(message.number, None)
            if call is not None:
                self._drop_call(call)
        elif kind is Hello:
            raise ProtocolError("a second hello on one connection")
        else:
            service.goodbye(self)
            self.end()

    def _call(self, call: Call) -> None:
        if call.number in self._calls or len(self._calls) >= _MAX_CALLS:
            raise ProtocolError(f"call {call.number} is already under way, or too many are")
        request = call.request
        if isinstance(request, Quiesce):
            self._quiesce(call.number, request)
        else:
            task = asyncio.get_running_loop().create_task(self._run(call.number, request))
            self._calls[call.number] = task

    def _quiesce(self, number: int, request: Quiesce) -> None:
        if isnan(request.timeout_s):
            raise ProtocolError("a timeout that is not a number")

        if request.rollout is not None:
            try:
                validate_rollout_id(request.rollout)
            except InvalidRolloutId as error:
                self._tell(Failure(number, type(error).__name__, str(error)))
                return

        def answer(result: bool | GymCaptureError) -> None:
            self._calls.pop(number, None)
            if isinstance(result, GymCaptureError):
                self._tell(Failure(number, type(result).__name__, str(result)))
            elif result and request.standing:
                # Of this very moment, at which nothing is outstanding.
                self._tell(Reply(number, Standing(self._service.epoch, self._service.ledger.begun)))
            else:
                self._tell(Reply(number, result))

        waiter = self._service.waiters.add(request.rollout, request.timeout_s, answer)
        if waiter.answer is not None:
            self._calls[number] = waiter

    async def _run(self, number: int, request: Merge | Stats | Stop | ReadParts) -> None:
        service = self._service
        body: Sequence[bytes] = ()
        try:
            value: Any
            if isinstance(request, Merge):
                value = await service.merge(request.rollout, request.generation, request.issued)
            elif isinstance(request, Stats):
                value = await service.stats_of(request.rollout)
            elif isinstance(request, ReadParts):
                value, body = await service.read_parts(
                    request.rollout, request.generation, request.call_indexes, request.have
                )
            else:
                await service.stop()
                value = True
            buffers = encode_message(Reply(number, value), body)
            if len(buffers[0]) - PREFIX_BYTES > MAX_HEAD_BYTES:
                raise GymCaptureError(
                    f"the answer has {len(buffers[0])} bytes, a message holds {MAX_HEAD_BYTES}. Nothing is lost: read "
                    "the capture directory instead (CaptureStore)."
                )
            if not isinstance(request, Stop):
                self._reply(buffers)
            else:
                self._put(buffers)  # last words
        except GymCaptureError as error:
            self._tell(Failure(number, type(error).__name__, str(error)))
        except Exception as error:  # noqa: BLE001  # a fault of this package must reach the caller, not end in a task
            service.fault(error)
            self._tell(Failure(number, GymCaptureError.__name__, f"the owner failed on this call: {error!r}"))
        finally:
            self._calls.pop(number, None)
        if isinstance(request, Stop):
            service.leave_after_stop()

    def _drop_call(self, call: Waiter | asyncio.Task[None]) -> None:
        if isinstance(call, Waiter):
            self._service.waiters.cancel(call)
        elif call is not asyncio.current_task():
            call.cancel()
