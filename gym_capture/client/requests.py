"""Requests to the owner, and callers that wait for rows or for silence. Runs in the client's loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from gym_capture.client.delivery import Delivery
from gym_capture.client.operations import Ask, Flush, GiveUp, Rows
from gym_capture.client.outbox import Entry, Outbox
from gym_capture.client.presence import Presence
from gym_capture.client.unsettled import Unsettled
from gym_capture.errors import GymCaptureError, OwnerUnavailable, Superseded, from_wire
from gym_capture.model.messages import Call, Cancel, FromClient, Quiesce, Stop
from gym_capture.model.rows import Result

_GRACE_S = 1.0
"""How long after its time a `quiesce` still waits for the owner's own word, which is on its way."""

_AGAIN_S = 0.25


class Requests:
    """Requests under way, and those that wait until what was handed in before is answered.

    Args:
        send: sends a message when a link is open.
        turn: to be called after a timer has changed something.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        outbox: Outbox,
        unsettled: Unsettled,
        presence: Presence,
        delivery: Delivery,
        send: Callable[[FromClient], None],
        turn: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._outbox = outbox
        self._unsettled = unsettled
        self._presence = presence
        self._finish = delivery.finish
        self._send = send
        self._turn = turn
        self._last = 0
        self._ended: GymCaptureError | None = None
        self._asked: dict[int, Ask] = {}
        self._rows: set[Rows] = set()
        self._settling: dict[str | None, dict[Ask | Flush, None]] = {}

    @property
    def waiting(self) -> bool:
        """Whether a caller waits for an answer."""
        return bool(self._asked or self._rows)

    # -- requests -----------------------------------------------------------------------------------------------

    def ask(self, ask: Ask) -> None:
        """Send a request; answered by the owner's reply, or by an error once the owner is away for too long."""
        if self._ended is not None or self._presence.refused:
            self._finish(ask, error=self._ended or self._unavailable(ask))
            return
        self._last += 1
        ask.number = self._last
        ask.started = self._loop.time()
        ask.timer = self._loop.call_later(max(0.0, ask.timeout_s), self._asked_long_ago, ask)
        self._asked[ask.number] = ask
        request = ask.request
        if type(request) is Quiesce and self._unsettled.of(request.rollout):
            ask.settling = True
            self._settling.setdefault(request.rollout, {})[ask] = None
        elif self._presence.ready:
            self._put(ask)

    def _put(self, ask: Ask) -> None:
        request = ask.request
        if type(request) is Quiesce:
            left = ask.started + ask.timeout_s - self._loop.time()
            request = Quiesce(request.rollout, max(0.0, left), request.standing)
        ask.sent = True
        self._send(Call(ask.number, request))

    def link_opened(self) -> None:
        """Send again what is unanswered."""
        for ask in self._asked.values():
            if not ask.settling:
                self._put(ask)

    def link_broken(self) -> None:
        """What was sent may not have arrived."""
        for ask in self._asked.values():
            ask.sent = False

    def replied(self, number: int, value: Any, body: bytes) -> None:
        """The owner's answer to a request."""
        ask = self._asked.get(number)
        if ask is not None:
            if type(ask.request) is Stop:
                self._presence.stopped = True
            self._end(ask)
            self._finish(ask, (value, body))

    def failed(self, number: int, code: str, message: str) -> None:
        """The owner could not do what was asked."""
        ask = self._asked.get(number)
        if ask is None:
            return
        error = from_wire(code, message)
        if isinstance(error, OwnerUnavailable | Superseded):
            ask.sent = False
            self._loop.call_later(_AGAIN_S, self._put_again, ask)
            return
        self._end(ask)
        self._finish(ask, error=error)

    def _put_again(self, ask: Ask) -> None:
        if not ask.done and not ask.sent and self._presence.ready:
            self._put(ask)

    def _end(self, ask: Ask) -> None:
        self._asked.pop(ask.number, None)
        if ask.timer is not None:
            ask.timer.cancel()
        if ask.settling and type(ask.request) is Quiesce:
            ask.settling = False
            self._settled_or_given_up(ask.request.rollout, ask)

    def _settled_or_given_up(self, rollout: str | None, waiting: Ask | Flush) -> None:
        of_rollout = self._settling.get(rollout)
        if of_rollout is not None:
            of_rollout.pop(waiting, None)
            if not of_rollout:
                del self._settling[rollout]

    def _asked_long_ago(self, ask: Ask) -> None:
        now = self._loop.time()
        there = self._presence.ready and ask.sent
        if type(ask.request) is Quiesce:
            over = now - ask.started - ask.timeout_s
            if there and over < _GRACE_S:
                ask.timer = self._loop.call_later(_GRACE_S - over + 0.001, self._asked_long_ago, ask)
                return
            self._cancel(ask)
            self._finish(ask, (False, b""))
        elif there and now - ask.started < ask.timeout_s + self._presence.patience_s:
            # The time is for an owner that is away; this one is working on it, or its disk hangs.
            ask.timer = self._loop.call_later(max(1.0, ask.timeout_s), self._asked_long_ago, ask)
            return
        else:
            self._cancel(ask)
            self._finish(ask, error=self._unavailable(ask))
        self._turn()

    def _cancel(self, ask: Ask) -> None:
        if ask.sent and self._presence.ready:
            self._send(Cancel(ask.number))
        self._end(ask)

    def _unavailable(self, operation: Ask | Rows) -> GymCaptureError:
        trouble = self._presence.ended or self._presence.trouble
        if self._presence.refused and trouble is not None:
            return type(trouble)(str(trouble), **trouble.fields)
        what = type(operation.request).__name__.lower() if isinstance(operation, Ask) else "clear"
        why = f" ({trouble})" if trouble is not None else ""
        return OwnerUnavailable(
            f"{what}: the capture owner could not be reached within {operation.timeout_s:g} s{why}. Nothing was "
            "acknowledged; what was sent may still be applied, and asking again is safe."
        )

    # -- rows ---------------------------------------------------------------------------------------------------

    def rows(self, rows: Rows) -> None:
        """Have rows applied; answered by their results, or by an error once the owner is away for too long."""
        if self._ended is not None or self._presence.refused:
            self._finish(rows, error=self._ended or self._unavailable(rows))
            return
        rows.started = self._loop.time()
        rows.timer = self._loop.call_later(rows.timeout_s, self._rows_long_ago, rows)
        self._rows.add(rows)
        for place, row in enumerate(rows.rows):
            self._unsettled.hold(row.rollout)
            entry = Entry(row, partial(self._row_answered, rows, place))
            rows.entries.append(entry)
            self._outbox.add(entry)

    def _row_answered(self, rows: Rows, place: int, result: Result) -> None:
        rows.results[place] = result
        rows.missing -= 1
        self._unsettled.settle(rows.rows[place].rollout)
        if not rows.missing:
            self._end_rows(rows)
            self._finish(rows, rows.results)

    def _rows_long_ago(self, rows: Rows) -> None:
        worked_on = self._loop.time() - rows.started < rows.timeout_s + self._presence.patience_s
        if self._presence.ready and worked_on:
            rows.timer = self._loop.call_later(max(1.0, rows.timeout_s), self._rows_long_ago, rows)
            return
        self._withdraw(rows)
        self._finish(rows, error=self._unavailable(rows))
        self._turn()

    def _withdraw(self, rows: Rows) -> None:
        self._end_rows(rows)
        for entry in rows.entries:
            if not entry.sent and not entry.withdrawn:
                entry.withdrawn = True
                self._unsettled.settle(entry.row.rollout)

    def _end_rows(self, rows: Rows) -> None:
        self._rows.discard(rows)
        if rows.timer is not None:
            rows.timer.cancel()

    # -- silence ------------------------------------------------------------------------------------------------

    def flush(self, flush: Flush) -> None:
        """Answered once nothing is on its way, or at its time; at once where nothing will be sent any more."""
        if self._ended is not None or not self._unsettled.total:
            self._finish(flush, not self._unsettled.total)
            return
        flush.timer = self._loop.call_later(flush.timeout_s, self._flushed_too_long, flush)
        self._settling.setdefault(None, {})[flush] = None

    def _flushed_too_long(self, flush: Flush) -> None:
        self._settled_or_given_up(None, flush)
        self._finish(flush, False)
        self._turn()

    def settled(self) -> None:
        """Go on with those whose rollouts have nothing on its way any more."""
        emptied = self._unsettled.emptied
        if not emptied:
            return
        if self._settling:
            for rollout in emptied:
                if not self._unsettled.of(rollout):
                    self._go_on(rollout)
            if not self._unsettled.total:
                self._go_on(None)
        emptied.clear()

    def _go_on(self, rollout: str | None) -> None:
        for waiting in self._settling.pop(rollout, ()):
            if isinstance(waiting, Ask):
                waiting.settling = False
                if self._presence.ready:
                    self._put(waiting)
                continue
            if waiting.timer is not None:
                waiting.timer.cancel()
            self._finish(waiting, True)

    # -- the end ------------------------------------------------------------------------------------------------

    def give_up(self, operation: GiveUp) -> None:
        """A caller waits no longer."""
        given_up = operation.given_up
        if given_up.done:
            return
        if isinstance(given_up, Ask):
            self._cancel(given_up)
        elif isinstance(given_up, Rows):
            self._end_rows(given_up)
        else:
            if given_up.timer is not None:
                given_up.timer.cancel()
            self._settled_or_given_up(None, given_up)
        self._finish(given_up)

    def refuse(self) -> None:
        """The owner refuses or is not to be found: nobody should wait for it."""
        for ask in list(self._asked.values()):
            self._end(ask)
            self._finish(ask, error=self._unavailable(ask))
        for rows in list(self._rows):
            self._withdraw(rows)
            self._finish(rows, error=self._unavailable(rows))

    def end(self, error: GymCaptureError) -> None:
        """Nothing will be sent any more: answer everybody, now and later."""
        self._ended = error
        for ask in list(self._asked.values()):
            self._end(ask)
            self._finish(ask, error=error)
        for rows in list(self._rows):
            self._end_rows(rows)
            self._finish(rows, error=error)
        for flush in self._settling.pop(None, ()):
            self._finish(flush, False)
