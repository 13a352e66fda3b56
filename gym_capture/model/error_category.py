"""The `error_category` of a failed model call, from its HTTP status or from the exception that ended it."""

from __future__ import annotations

import asyncio

_BY_STATUS = {401: "auth", 403: "auth", 404: "not_found", 408: "timeout", 429: "rate_limit", 504: "timeout"}


def error_category_for(status_code: int) -> str | None:
    """The category of an HTTP status; None below 400, which is no error."""
    if status_code < 400:
        return None
    category = _BY_STATUS.get(status_code)
    if category is not None:
        return category
    return "client_error" if status_code < 500 else "upstream_error"


def error_category_for_exception(exc: BaseException) -> str:
    """The category of an exception raised while the model was called.

    HTTP clients have no common base class, so timeouts and connection failures that aren't the standard library's
    are known by the names of their classes (`ReadTimeout`, `APIConnectionError`, `ServerDisconnectedError`).

    Returns:
        `cancelled`, `timeout`, `connection` or `exception`.
    """
    if isinstance(exc, asyncio.CancelledError):
        return "cancelled"
    names = [kind.__name__.lower() for kind in type(exc).__mro__]
    if isinstance(exc, TimeoutError) or any("timeout" in name for name in names):
        return "timeout"
    if isinstance(exc, ConnectionError) or any("conn" in name for name in names):
        return "connection"
    return "exception"
