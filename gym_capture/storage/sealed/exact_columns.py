"""The columns of a call that make its exchange whole again, byte for byte."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from gym_capture.model.captured import CapturedCall
from gym_capture.storage.sealed.arrow import pa
from gym_capture.storage.sealed.schema import CALLS, FLAG_BITS, TEXTS

_BINARY = pa.binary()


def exact_columns(calls: Sequence[CapturedCall]) -> dict[str, Any]:
    """The columns as arrays, by name: those of `schema.CALLS` that are not derived."""
    columns: dict[str, Any] = {
        "digest": pa.array([call.digest for call in calls], CALLS.field("digest").type),
        "derivation": pa.array([call.derivation for call in calls], CALLS.field("derivation").type),
        "flags": pa.array([_flags(call) for call in calls], CALLS.field("flags").type),
        "record": _binary([call.record for call in calls]),
    }
    for name, kind in TEXTS.items():
        texts = [call.texts.get(kind) for call in calls]
        columns[name] = _binary([None if text is None else text.data for text in texts])
    return columns


def _flags(call: CapturedCall) -> int:
    flags = 0
    for kind, text in call.texts.items():
        if text.flags:
            flags |= text.flags << FLAG_BITS * kind
    return flags


def _binary(values: list[bytes | None]) -> Any:
    """A column of bytes, copied once: an array that grows value by value is copied each time that it has grown."""
    count = len(values)
    there = [value for value in values if value is not None]
    if not there:
        return pa.nulls(count, _BINARY)
    known = None if len(there) == count else pa.array([value is not None for value in values]).buffers()[1]
    ends = array("i", accumulate((0 if value is None else len(value) for value in values), initial=0))
    return pa.Array.from_buffers(_BINARY, count, [known, pa.py_buffer(ends), pa.py_buffer(b"".join(there))])


__all__ = ["exact_columns"]
