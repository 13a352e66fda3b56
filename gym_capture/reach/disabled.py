"""The client of a run whose observability is off: every call returns at once and captures nothing."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from gym_capture.client.client import CaptureClient
from gym_capture.client.operations import Ask, ClaimState, Commit, Committed, Operation, Release, Rows, Ticket
from gym_capture.client.options import ClientOptions
from gym_capture.client.outcome import CallOutcome
from gym_capture.model.clock import Clock, SystemClock
from gym_capture.model.entropy import Entropy, SystemEntropy
from gym_capture.model.messages import Stats
from gym_capture.model.rows import Outcome, Result

T = TypeVar("T")


class DisabledHost:
    """Answers every operation as if nothing were outstanding, and sends none."""

    def __init__(self) -> None:
        self.options = ClientOptions()
        self.clock: Clock = SystemClock()
        self.entropy: Entropy = SystemEntropy()
        self.transport_name = "disabled"
        self.incarnation: object = None

    async def perform(self, operation: Operation) -> Any:
        """The answer, at once."""
        if isinstance(operation, Ticket):
            return ClaimState.UNCLAIMED
        if isinstance(operation, Commit) and operation.ticket is None:
            # A `record` has no outcome to tell: its call index is none.
            return Committed(CallOutcome.DUPLICATE, 0)
        if isinstance(operation, Commit | Release):
            return Committed(CallOutcome.RELEASED, 0)
        if isinstance(operation, Rows):
            return [Result(Outcome.APPLIED, 0) for _ in operation.rows]
        if isinstance(operation, Ask):
            return ({}, b"") if isinstance(operation.request, Stats) else (True, b"")
        return True

    def post(self, operation: Operation) -> None:
        """Nothing."""

    async def foreign(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine."""
        return await work

    def core_stats(self) -> dict[str, Any]:
        """No counters."""
        return {}

    async def close(self, timeout_s: float) -> bool:
        """Nothing is left."""
        return True


class DisabledClient(CaptureClient):
    """A `CaptureClient` with nothing behind it.

    Claims end as `released`, `record` returns -1, `clear` returns generation 0 for every id, `quiesce` True, and
    `merge` the record as it is.
    """

    def __init__(self) -> None:
        super().__init__(DisabledHost(), reopen=(disabled_client, ()))

    async def merge(
        self,
        record: dict[str, Any],
        include_payloads: bool = False,
        *,
        issued: int | None = None,
        timeout_s: float | None = None,
        generation: int | None = None,
    ) -> dict[str, Any]:
        """The record, unchanged."""
        return record


def disabled_client() -> CaptureClient:
    """A new one; also what an unpickled one is."""
    return DisabledClient()
