"""What a run holds of Ray and of its owner, from start to end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gym_capture.collect.ray_worker import RayWorker
from gym_capture.config import CaptureConfig

if TYPE_CHECKING:
    from gym_capture.client.client import CaptureClient

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that can be dispatched: its client and what makes its workers."""

    capture: CaptureClient
    start_worker: Callable[[], RayWorker]


@asynccontextmanager
async def open_run(config: CaptureConfig, rollout: str) -> AsyncIterator[OpenRun]:
    """Start or join Ray and the owner; end what was started here. Blocks the event loop while it starts.

    Args:
        rollout: the rollout function's import path.
    """
    raise NotImplementedError
    yield
