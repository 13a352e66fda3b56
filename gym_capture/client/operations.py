"""What callers hand to the core: one object for each thing asked for, which carries the answer back.

A caller fills in the fields, the core's loop does everything else. An operation without a waiter is fire and forget.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from gym_capture.client.answer import Answer
from gym_capture.client.outbox import Entry
from gym_capture.client.outcome import CallOutcome
from gym_capture.errors import GymCaptureError
from gym_capture.model.exchange import Snapshot
from gym_capture.model.messages import Request, Stats, Stop
from gym_capture.model.rows import CURRENT, PENDING_INDEX, ClientRow, Result


class Operation:
    """One thing a caller asked for.

    Attributes:
        loop, answer: the waiting caller's loop and what it awaits there; None without one.
        gate: a lock that a blocking caller waits to acquire, or None.
        done: whether the answer is there.
        value, error: the answer.
    """

    __slots__ = ("answer", "done", "error", "gate", "loop", "value")

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.answer: Answer | None = None
        self.gate: threading.Lock | None = None
        self.done = False
        self.value: Any = None
        self.error: GymCaptureError | None = None

    def of_rollout(self) -> str | None:
        """The one rollout that it is about; None: it is about several, or about the run."""
        return None


class ClaimState(Enum):
    """Where a claim stands. Written by the core's loop only."""

    NEW = auto()
    WAITING = auto()
    """Its row is queued or under way."""
    OPEN = auto()
    CLOSING = auto()
    """The row that closes it is queued or under way."""
    CLOSED = auto()
    UNCLAIMED = auto()
    """The owner never saw it: it stayed away, or the claim was given up first."""
    REFUSED = auto()
    """The owner did not open it (fenced); `outcome` says why."""


class Ticket(Operation):
    """A claim, from its request to its end. Its value is the `ClaimState` that the call proceeds under.

    Attributes:
        generation: as given, then as the owner answered.
        entered: the caller has gone on with the call (set by the caller).
        leaving: the caller has handed in what closes the claim (set by the caller).
        outcome: why the owner refused it.
    """

    __slots__ = (
        "entered",
        "entry",
        "generation",
        "leaving",
        "model_call_id",
        "number",
        "outcome",
        "pending",
        "rollout",
        "state",
    )

    def __init__(self, rollout: str, model_call_id: str, generation: int) -> None:
        super().__init__()
        self.rollout = rollout
        self.model_call_id = model_call_id
        self.generation = generation
        self.number = 0
        self.state = ClaimState.NEW
        self.outcome: CallOutcome | None = None
        self.entered = False
        self.leaving = False
        self.entry: Entry | None = None
        """Its row, until it is answered."""
        self.pending: Callable[[], object] | None = None
        """What closes the claim, put off until the claim itself is answered."""

    def of_rollout(self) -> str:
        """The claim's."""
        return self.rollout


class Committed(NamedTuple):
    """The value of a commit or a release: what became of it, and where it stands.

    Fields: `row_outcome` is the owner's own word (`rows.Outcome`), where it gave one.
    """

    outcome: CallOutcome
    generation: int
    call_index: int = PENDING_INDEX
    row_outcome: int | None = None


class Commit(Operation):
    """An exchange to be written, under a claim or without one. Its value is a `Committed`.

    Args:
        impatient: the caller is being cancelled, so it waits only while the owner is there.

    Attributes:
        whole: the exchange that was sent as references, until it is answered; None: there is no room to keep it.
    """

    __slots__ = ("generation", "held_bytes", "impatient", "rollout", "snapshot", "ticket", "whole")

    def __init__(
        self,
        rollout: str,
        generation: int,
        snapshot: Snapshot,
        ticket: Ticket | None = None,
        *,
        impatient: bool = False,
    ) -> None:
        super().__init__()
        self.rollout = rollout
        self.generation = generation
        self.snapshot: Snapshot | None = snapshot
        self.ticket = ticket
        self.impatient = impatient
        self.whole: Snapshot | None = None
        self.held_bytes = 0

    def of_rollout(self) -> str:
        """The exchange's."""
        return self.rollout


class Release(Operation):
    """A claim to be closed without an exchange; an empty reason withdraws it. Its value is a `Committed`."""

    __slots__ = ("reason", "ticket")

    def __init__(self, ticket: Ticket, reason: str) -> None:
        super().__init__()
        self.ticket = ticket
        self.reason = reason

    def of_rollout(self) -> str:
        """The claim's."""
        return self.ticket.rollout


class Rows(Operation):
    """Rows to be applied as they are (clears). Its value is one `Result` for each.

    Args:
        timeout_s: how long to wait for an owner that is away, seconds.
    """

    __slots__ = ("entries", "missing", "results", "rows", "started", "timeout_s", "timer")

    def __init__(self, rows: Sequence[ClientRow], timeout_s: float) -> None:
        super().__init__()
        self.rows = rows
        self.timeout_s = timeout_s
        self.started = 0.0
        self.missing = len(rows)
        self.entries: list[Entry] = []
        self.results: list[Result] = [Result(0, CURRENT)] * len(rows)
        self.timer: asyncio.TimerHandle | None = None


class Ask(Operation):
    """A request to the owner. Its value is the reply's value and body.

    Args:
        timeout_s: how long to wait for an owner that is away (for a Quiesce: how long in all), seconds.
    """

    __slots__ = ("number", "request", "sent", "settling", "started", "timeout_s", "timer")

    def __init__(self, request: Request, timeout_s: float) -> None:
        super().__init__()
        self.request = request
        self.timeout_s = timeout_s
        self.number = 0
        self.started = 0.0
        self.sent = False
        self.settling = False
        self.timer: asyncio.TimerHandle | None = None

    def of_rollout(self) -> str | None:
        """The request's, where it is about one; a rollout's counters come with the run's."""
        return None if isinstance(self.request, Stats | Stop) else self.request.rollout


class Flush(Operation):
    """Wait until everything that was handed in is answered. Its value is whether that came to pass."""

    __slots__ = ("timeout_s", "timer")

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self.timeout_s = timeout_s
        self.timer: asyncio.TimerHandle | None = None


class GiveUp(Operation):
    """Nobody waits any more for that request."""

    __slots__ = ("given_up",)

    def __init__(self, given_up: Ask | Rows | Flush) -> None:
        super().__init__()
        self.given_up = given_up

    def of_rollout(self) -> str | None:
        """That of the request."""
        return self.given_up.of_rollout()
