"""What an owner is doing."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """The states of a `CaptureService`."""

    NEW = "new"
    SERVING = "serving"
    REOPENING = "reopening"
    """A write failed; the directory is being taken anew. Nothing is known until that is done."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    SUPERSEDED = "superseded"
