"""The actor's name, and which owner settings two starts of one run have to agree on."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from gym_capture.config import CaptureConfig

NAMESPACE = "gym_capture"
"""The Ray namespace of owners where the configuration names no other."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_BASENAME_CHARACTERS = 40

_OWNER_KEYS = (
    "shards",
    "lease_s",
    "max_exchange_bytes",
    "max_batch_bytes",
    "owner_buffer_bytes",
    "segment_bytes",
    "max_concurrency",
    "endpoint.host",
    "endpoint.port",
    "placement.node",
    "placement.resources",
    "redact.paths",
    "redact.patterns",
)


def default_actor_name(directory: str | Path) -> str:
    """The name of the owner of a directory when none is configured: the same on every node that sees that path.

    Args:
        directory: the capture directory; symbolic links are resolved, so two ways to it give one name.
    """
    real = os.path.realpath(directory)
    digest = hashlib.sha256(real.encode("utf-8", "surrogateescape")).hexdigest()[:10]
    base = _NOT_IN_NAMES.sub("_", os.path.basename(real))[:_BASENAME_CHARACTERS] or "root"
    return f"capture-{base}-{digest}"


def owner_settings(config: CaptureConfig) -> dict[str, Any]:
    """The settings that belong to the owner, and those that all clients must share, by their key in the configuration.

    A second `start` of a run has to agree on all of them (`SettingsDiffer`).
    """
    capture = config.capture.model_dump(mode="python")
    settings: dict[str, Any] = {}
    for key in _OWNER_KEYS:
        value: Any = capture
        for part in key.split("."):
            value = value[part]
        settings[f"capture.{key}"] = value
    return settings


def differing_keys(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """The keys, sorted, that two `owner_settings` do not agree on."""
    absent = object()
    return sorted(key for key in ours.keys() | theirs.keys() if ours.get(key, absent) != theirs.get(key, absent))
