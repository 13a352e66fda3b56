"""What a rollout function gets: its rollout's claims, bound to one generation, and the count of what it issued."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gym_capture.client.issued import check_issued
from gym_capture.errors import ConfigError
from gym_capture.model.ids import join_rollout_token

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

    from gym_capture.client.claim import ClaimHandle
    from gym_capture.client.client import CaptureClient
    from gym_capture.client.rollout import RolloutHandle


logger = logging.getLogger(__name__)


class Session:
    """One attempt at one rollout, as its rollout function sees it. Can be pickled; a copy counts for itself.

    Args:
        row: the input row.
        rollout_id: the id that the attempt captures under.
        attempt: its attempt index, 0 for the first.
        generation: the token: whatever is captured through this session belongs to that generation, or is fenced.
        capture: the run's client. Without observability it takes the same calls and does nothing.
        proxy: `http://host:port` of the capturing proxy that model calls go through; None: there is none.
    """

    def __init__(
        self,
        *,
        row: dict[str, Any],
        rollout_id: str,
        attempt: int,
        generation: int,
        capture: CaptureClient,
        proxy: str | None = None,
    ) -> None:
        self.row = row
        self.rollout_id = rollout_id
        self.attempt = attempt
        self.generation = generation
        self.capture = capture
        self.proxy = proxy
        self._elsewhere = 0
        self._clients: list[AsyncOpenAI | AsyncAnthropic] = []
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
    def base_url(self) -> str:
        """The capturing proxy's URL for this attempt, `http://host:port/ng-rollout/<token>`.

        Anthropic's SDK takes it as it is; OpenAI's wants `/v1` after it.

        Raises:
            ConfigError: the run has no proxy.
        """
        if self.proxy is None:
            raise ConfigError(
                "this run has no capturing proxy, so there is no base_url: set proxy.upstream to the model server's URL"
            )
        return f"{self.proxy}/ng-rollout/{self.token}"

    def openai(self, **kwargs: Any) -> AsyncOpenAI:
        """An `openai.AsyncOpenAI` whose calls are captured for this attempt and counted as issued.

        With a proxy it calls that; without one the provider that it is told of, captured in this process. It is closed
        when the attempt ends, unless you did.

        Args:
            kwargs: anything that `AsyncOpenAI` takes, but `http_client`.

        Raises:
            MissingExtra: the package is not installed.
        """
        from gym_capture.integrations.sdk import openai_client

        client = openai_client(self._base_url_or_none, self._rollout, **kwargs)
        self._clients.append(client)
        return client

    def anthropic(self, **kwargs: Any) -> AsyncAnthropic:
        """An `anthropic.AsyncAnthropic`; otherwise as `openai`."""
        from gym_capture.integrations.sdk import anthropic_client

        client = anthropic_client(self._base_url_or_none, self._rollout, **kwargs)
        self._clients.append(client)
        return client

    async def close_clients(self) -> None:
        """Close the SDK clients that were made here. The worker does so when the attempt ends."""
        clients, self._clients = self._clients, []
        for client in clients:
            try:
                await client.close()
            except Exception as error:  # noqa: BLE001 - a connection that cannot be closed is no reason to fail a rollout
                logger.debug("a client of rollout %s did not close: %r", self.rollout_id, error)

    @property
    def _base_url_or_none(self) -> str | None:
        return None if self.proxy is None else self.base_url

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_clients": []}

    @property
    def issued(self) -> int:
        """How many model calls were begun: claimed or recorded here, through the clients of `openai` and `anthropic`,
        or added by `count_issued`.

        The merge compares it with what arrived; what is unaccounted for is a gap.
        """
        return self._elsewhere + self._rollout.issued

    def count_issued(self, calls: int) -> None:
        """Add model calls that were made elsewhere for this attempt: to `base_url` by a client of your own, or by a
        copy of this session in another process (its `issued`).

        Raises:
            ValueError: not a whole number from 0 on.
        """
        self._elsewhere = check_issued(self._elsewhere + check_issued(calls))
