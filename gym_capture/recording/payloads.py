"""An exchange's payloads, held to the size that an exchange may have."""

from __future__ import annotations

from typing import Any

from gym_capture.model.json_text import encode_json


class Payloads:
    """The payloads of an exchange, with their sizes where they are not kept."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self.fields: dict[str, Any] = {}
        self._most: dict[str, int] = {}

    def put(self, key: str, value: Any, size: int | None = None, at_most: int | None = None) -> None:
        """One payload.

        Args:
            size: bytes of one that was too large to keep, then `value` is None.
            at_most: how many bytes a JSON value has at most.
        """
        self.fields[key] = value
        if size is not None:
            self.fields[f"{key}_bytes"] = size
        if value is not None:
            self._most[key] = len(value) if isinstance(value, bytes) else (at_most or 0)

    def shrink(self) -> bool:
        """Leave out the largest until the rest can be written as one exchange; whether that was needed."""
        if sum(self._most.values()) <= self._limit:
            return False
        for key, value in self.fields.items():
            if key in self._most and value is not None and not isinstance(value, bytes):
                self._most[key] = len(encode_json(value)[0])
        shrunk = False
        while sum(self._most.values()) > self._limit:
            largest = max(self._most, key=self._most.__getitem__)
            self.fields[largest] = None
            self.fields[f"{largest}_bytes"] = self._most.pop(largest)
            shrunk = True
        return shrunk
