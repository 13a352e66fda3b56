"""One rollout, as a worker sees it: claims and records, bound to a generation or to whichever is current."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gym_capture.client.blocking_mode import run_blocking
from gym_capture.client.claim import BlockingClaim, ClaimHandle
from gym_capture.client.host import Host
from gym_capture.client.issued import IssuedCalls
from gym_capture.client.operations import Commit, Committed
from gym_capture.client.outcome import CallOutcome
from gym_capture.client.verifier import with_verifier
from gym_capture.errors import (
    ConflictingExchange,
    DroppedExchange,
    ExchangeTooLarge,
    Fenced,
    InvalidExchange,
    OwnerUnavailable,
)
from gym_capture.model.exchange import Snapshot, snapshot
from gym_capture.model.ids import MAX_GENERATION, validate_rollout_id
from gym_capture.model.rows import CURRENT, Outcome


class RolloutClient(Protocol):
    """What a handle needs of the client that made it (`CaptureClient`)."""

    @property
    def host(self) -> Host:
        """Where operations are handed in."""

    def issued_calls(self, origin: str) -> IssuedCalls:
        """The count that a handle shares with its copies in this process."""

    async def quiesce(self, rollout_id: str | None = None, timeout_s: float | None = None) -> bool:
        """Wait until nothing of that rollout is outstanding."""


class RolloutHandle:
    """A rollout that calls are captured for. Made by `CaptureClient.rollout`; pickles, and may be used anywhere.

    Args:
        client: the client that made it.
        rollout_id: the rollout's id.
        generation: the token that `clear` returned, or None: whichever generation is current at each claim.
        origin: which handle this is a copy of.
    """

    def __init__(self, client: RolloutClient, rollout_id: str, generation: int | None, origin: str) -> None:
        self._client = client
        self._id = validate_rollout_id(rollout_id)
        self._generation = check_generation(generation)
        self._origin = origin
        self._issued = client.issued_calls(origin)

    @property
    def id(self) -> str:
        """The rollout's id."""
        return self._id

    @property
    def generation(self) -> int | None:
        """The generation that it is bound to."""
        return None if self._generation == CURRENT else self._generation

    @property
    def issued(self) -> int:
        """How many distinct calls were claimed or recorded by this handle and its copies in this process.

        Give it to `merge(record, issued=...)`: calls that are nowhere then show as a gap.
        """
        return self._issued.count

    @property
    def max_exchange_bytes(self) -> int:
        """Larger exchanges are refused, as far as this process knows."""
        return self._host.options.max_exchange_bytes

    def count_issued_elsewhere(self, calls: int = 1) -> None:
        """Add calls that are issued for this rollout and claimed by somebody else, a capturing proxy say.

        Raises:
            ValueError: not a whole number from 0 on.
        """
        self._issued.add_elsewhere(calls)

    def claim(
        self,
        *,
        dialect: str,
        model_ref: Mapping[str, str] | None = None,
        model_call_id: str | None = None,
        request: Any = None,
        verifier_invocation: Mapping[str, str] | None = None,
        **exchange_fields: Any,
    ) -> ClaimHandle:
        """A claim on one call: `async with rollout.claim(dialect="chat") as call: ...`.

        Args:
            dialect: `responses`, `chat` or `messages`.
            model_ref: the model server that is called, `{type, name}`.
            model_call_id: the call's identity in the rollout; made up when absent. The same id again is a retry.
            request: kept in case the call fails before `complete`.
            verifier_invocation: `{invocation_id, name}` when a verifier makes the call; None: that of the
                `gym_capture.verifier` block around this, if there is one.
            exchange_fields: any other key of the exchange.

        Raises:
            InvalidExchange: an unknown dialect, or a model_call_id that is no non-empty string.
        """
        fields = _claim_fields(dialect, model_ref, model_call_id, request, verifier_invocation, exchange_fields)
        return ClaimHandle(self._host, self._issued, self._id, self._generation, fields)

    def blocking_claim(self, **fields: Any) -> BlockingClaim:
        """`claim` for code without a loop; see `CaptureClient.sync`."""
        return BlockingClaim(self._host, self._issued, self._id, self._generation, fields)

    async def record(self, exchange: Mapping[str, Any]) -> int:
        """Write an exchange that is at hand. The same again changes nothing and returns the same index.

        Args:
            exchange: as the contract describes it; payloads as JSON values or bytes. A missing model_call_id is made
                up, and then giving it again is another exchange.

        Returns:
            Its call index in the rollout.

        Raises:
            InvalidExchange: it cannot be captured as given.
            ExchangeTooLarge: over `max_exchange_bytes`; the rollout is marked incomplete.
            Fenced: the generation was cleared; nothing was written.
            ConflictingExchange: another exchange stands under its model_call_id; the rollout is marked incomplete.
            OwnerUnavailable: the owner is away; the exchange is kept here and written when it is back.
            DroppedExchange: the owner is away and the buffer is full.
            ClientClosed: the client was closed.
        """
        host = self._host
        frozen = snapshot(with_verifier(exchange), lambda: host.entropy.bytes(16).hex(), host.options.redaction)
        self._issued.add(frozen.model_call_id)
        committed: Committed = await host.perform(Commit(self._id, self._generation, frozen))
        if committed.outcome in (CallOutcome.DURABLE, CallOutcome.DUPLICATE):
            return committed.call_index
        raise self._error(committed, frozen)

    def _error(self, committed: Committed, frozen: Snapshot) -> Exception:
        call = f"exchange {frozen.model_call_id} of rollout {self._id}"
        if committed.outcome is CallOutcome.FENCED:
            return Fenced(
                f"{call}: generation {committed.generation} was cleared since; nothing was written. Stop this attempt.",
                rollout_id=self._id,
                generation=committed.generation,
            )
        if committed.outcome is CallOutcome.BUFFERED:
            return OwnerUnavailable(
                f"{call}: the capture owner is away; the exchange is kept in this process and written when it is "
                "back. Giving it again under the same model_call_id doubles nothing.",
                model_call_id=frozen.model_call_id,
            )
        if committed.outcome is CallOutcome.DROPPED:
            return DroppedExchange(
                f"{call}: the capture owner is away and the buffer is full; the exchange is lost, counted, and the "
                "rollout will be marked incomplete.",
                model_call_id=frozen.model_call_id,
            )
        if committed.row_outcome == Outcome.CONFLICT:
            return ConflictingExchange(
                f"{call}: another exchange was committed under this id; it stands, this one was not written and the "
                "rollout is marked incomplete. Give each call its own model_call_id.",
                model_call_id=frozen.model_call_id,
            )
        if committed.row_outcome == Outcome.TOO_LARGE:
            return ExchangeTooLarge(
                f"{call} has {frozen.raw_bytes} bytes, more than max_exchange_bytes; it was not written and the "
                "rollout is marked incomplete.",
                model_call_id=frozen.model_call_id,
                size_bytes=frozen.raw_bytes,
            )
        if committed.row_outcome == Outcome.UNKNOWN_GENERATION:
            return InvalidExchange(f"{call}: the rollout has no generation {self._generation}; nothing was written.")
        return InvalidExchange(f"{call}: the owner refused it; nothing was written.")

    async def quiesce(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing of this rollout is outstanding; see `CaptureClient.quiesce`."""
        return await self._client.quiesce(self._id, timeout_s=timeout_s)

    @property
    def _host(self) -> Host:
        return self._client.host

    def __reduce__(self) -> tuple[Any, ...]:
        return (_reopen, (self._client, self._id, self.generation, self._origin))

    def __repr__(self) -> str:
        return f"<RolloutHandle {self._id} generation={self.generation}>"


class BlockingRollout:
    """`RolloutHandle` for code without a loop."""

    def __init__(self, rollout: RolloutHandle) -> None:
        self._rollout = rollout

    @property
    def handle(self) -> RolloutHandle:
        """The handle that this is the blocking twin of."""
        return self._rollout

    @property
    def id(self) -> str:
        """The rollout's id."""
        return self._rollout.id

    @property
    def generation(self) -> int | None:
        """The generation that it is bound to."""
        return self._rollout.generation

    @property
    def issued(self) -> int:
        """As `RolloutHandle.issued`."""
        return self._rollout.issued

    def count_issued_elsewhere(self, calls: int = 1) -> None:
        """As `RolloutHandle.count_issued_elsewhere`."""
        self._rollout.count_issued_elsewhere(calls)

    def claim(self, *, dialect: str, **exchange_fields: Any) -> BlockingClaim:
        """As `RolloutHandle.claim`, to be used with `with`."""
        return self._rollout.blocking_claim(dialect=dialect, **exchange_fields)

    def record(self, exchange: Mapping[str, Any]) -> int:
        """As `RolloutHandle.record`."""
        return run_blocking(self._rollout.record(exchange))

    def quiesce(self, timeout_s: float | None = None) -> bool:
        """As `RolloutHandle.quiesce`."""
        return run_blocking(self._rollout.quiesce(timeout_s))


def _reopen(client: RolloutClient, rollout_id: str, generation: int | None, origin: str) -> RolloutHandle:
    return RolloutHandle(client, rollout_id, generation, origin)


def _claim_fields(
    dialect: str,
    model_ref: Mapping[str, str] | None,
    model_call_id: str | None,
    request: Any,
    verifier_invocation: Mapping[str, str] | None,
    exchange_fields: Mapping[str, Any],
) -> dict[str, Any]:
    if "generation" in exchange_fields:
        raise TypeError("a claim takes no generation: give it to the handle, capture.rollout(rollout_id, generation=…)")
    fields: dict[str, Any] = {"model_call_id": model_call_id, "dialect": dialect, "model_ref": model_ref}
    if request is not None:
        fields["request"] = request
    if verifier_invocation is not None:
        fields["verifier_invocation"] = verifier_invocation
    fields.update(exchange_fields)
    return fields


def check_generation(generation: int | None) -> int:
    """A generation as rows carry it.

    Raises:
        ValueError: not a number that `clear` can have returned.
    """
    if generation is None:
        return CURRENT
    if type(generation) is not int or not 0 <= generation <= MAX_GENERATION:
        raise ValueError(f"generation {generation!r}: give the number that clear() returned, or None")
    return generation
