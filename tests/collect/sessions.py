"""Sessions over a capture that keeps everything in lists."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from gym_capture.collect.session import Session


class RecordingClaim:
    """What a claim does, written down."""

    def __init__(self, rollout: RecordingRollout, fields: dict[str, Any]) -> None:
        self._rollout = rollout
        self._fields = fields
        self._done: dict[str, Any] | None = None
        self._released = False

    def note(self, **fields: Any) -> None:
        self._fields.update(fields)

    def complete(self, **fields: Any) -> None:
        self._done = {**self._fields, **fields}

    def release(self, reason: str = "released") -> None:
        self._released = True

    async def __aenter__(self) -> Self:
        self._rollout.issued += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        capture = self._rollout.capture
        if self._done is not None and not self._released:
            capture.exchanges.append(self._done)
        else:
            capture.released += 1


class RecordingRollout:
    """Stands in for a `RolloutHandle`."""

    def __init__(self, capture: RecordingCapture) -> None:
        self.capture = capture
        self.issued = 0

    def claim(self, **fields: Any) -> RecordingClaim:
        return RecordingClaim(self, fields)

    async def record(self, exchange: Mapping[str, Any]) -> None:
        self.issued += 1
        self.capture.exchanges.append(dict(exchange))


class RecordingCapture:
    """Stands in for a `CaptureClient`."""

    def __init__(self) -> None:
        self.exchanges: list[dict[str, Any]] = []
        self.released = 0
        self.handles: list[tuple[str, int | None]] = []

    def rollout(self, rollout_id: str, generation: int | None = None) -> RecordingRollout:
        self.handles.append((rollout_id, generation))
        return RecordingRollout(self)


def recording_session(capture: RecordingCapture, row: dict[str, Any], attempt: int = 0, generation: int = 1) -> Session:
    """A session of rollout 0-0."""
    return Session(
        row=row,
        rollout_id="0-0",
        attempt=attempt,
        generation=generation,
        capture=capture,  # type: ignore[arg-type]  # all that a session asks of a client
    )
