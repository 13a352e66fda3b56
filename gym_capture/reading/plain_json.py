"""What this package returns as JSON values, for `--json` and for a page."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

import msgspec


def plain_json(value: Any) -> Any:
    """A struct of this package (or a list of them) as dicts, lists, numbers and text. Null is unknown, never 0."""
    return msgspec.to_builtins(value)


def json_document(value: Any, indent: int | None = None) -> str:
    """The JSON text of values. What is no finite number has no form there, and is null; other types are their text."""
    try:
        return json.dumps(value, indent=indent, default=str, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(_with_json_form(value), indent=indent, default=str, allow_nan=False)


def _with_json_form(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key if isinstance(key, str | int | float | None) else str(key): _with_json_form(each)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_with_json_form(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


__all__ = ["json_document", "plain_json"]
