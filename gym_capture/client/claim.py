"""One model call of a rollout: claimed before it is made, committed when it is done."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from gym_capture.client.blocking_mode import run_blocking
from gym_capture.client.call_snapshot import build_exchange, freeze_fields, snapshot_call, thaw_fields
from gym_capture.client.host import Host
from gym_capture.client.issued import IssuedCalls
from gym_capture.client.operations import ClaimState, Commit, Committed, Release, Ticket
from gym_capture.client.outcome import CallOutcome
from gym_capture.client.trouble_log import logger
from gym_capture.client.verifier import with_verifier
from gym_capture.client.work_aside import run_aside
from gym_capture.errors import GymCaptureError, InvalidExchange
from gym_capture.model.error_category import error_category_for_exception
from gym_capture.model.exchange import Snapshot, check_dialect
from gym_capture.model.rollout_state import OWNERS_REASONS, RELEASED
from gym_capture.model.rows import CURRENT, PENDING_INDEX

MAX_CALL_ID_CHARACTERS = 4096
"""The owner refuses longer ones."""

_REASON = re.compile(r"\w{0,64}", re.ASCII)


class ClaimHandle:
    """A claim on one exchange, made by `RolloutHandle.claim`. Use it once, as an async context manager.

    Entering it returns once the claim is on disk (or after `patience_s` without the owner, then the call goes on
    unclaimed). Leaving it commits what `complete` was given; without `complete`, an exception commits the failure and
    goes on, and anything else releases the claim, which makes the rollout incomplete. Capture's own troubles never
    raise here: `outcome` tells.
    """

    def __init__(
        self, host: Host, issued: IssuedCalls, rollout_id: str, generation: int, fields: Mapping[str, Any]
    ) -> None:
        check_dialect(fields.get("dialect"))
        model_call_id = fields.get("model_call_id")
        if model_call_id is None:
            model_call_id = host.entropy.bytes(16).hex()
        elif not isinstance(model_call_id, str) or not model_call_id:
            raise InvalidExchange(f"model_call_id must be a non-empty string, not {model_call_id!r}")
        elif (redaction := host.options.redaction) is not None:
            # The claim is written before the exchange is, and under the same id.
            model_call_id = redaction.identity(model_call_id)
        # The wire carries valid UTF-8 only; the id as it was given stays in the exchange.
        identity = model_call_id
        if not identity.isascii():
            identity = identity.encode("utf-8", "backslashreplace").decode("utf-8")
        if len(identity) > MAX_CALL_ID_CHARACTERS:
            raise InvalidExchange(
                f"a model_call_id has at most {MAX_CALL_ID_CHARACTERS} characters, this one has {len(identity)}"
            )
        self._host = host
        self._issued = issued
        self._fields = freeze_fields({**with_verifier(fields), "model_call_id": model_call_id})
        self._model_call_id = model_call_id
        self._snapshot: Snapshot | None = None
        self._reason: str | None = None
        self._mark = ""
        self._counted = False
        self._started_at = 0.0
        self._started = 0.0
        self._first_token_ms: float | None = None
        self._ended: tuple[float, float] | None = None
        self._committed: Committed | None = None
        self._detached: Commit | Release | None = None
        self._ticket = Ticket(rollout_id, identity, generation)
        self._incarnation: object = None

    # -- what it tells ------------------------------------------------------------------------------------------

    @property
    def model_call_id(self) -> str:
        """The exchange's identity in its rollout."""
        return self._model_call_id

    @property
    def outcome(self) -> CallOutcome | None:
        """What became of the exchange; None inside the block, unless the claim itself was refused (`fenced`).

        After `detach` it is None until the exchange is on disk or lost, which nobody is told of.
        """
        committed = self._answered()
        return committed.outcome if committed is not None else self._ticket.outcome

    @property
    def call_index(self) -> int | None:
        """The exchange's place in its rollout, once it is durable."""
        committed = self._answered()
        if committed is None or committed.call_index == PENDING_INDEX:
            return None
        return committed.call_index

    @property
    def generation(self) -> int | None:
        """The generation that the call belongs to; None while that is not known."""
        generation = self._ticket.generation
        committed = self._answered()
        if generation == CURRENT and committed is not None:
            generation = committed.generation
        return None if generation == CURRENT else generation

    def _answered(self) -> Committed | None:
        detached = self._detached
        if self._committed is None and detached is not None and detached.done:
            self._committed = detached.value
        return self._committed

    # -- what it is told ----------------------------------------------------------------------------------------

    def first_token(self) -> None:
        """The first piece of the answer has come: sets `latency_ttft_ms`. Later ones change nothing."""
        if self._first_token_ms is None:
            self._first_token_ms = (self._host.clock.monotonic() - self._started) * 1000.0

    def ended(self) -> None:
        """The answer is over: `completed_at` and `latency_ms` are of now, also when `complete` comes later."""
        clock = self._host.clock
        self._ended = clock.time(), (clock.monotonic() - self._started) * 1000.0

    def aside(self, work: Callable[[], None]) -> Future[None]:
        """Do work that `complete` needs in another thread. Closing the client waits for it, at most as for commits.

        Args:
            work: it must not raise.
        """
        return run_aside(self._host, work)

    def note(self, **fields: Any) -> None:
        """Keep fields of the exchange (a request, a partial response) in case the call fails; payloads as of now."""
        self._fields.update(freeze_fields({**fields, "dialect": self._fields["dialect"]}))

    def complete(self, request: Any = None, response: Any = None, status_code: int | None = 200, **fields: Any) -> None:
        """The call is done. What is given is frozen now, and on disk once the block is left.

        Args:
            request, response: the payloads, as JSON values or as bytes (kept byte for byte).
            status_code: HTTP status; 400 and above names the `error_category` unless that is given too.
            fields: any other key of an exchange; they win over what the handle measured (`latency_ms`, say).
        """
        given = {**fields, "response": response, "status_code": status_code}
        if request is not None:
            given["request"] = request
        self._snapshot = self._frozen(given)

    def release(self, reason: str = RELEASED) -> None:
        """Close the claim without an exchange when the block is left; the rollout is incomplete for that reason.

        Args:
            reason: shown in the gap, at most 64 letters, digits or `_`; empty: the call was never made and nothing is
                missing.

        Raises:
            ValueError: a reason of another form, or one that only the owner gives (`lost`, `damaged`, `unaccounted`).
        """
        self._reason = _checked(reason)

    def mark(self, reason: str) -> None:
        """Say that the exchange is not all of the call: committed, it leaves the rollout incomplete all the same.

        A claim that is closed without an exchange says why by itself, and this changes nothing.

        Args:
            reason: as in `release`.

        Raises:
            ValueError: as there.
        """
        self._mark = _checked(reason)

    def _frozen(self, given: Mapping[str, Any]) -> Snapshot:
        if self._ended is None:
            self.ended()
        completed_at, latency_ms = self._ended or (0.0, 0.0)
        measured = {
            "started_at": self._started_at,
            "completed_at": completed_at,
            "latency_ms": latency_ms,
            "latency_ttft_ms": self._first_token_ms,
        }
        identity = {"model_call_id": self._model_call_id, "dialect": self._fields["dialect"]}
        exchange = build_exchange({**measured, **thaw_fields({**self._fields, **given}), **identity})
        return snapshot_call(exchange, self._host.options.redaction)

    # -- entering and leaving -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        ticket = self._ticket
        if ticket.state is not ClaimState.NEW or ticket.leaving:
            raise RuntimeError("a claim is used once; make another with rollout.claim()")
        self._counted = self._issued.add(self._model_call_id)
        try:
            await self._host.perform(ticket)
        except GymCaptureError as error:
            logger.warning("a model call is not captured: %s", error)
        except BaseException:
            # Cancelled before the claim was acknowledged: the call was never made.
            ticket.leaving = True
            self._host.post(self._released(""))
            raise
        self._incarnation = self._host.incarnation
        ticket.entered = True
        clock = self._host.clock
        self._started_at, self._started = clock.time(), clock.monotonic()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        operation = self._closing(error)
        if operation is None:
            return
        beside = self._claimed_beside(operation)
        try:
            if isinstance(error, GeneratorExit):
                # The coroutine is being destroyed and must not wait.
                self._host.post(operation)
                return
            self._committed = await self._host.perform(operation)
        except GymCaptureError as error:
            value = CallOutcome.RELEASED if isinstance(operation, Release) else CallOutcome.DROPPED
            self._committed = Committed(value, self._ticket.generation)
            logger.warning("an exchange of rollout %s is lost: %s", self._ticket.rollout, error)
        finally:
            if beside is not None:
                self._host.post(Release(beside, self._mark))

    def detach(self, cause: str = "cancelled") -> None:
        """Leave the claim at once, without waiting: what is known of the call is committed in the background.

        What `complete` was given is committed as it is, what `release` said is done. Otherwise the request, response
        and other fields that were noted are committed as a failed call, whatever of them there is. Safe where nothing
        can be awaited: in a task that is being cancelled, while its loop closes, in another thread. Leaving the block
        afterwards, or detaching again, changes nothing. Quiescence and `CaptureClient.close` wait for the commit. While
        the owner is away it is buffered, and dropped (counted, the rollout marked) when the buffer is full.

        Args:
            cause: the `error_category` of the failure, unless `note` gave one.

        Raises:
            RuntimeError: the claim was not entered yet.
        """
        ticket = self._ticket
        if not ticket.entered and not ticket.leaving:
            raise RuntimeError("a claim is detached after it was entered: async with rollout.claim(...) as call")
        if not self._begins_to_leave():
            return
        if self._reason is not None:
            self._detached = self._released(self._reason)
        else:
            snapshot = self._snapshot or self._failed(cause)
            self._detached = Commit(ticket.rollout, ticket.generation, snapshot, ticket, impatient=True)
        beside = self._claimed_beside(self._detached)
        self._host.post(self._detached)
        if beside is not None:
            self._host.post(Release(beside, self._mark))

    def _closing(self, error: BaseException | None) -> Commit | Release | None:
        """What closes the claim, given how the block was left."""
        ticket = self._ticket
        if not self._begins_to_leave():
            return None
        snapshot = self._snapshot
        if self._reason is not None:
            return self._released(self._reason)
        if snapshot is None:
            destroyed = isinstance(error, GeneratorExit)
            if error is None or (destroyed and self._fields.get("response") is None):
                return Release(ticket, RELEASED)
            category = "cancelled" if destroyed else error_category_for_exception(error)
            snapshot = self._failed(category)
        impatient = error is not None and not isinstance(error, Exception)
        return Commit(ticket.rollout, ticket.generation, snapshot, ticket, impatient=impatient)

    def _released(self, reason: str) -> Release:
        if not reason and self._counted:
            self._issued.discard(self._model_call_id)
        return Release(self._ticket, reason)

    def _claimed_beside(self, operation: Commit | Release) -> Ticket | None:
        """A further claim on the same call, handed in before its commit so that no quiescence falls between the two.

        Released with a reason it marks the rollout, and both are one call to whoever counts.
        """
        if not self._mark or isinstance(operation, Release):
            return None
        ticket = self._ticket
        beside = Ticket(ticket.rollout, ticket.model_call_id, ticket.generation)
        beside.leaving = True
        self._host.post(beside)
        return beside

    def _begins_to_leave(self) -> bool:
        """Whether this is what closes the claim: once, after it was entered, in the process that entered it."""
        ticket = self._ticket
        if ticket.leaving or not ticket.entered:
            return False
        ticket.leaving = True
        if self._incarnation is self._host.incarnation:
            return True
        # A forked child left the block: the claim is the parent's.
        self._committed = Committed(CallOutcome.RELEASED, ticket.generation)
        return False

    def _failed(self, category: str) -> Snapshot:
        return self._frozen({"error_category": self._fields.get("error_category") or category})

    def __del__(self) -> None:
        ticket = getattr(self, "_ticket", None)
        if ticket is None or ticket.leaving or not ticket.entered:
            return
        ticket.leaving = True
        if self._incarnation is self._host.incarnation:
            self._host.post(Release(ticket, RELEASED))


def _checked(reason: str) -> str:
    if _REASON.fullmatch(reason) is None:
        raise ValueError(f"reason {reason[:80]!r}: give at most 64 letters, digits or '_'")
    if reason in OWNERS_REASONS:
        raise ValueError(f"reason {reason!r} is what the owner itself says; give another word")
    return reason


class BlockingClaim(ClaimHandle):
    """The same for code without a loop: use it with `with`."""

    def __enter__(self) -> Self:
        return run_blocking(self.__aenter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        run_blocking(self.__aexit__(kind, error, traceback))
