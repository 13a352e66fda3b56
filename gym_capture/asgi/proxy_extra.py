"""Whether the packages of the `proxy` extra are there, asked before anything is started."""

from __future__ import annotations

import importlib.util

from gym_capture.errors import MissingExtra

PACKAGES = ("uvicorn", "httptools", "aiohttp")


def require_proxy_extra() -> None:
    """Return when a proxy can be run here.

    Raises:
        MissingExtra: a package is not installed.
    """
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        raise MissingExtra(
            f"a capturing proxy needs {', '.join(absent)}, which this environment has not. Nothing was started; "
            "pip install 'gym-capture[proxy]'",
            missing=absent,
        )
