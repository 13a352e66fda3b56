"""Whether the packages of the `view` extra are there, asked before anything is started."""

from __future__ import annotations

import importlib.util

from gym_capture.errors import MissingExtra

PACKAGES = ("uvicorn", "starlette")


def require_view_extra() -> None:
    """Return when a viewer can be run here.

    Raises:
        MissingExtra: a package is not installed.
    """
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        raise MissingExtra(
            f"the viewer needs {', '.join(absent)}, which this environment has not. Nothing was started; "
            "pip install 'gym-capture[view]'",
            missing=absent,
        )
