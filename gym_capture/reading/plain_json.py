"""What this package returns as JSON values, for `--json` and for a page."""

from __future__ import annotations

from typing import Any

import msgspec


def plain_json(value: Any) -> Any:
    """A struct of this package (or a list of them) as dicts, lists, numbers and text. Null is unknown, never 0."""
    return msgspec.to_builtins(value)
