"""The time between two looks at a live directory."""

from __future__ import annotations

import time


def wait(seconds: float) -> bool:
    """Wait.

    Returns:
        Whether to look again. Always, here: what goes on until Ctrl-C ends by it. Tests bring their own.
    """
    time.sleep(seconds)
    return True
