"""Capture at the model server: an ASGI middleware, and a proxy for servers that nobody can change."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gym_capture.asgi.current_rollout import current_rollout_id
    from gym_capture.asgi.middleware import CaptureMiddleware

_HOME = {
    "CaptureMiddleware": "gym_capture.asgi.middleware",
    "current_rollout_id": "gym_capture.asgi.current_rollout",
}

__all__ = ["CaptureMiddleware", "current_rollout_id"]


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
