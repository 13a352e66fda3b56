"""pyarrow's file systems, apart from the rest of it: loading them takes a moment, and few need them."""

from __future__ import annotations

from gym_capture.storage.sealed.arrow import pa  # says which extra is missing

from pyarrow import fs  # isort: skip

__all__ = ["fs", "pa"]
