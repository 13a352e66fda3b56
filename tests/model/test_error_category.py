"""Error categories of statuses and exceptions."""

from __future__ import annotations

import asyncio

import pytest

from gym_capture.model.error_category import error_category_for, error_category_for_exception


@pytest.mark.parametrize(
    ("status", "category"),
    [
        *((200, None), (302, None), (399, None), (400, "client_error"), (401, "auth"), (403, "auth")),
        *((404, "not_found"), (408, "timeout"), (422, "client_error"), (429, "rate_limit"), (499, "client_error")),
        *((500, "upstream_error"), (503, "upstream_error"), (504, "timeout"), (599, "upstream_error")),
    ],
)
def test_category_of_a_status(status: int, category: str | None) -> None:
    assert error_category_for(status) == category


class ReadTimeout(Exception):
    """As HTTP clients name theirs."""


class APIConnectionError(Exception):
    """The base of connection failures in one client library."""


class APITimeoutError(APIConnectionError):
    """A timeout that is also a connection failure."""


class ProxyRefused(APIConnectionError):
    """A connection failure by its base only."""


@pytest.mark.parametrize(
    ("exc", "category"),
    [
        (asyncio.CancelledError(), "cancelled"),
        (TimeoutError(), "timeout"),
        (ReadTimeout(), "timeout"),
        (APITimeoutError(), "timeout"),
        (ConnectionResetError(), "connection"),
        (BrokenPipeError(), "connection"),
        (ProxyRefused(), "connection"),
        (ValueError(), "exception"),
        (KeyboardInterrupt(), "exception"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_category_of_an_exception(exc: BaseException, category: str) -> None:
    assert error_category_for_exception(exc) == category
