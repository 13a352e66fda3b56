"""The user's rollout function: finding it by its import path, and checking it before anything starts."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

from gym_capture.errors import RolloutFunctionError

RolloutFunction = Callable[[dict[str, Any], Any], Awaitable[dict[str, Any] | None]]
"""`async def rollout(row, session)`; returns the rollout's record, or None: then the row is its record."""


def load_rollout_function(path: str, search: tuple[str, ...] = ("",)) -> RolloutFunction:
    """Import `package.module:function` and check that it can be a rollout function.

    Args:
        path: where it lies.
        search: folders to find modules in, beside those of the interpreter; they come first and stay.

    Raises:
        RolloutFunctionError: it cannot be imported, is no coroutine function, or does not take `(row, session)`.
            `missing_module` is set when it is only that the module is not here.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise RolloutFunctionError(
            f"collect.rollout {path!r} is not of the form package.module:function, "
            "gym_capture.examples.scripted_agent:rollout say."
        )
    for folder in reversed(search):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    function: Any = _import(path, module_name)
    for part in name.split("."):
        try:
            function = getattr(function, part)
        except AttributeError as error:
            near = difflib.get_close_matches(part, _coroutine_functions(function), n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise RolloutFunctionError(f"{module_name} has no {name!r} (collect.rollout={path}).{hint}") from error
    check_rollout_function(function, path)
    checked: RolloutFunction = function
    return checked


def check_rollout_function(function: object, path: str) -> None:
    """Raise RolloutFunctionError unless it is `async def …(row, session)`."""
    if not callable(function):
        raise RolloutFunctionError(
            f"{path} is a {type(function).__name__}; it must be an async def rollout(row, session)"
        )
    body = function if inspect.isroutine(function) else type(function).__call__
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(body)):
        raise RolloutFunctionError(
            f"{path} is not async: declare it as `async def`, so that one worker process carries many rollouts at once"
        )
    try:
        inspect.signature(function).bind({}, None)
    except TypeError as error:
        raise RolloutFunctionError(
            f"{path}{inspect.signature(function)} cannot be called with (row, session): {error}"
        ) from error


def _import(path: str, module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # The module itself (or a package above it), rather than something that it imports?
        missing = error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}."))
        what = (
            f"there is no module {error.name!r}; it is looked for in the working directory and where Python looks"
            if missing
            else f"importing {module_name} needs a module that is not here: {error.name!r}"
        )
        raise RolloutFunctionError(f"cannot import collect.rollout={path}: {what}", missing_module=missing) from error
    except Exception as error:  # a user's module may raise anything while it is imported; its cause is kept
        raise RolloutFunctionError(
            f"cannot import collect.rollout={path}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error


def _coroutine_functions(owner: object) -> list[str]:
    return [name for name, value in vars(owner).items() if inspect.iscoroutinefunction(value)]
