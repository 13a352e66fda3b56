"""One attempt at one rollout, and how it ended."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from typing import Any

from gym_capture.collect.rows import InputRow

MAX_TRACEBACK_CHARACTERS = 8_000
WORKER_DIED = "WorkerDied"
TIMED_OUT = "RolloutTimeout"
INVALID_RECORD = "InvalidRecord"
"""Error types of attempts that ended otherwise than by an exception of the rollout function."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try. `number` is the attempt index (a retry's id ends in `-a{number}`), `tries_left` those after this one."""

    source: InputRow
    number: int
    tries_left: int

    @property
    def rollout_id(self) -> str:
        """The id that it captures under."""
        return self.source.identity.rollout_id(self.number)

    @property
    def fields(self) -> dict[str, Any]:
        """The identity keys of its record."""
        return self.source.identity.fields(self.number)

    def next(self) -> Attempt:
        """The attempt after this one."""
        return replace(self, number=self.number + 1, tries_left=self.tries_left - 1)


@dataclass(frozen=True, slots=True)
class Finished:
    """The rollout function returned. `record`: None when it returned None; `issued`: model calls that it began."""

    record: dict[str, Any] | None
    issued: int | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt came to nothing.

    Args:
        error_type: an exception's class name, or one of this module's.
        message: what it said.
        traceback: the end of the worker's traceback, empty where there is none.
        issued: model calls that it began; None when the process that knew is gone.
    """

    error_type: str
    message: str
    traceback: str
    issued: int | None

    @classmethod
    def by(cls, error: BaseException, issued: int | None) -> Failed:
        """The failure that an exception stands for."""
        text = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, str(error), text[-MAX_TRACEBACK_CHARACTERS:], issued)


Ending = Finished | Failed
