"""Ray calls that never start a Ray.

Ray's API connects a process that is not connected, by starting a cluster in it if it must. What a client asks in the
background may meet the user's `ray.shutdown()` at any moment, after any check, and must not bring Ray up again.
"""

from __future__ import annotations

import sys
from typing import Any


def never_starting(function: Any) -> Any:
    """A function of Ray's API as it is without the automatic `ray.init`: not connected, it raises.

    Knows something private: Ray puts `ray._private.auto_init_hook.wrap_auto_init` around its functions, and
    `functools.wraps` keeps what is inside. There is no public way to call them without it (the environment variable
    `RAY_ENABLE_AUTO_CONNECT` is read once, and holds for the user's calls too). Where Ray no longer does that, the
    function is returned as it is.
    """
    code = getattr(function, "__code__", None)
    if code is not None and code.co_name == "auto_init_wrapper":
        return function.__wrapped__
    return function


def call_actor(method: Any, *arguments: Any) -> Any:
    """`method.remote(*arguments)` of an actor's method, without the automatic `ray.init`."""
    submit = getattr(type(method), "_remote", None)
    plain = never_starting(submit)
    if plain is submit:
        return method.remote(*arguments)
    check_connected()
    return plain(method, arguments, {})


def check_connected() -> None:
    """Return if this process is connected to Ray now. To be asked right before each call.

    What Ray checks itself it checks too late: its profiling of a call touches the core worker first, which is freed by
    `ray.shutdown()`, so that a handle that is used afterwards can end the process. What is left is the moment between
    this and the call; Ray has no lock that a caller could take.

    Raises:
        RaySystemError: it is not.
    """
    ray: Any = sys.modules["ray"]  # whoever has a handle has loaded it; never loaded here
    if not ray.is_initialized():
        raise ray.exceptions.RaySystemError("Ray has been shut down in this process")
