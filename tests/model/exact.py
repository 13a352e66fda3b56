"""Comparing JSON values exactly."""

from __future__ import annotations

import json
from typing import Any


def exact(value: Any) -> str:
    """Text that is equal for equal values only: True and 1, 1 and 1.0, null and absent, key orders all differ."""
    return json.dumps(value, ensure_ascii=True)
