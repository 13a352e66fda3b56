"""Where faults are registered: each is a coroutine that does it to a scene, at once, and returns when it is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.crash.lab.scene import Scene

Fault = Callable[[Scene], Awaitable[None]]

FAULTS: dict[str, Fault] = {}
"""By name, in the order of `faults`."""


def fault(name: str) -> Callable[[Fault], Fault]:
    """Register one."""

    def register(function: Fault) -> Fault:
        FAULTS[name] = function
        return function

    return register
