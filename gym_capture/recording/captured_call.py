"""One model call observed over HTTP: the claim around it, and what is recorded of it.

Used by whatever sees the bytes (the middleware, the transports of HTTP clients). Capture's own troubles end here: no
method raises for them, and the rollout is marked instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gym_capture.client.blocking_mode import is_blocking
from gym_capture.client.claim import ClaimHandle
from gym_capture.client.outcome import CallOutcome
from gym_capture.client.rollout import RolloutHandle
from gym_capture.client.trouble_log import TroubleLog
from gym_capture.model.clock import SystemClock
from gym_capture.model.verifiers import VERIFIER_KEY
from gym_capture.recording.background import answered_later
from gym_capture.recording.headers import Headers
from gym_capture.recording.recorder import ExchangeRecorder, RecordingPolicy

logger = logging.getLogger("gym_capture.recording")

T = TypeVar("T")

FAULTY = "recorder"
"""The reason that marks a rollout when capture itself failed on one of its calls."""

UNOBSERVED = "unobserved"
"""The reason that marks a rollout when a model may have answered, or will, in a way that is not recorded."""

_NOT_A_CALL = "chat"
"""A claim names a dialect; one that only ever is released never shows it."""

_log = TroubleLog(SystemClock())


class CapturedCall:
    """A call from its claim to its end: `begin`, what passes in order, then one of the ends.

    The ends are `commit`, `detach`, `release` and `abandon`; the first one counts, later ones change nothing.

    Args:
        rollout: whose call it is, from `CaptureClient.rollout`.
        dialect: `responses`, `chat` or `messages`; None for a request that may have called a model in some other way:
            it is claimed, so that quiescence waits, and can only be released.
        policy: how much is kept.
        request_headers: as they came; not kept.
        model_ref: what the call names as its model server.
    """

    def __init__(
        self,
        rollout: RolloutHandle,
        dialect: str | None,
        policy: RecordingPolicy,
        request_headers: Headers = (),
        *,
        model_ref: Mapping[str, str] | None = None,
    ) -> None:
        self._rollout = rollout
        self._dialect = dialect
        self._model_ref = model_ref
        self._claim: ClaimHandle | None = None
        self._recorder: ExchangeRecorder | None = None
        self._faulty = False
        self._first_token = False
        self.closed = False
        if dialect is not None:
            self._recorder = self._guarded(ExchangeRecorder, dialect, policy, request_headers)

    @property
    def recorded(self) -> bool:
        """Whether it is of a dialect, so that there is an exchange to be written."""
        return self._dialect is not None

    @property
    def outcome(self) -> CallOutcome | None:
        """What became of the exchange; None before its end, and where it could not be claimed at all."""
        return self._claim.outcome if self._claim is not None else None

    @property
    def notes(self) -> dict[str, Any]:
        """Exchange fields (`recorder.NOTES`) that whoever answers may set until the end."""
        return self._recorder.notes if self._recorder is not None else {}

    async def begin(self) -> None:
        """Claim. Returns once that is on disk, or the owner has been away for longer than `patience_s`.

        Cancelled meanwhile, the claim is withdrawn.
        """
        fields: dict[str, Any] = {"dialect": self._dialect or _NOT_A_CALL, "model_ref": self._model_ref}
        recorder = self._recorder
        if recorder is not None and recorder.verifier is not None:
            fields[VERIFIER_KEY] = recorder.verifier
        if recorder is not None and recorder.client_session_id is not None:
            fields["client_session_id"] = recorder.client_session_id
        try:
            claim = self._rollout.claim(**fields)
            await claim.__aenter__()
        except Exception as error:  # noqa: BLE001 - the call goes on whatever is wrong with capture
            self._say(error)
        else:
            self._claim = claim

    # -- what passes --------------------------------------------------------------------------------------------

    def request_body(self, data: bytes) -> None:
        """The next bytes of the request's body."""
        if self._recorder is not None and not self.closed:
            self._guarded(self._recorder.request_body, data)

    def response_started(self, status: int, headers: Headers) -> None:
        """The response's head."""
        if self._recorder is not None and not self.closed:
            self._guarded(self._recorder.response_started, status, headers)

    def response_body(self, data: bytes) -> int | None:
        """The next bytes of the response's body.

        Returns:
            From where in `data` on they are to wait for `commit`, because the caller then has all of the response; None
            while nothing is to wait.
        """
        recorder = self._recorder
        if recorder is None or self.closed or self._faulty:
            return None
        try:  # as in `_guarded`, without its calls: a stream comes here for every event
            hold = recorder.response_body(data)
            if not self._first_token and self._claim is not None and recorder.first_token_seen:
                self._first_token = True
                self._claim.first_token()
        except Exception as error:  # noqa: BLE001 - as there
            self._give_up(error)
            return None
        return hold

    def response_ended(self) -> None:
        """The response's body is over."""
        if self._recorder is not None and not self.closed:
            self._guarded(self._recorder.response_ended)

    # -- the ends -----------------------------------------------------------------------------------------------

    async def commit(self, cause: str | None = None) -> None:
        """Write the exchange; returns once it is on disk. Cancelled meanwhile, it is still written.

        Args:
            cause: why the call ended early, where it did: an `error_category`.
        """
        claim = self._taken()
        if claim is None:
            return
        if self._is_small():
            self._complete(claim, cause)
        else:
            await self._completed_aside(claim, cause)
        await self._leave(claim)

    def detach(self, cause: str) -> None:
        """Write what is known of the exchange, without waiting. Safe where nothing can be awaited."""
        claim = self._taken()
        if claim is None:
            return
        if self._is_small():
            self._complete(claim, cause)
            self._let_go(claim, cause)
            return

        def work() -> None:
            self._complete(claim, cause)
            self._let_go(claim, cause)

        self._guarded(claim.ended)
        claim.aside(work)

    async def release(self, reason: str) -> None:
        """End without an exchange; the rollout is incomplete for that reason, or not at all where it is empty."""
        await self._leave(self._released(reason))

    def abandon(self, reason: str) -> None:
        """`release` without waiting."""
        self._let_go(self._released(reason), "cancelled")

    def _is_small(self) -> bool:
        """Whether the exchange is looked through at once: a large one would hold up all others of the loop."""
        recorder = self._recorder
        return recorder is None or self._faulty or not self._guarded(lambda: recorder.is_large)

    async def _completed_aside(self, claim: ClaimHandle, cause: str | None) -> None:
        self._guarded(claim.ended)
        if is_blocking():
            self._complete(claim, cause)
            return
        work = claim.aside(lambda: self._complete(claim, cause))
        try:
            await asyncio.shield(asyncio.wrap_future(work))
        except BaseException:
            # Cancelled, or the loop closes: it is still written, once it is ready.
            work.add_done_callback(lambda _: self._let_go(claim, "cancelled"))
            raise

    def _complete(self, claim: ClaimHandle, cause: str | None) -> None:
        recorder, fields = self._recorder, None
        if recorder is not None and not self._faulty:
            fields = self._guarded(recorder.exchange_fields, cause)
        if fields is not None:
            self._guarded(lambda: claim.complete(**fields))
            if self._guarded(answered_later, self._dialect, fields):
                claim.mark(UNOBSERVED)
        if fields is None or self._faulty:
            claim.release(FAULTY)
        self._recorder = None  # its bytes are the claim's now

    def _released(self, reason: str) -> ClaimHandle | None:
        claim = self._taken()
        if claim is not None:
            claim.release(reason)
        self._recorder = None
        return claim

    def _taken(self) -> ClaimHandle | None:
        """The claim, for the first of the ends."""
        if self.closed:
            return None
        self.closed = True
        return self._claim

    async def _leave(self, claim: ClaimHandle | None) -> None:
        if claim is None:
            return
        try:
            await claim.__aexit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - the response goes on whatever is wrong with capture
            self._say(error)

    def _let_go(self, claim: ClaimHandle | None, cause: str) -> None:
        if claim is None:
            return
        try:
            claim.detach(cause)
        except Exception as error:  # noqa: BLE001 - as above
            self._say(error)

    # -- capture's own troubles ---------------------------------------------------------------------------------

    def _guarded(self, step: Callable[..., T], *args: Any) -> T | None:
        """What a step of the recorder returns. One that fails is the last one, and the exchange is given up."""
        if self._faulty:
            return None
        try:
            return step(*args)
        except Exception as error:  # noqa: BLE001 - a fault of this package must never reach the response
            self._give_up(error)
            return None

    def _give_up(self, error: Exception) -> None:
        self._faulty = True
        self._say(error)

    def _say(self, error: Exception) -> None:
        _log.warn("fault", "a model call of rollout %s is not captured: %r", self._rollout.id, error)
        logger.debug("the fault", exc_info=error)
