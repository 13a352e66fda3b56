"""Durable capture of every model call of an RL rollout collection on Ray.

`start` gets or creates a run's owner, `connect` finds one; both give a `CaptureClient`. `CaptureStore` reads a capture
directory without any owner. Importing this package loads no Ray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gym_capture.api import connect, start
    from gym_capture.client.client import CaptureClient
    from gym_capture.client.verifier import current_verifier, verifier
    from gym_capture.config import CaptureConfig, load_config
    from gym_capture.errors import GymCaptureError
    from gym_capture.storage.store import CaptureStore

_HOME = {
    "CaptureClient": "gym_capture.client.client",
    "CaptureConfig": "gym_capture.config",
    "CaptureStore": "gym_capture.storage.store",
    "GymCaptureError": "gym_capture.errors",
    "connect": "gym_capture.api",
    "current_verifier": "gym_capture.client.verifier",
    "load_config": "gym_capture.config",
    "start": "gym_capture.api",
    "verifier": "gym_capture.client.verifier",
}

__all__ = [
    "CaptureClient",
    "CaptureConfig",
    "CaptureStore",
    "GymCaptureError",
    "__version__",
    "connect",
    "current_verifier",
    "load_config",
    "start",
    "verifier",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
