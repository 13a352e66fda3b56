"""What a rollout function gets: its rollout's claims, bound to one generation, and the count of what it issued."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gym_capture.client.issued import check_issued
from gym_capture.model.ids import join_rollout_token

if TYPE_CHECKING:
    from gym_capture.client.claim import ClaimHandle
    from gym_capture.client.client import CaptureClient
    from gym_capture.client.rollout import RolloutHandle


class Session:
    """One attempt at one rollout, as its rollout function sees it. Can be pickled; a copy counts for itself.

    Args:
        row: the input row.
        rollout_id: the id that the attempt captures under.
        attempt: its attempt index, 0 for the first.
        generation: the token: whatever is captured through this session belongs to that generation, or is fenced.
        capture: the run's client. Without observability it takes the same calls and does nothing.
    """

    def __init__(
        self,
        *,
        row: dict[str, Any],
        rollout_id: str,
        attempt: int,
        generation: int,
        capture: CaptureClient,
    ) -> None:
        self.row = row
        self.rollout_id = rollout_id
        self.attempt = attempt
        self.generation = generation
        self.capture = capture
        self._elsewhere = 0
        self._rollout: RolloutHandle = capture.rollout(rollout_id, generation=generation)

    def claim(
        self,
        *,
        dialect: str,
        model_ref: Mapping[str, str] | None = None,
        model_call_id: str | None = None,
        **fields: Any,
    ) -> ClaimHandle:
        """Claim one model call before it is made: `async with session.claim(dialect="chat") as call: …`.

        Args:
            dialect: `chat`, `responses` or `messages`.
            model_ref: `{type, name}` of the model server.
            model_call_id: the call's identity; None: a new one.
            fields: any other key of an exchange.
        """
        return self._rollout.claim(dialect=dialect, model_ref=model_ref, model_call_id=model_call_id, **fields)

    async def record(self, exchange: Mapping[str, Any]) -> int:
        """Commit an exchange that is at hand already. Returns its call index, once it is on disk.

        Raises:
            GymCaptureError: it was not captured; which ones, and when, `RolloutHandle.record` says.
        """
        return await self._rollout.record(exchange)

    @property
    def token(self) -> str:
        """`<rollout id>~<generation>`: the path segment of `/ng-rollout/<token>/…` for calls through a model server."""
        return join_rollout_token(self.rollout_id, self.generation)

    @property
    def issued(self) -> int:
        """How many model calls were begun: claimed or recorded here, or added by `count_issued`.

        The merge compares it with what arrived; what is unaccounted for is a gap.
        """
        return self._elsewhere + self._rollout.issued

    def count_issued(self, calls: int) -> None:
        """Add model calls that were made elsewhere for this attempt: through a model server, or by a copy of this
        session in another process (its `issued`).

        Raises:
            ValueError: not a whole number from 0 on.
        """
        self._elsewhere = check_issued(self._elsewhere + check_issued(calls))
