"""From what a caller says about one call to the exchange that is captured, without ever raising.

Payloads are the caller's living objects, so they are turned into text the moment they are handed in. What has no JSON
form is kept as its `repr` under the raw key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym_capture.model.error_category import error_category_for
from gym_capture.model.exchange import PAYLOADS, Snapshot, snapshot
from gym_capture.model.json_text import decode_json, encode_json
from gym_capture.model.redaction import Redaction

UNWRITABLE = "capture_parse_error"
"""The `error_category` of an exchange that holds values without a JSON form."""

_FIRST = (
    "model_call_id",
    "dialect",
    "model_ref",
    "started_at",
    "completed_at",
    "latency_ms",
    "latency_ttft_ms",
    "status_code",
    "error_category",
    "request",
    "response",
)
"""An exchange's keys in the contract's order; whatever else was given follows."""


class FrozenPayload:
    """A payload as it was at one moment, to be put into an exchange later.

    Attributes:
        unwritable: its `repr` when it has no JSON form, else None.
    """

    __slots__ = ("_data", "_is_json", "unwritable")

    def __init__(self, value: Any) -> None:
        self._data, self._is_json = b"", False
        self.unwritable: str | None = None
        if isinstance(value, bytes | bytearray | memoryview):
            self._data = bytes(value)
            return
        try:
            self._data, self._is_json = encode_json(value)[0], True
        except Exception:  # noqa: BLE001 - the value's own methods may raise anything; it is kept as its repr
            self.unwritable = _repr(value)

    def value(self) -> Any:
        """The payload: an equal value of its own, the bytes that were given, or None for one that has no JSON form."""
        if self.unwritable is not None:
            return None
        return decode_json(self._data)[0] if self._is_json else self._data


def freeze_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an exchange with their payloads frozen; `thaw_fields` gives them back."""
    return {
        key: FrozenPayload(value) if key in PAYLOADS and value is not None else value for key, value in fields.items()
    }


def thaw_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What `freeze_fields` froze."""
    thawed = dict(fields)
    for key in PAYLOADS:
        payload = fields.get(key)
        if type(payload) is not FrozenPayload:
            continue
        thawed[key] = payload.value()
        if payload.unwritable is not None:
            _keep_raw(thawed, key, payload.unwritable)
            thawed["error_category"] = UNWRITABLE
    return thawed


def build_exchange(fields: Mapping[str, Any]) -> dict[str, Any]:
    """An exchange with all its keys in order. A status of 400 and above names its error category when none is given."""
    exchange = {key: fields.get(key) for key in _FIRST}
    for key, value in fields.items():
        if key not in exchange:
            exchange[key] = value
    status = exchange["status_code"]
    if exchange["error_category"] is None and type(status) is int:
        exchange["error_category"] = error_category_for(status)
    return exchange


def snapshot_call(exchange: dict[str, Any], redaction: Redaction | None = None) -> Snapshot:
    """Freeze an exchange as it is now; never raises for what its values are.

    Args:
        redaction: what is taken out of it; its model_call_id is redacted already.
    """
    try:
        return snapshot(exchange, redaction=redaction, settled_id=True)
    except Exception:  # noqa: BLE001 - the values' own methods may raise anything; what can be kept is kept
        return snapshot(_writable(exchange), redaction=redaction, settled_id=True)


def _writable(exchange: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in exchange.items():
        if _has_json_form(key, value):
            kept[key] = value
        elif key in PAYLOADS:
            kept[key] = None
            _keep_raw(kept, key, _repr(value))
        else:
            kept[key] = _repr(value)
    for key in PAYLOADS:
        # A raw text that the caller gave stands after the key it belongs to, and wins over a repr.
        if key.endswith("_raw") and exchange.get(key) is not None and _has_json_form(key, exchange[key]):
            kept[key] = exchange[key]
    kept["error_category"] = UNWRITABLE
    return kept


def _keep_raw(fields: dict[str, Any], key: str, text: str) -> None:
    raw = key if key.endswith("_raw") else f"{key}_raw"
    if fields.get(raw) is None:
        fields[raw] = text


def _has_json_form(key: str, value: Any) -> bool:
    if key in PAYLOADS and isinstance(value, bytes | bytearray | memoryview):
        return True
    try:
        encode_json(value)
    except Exception:  # noqa: BLE001 - see snapshot_call
        return False
    return True


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a value whose repr raises still leaves its type's name
        return f"<{type(value).__name__} without a repr>"
