"""Extras: whether their packages are there, asked before anything is started, and how to get them."""

from __future__ import annotations

import importlib.util

from gym_capture.errors import MissingExtra

PACKAGES = {"proxy": ("uvicorn", "httptools", "aiohttp"), "view": ("uvicorn", "starlette")}
"""What cannot be started without, by extra."""


def how_to_install(extra: str) -> str:
    """The command that brings an extra (or several, with commas between), as an error's message ends with it."""
    return f"pip install 'gym-capture[{extra}]' (from a checkout: pip install '.[{extra}]')"


def require_extra(extra: str, user: str) -> None:
    """Return when an extra can be used here.

    Args:
        extra: its name in the project's metadata.
        user: what needs it, as the message names it.

    Raises:
        MissingExtra: a package is not installed.
    """
    absent = [name for name in PACKAGES[extra] if importlib.util.find_spec(name) is None]
    if absent:
        raise MissingExtra(
            f"{user} needs {', '.join(absent)}, which this environment has not. Nothing was started; "
            f"{how_to_install(extra)}",
            missing=absent,
        )
