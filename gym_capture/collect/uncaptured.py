"""Claims that capture nothing, for runs with `observability_enabled: false`: rollout functions need not ask."""

from __future__ import annotations

import uuid
from types import TracebackType
from typing import Any, Self


class UncapturedClaim:
    """Takes whatever a `ClaimHandle` takes, and keeps none of it.

    Attributes:
        outcome, call_index, generation: always None, as nothing was captured.
    """

    outcome = None
    call_index = None
    generation = None

    def __init__(self, model_call_id: str | None = None) -> None:
        self.model_call_id = model_call_id or uuid.uuid4().hex

    def first_token(self) -> None:
        """Nothing is timed."""

    def note(self, **fields: Any) -> None:
        """Nothing is kept."""

    def complete(self, request: Any = None, response: Any = None, status_code: int | None = 200, **fields: Any) -> None:
        """Nothing is committed."""

    def release(self, reason: str = "") -> None:
        """Nothing is missing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None
