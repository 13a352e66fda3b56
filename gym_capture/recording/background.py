"""Responses whose answer comes later: a background call is answered at once, and asked for again until it is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_LATER = ("queued", "in_progress")


class _Response(msgspec.Struct):
    status: Any = None


_decode = msgspec.json.Decoder(_Response).decode


def answered_later(dialect: str | None, fields: Mapping[str, Any]) -> bool:
    """Whether a call's response says that the model has not answered yet, so that what it answers is not in it.

    The requests that ask for it later call no model, and are not recorded.

    Args:
        fields: the exchange's, its response a body's bytes. A stream that ends early says so itself.
    """
    response = fields.get("response")
    if dialect != "responses" or not isinstance(response, bytes):
        return False
    try:
        return _decode(response).status in _LATER
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
