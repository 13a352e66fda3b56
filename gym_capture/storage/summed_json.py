"""JSON with its checksum: an object with `crc32c`, the CRC-32C of the whole object without blanks and with 0 there.

So who reads it knows that it says what its writer wrote, every key included, and a person may still lay it out anew.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from gym_capture.model.codec import checksum

_SUM: Final = "crc32c"

_Content = TypeVar("_Content", bound=msgspec.Struct)


def encode_summed(content: msgspec.Struct) -> bytes:
    """Content as JSON without blanks, its checksum last."""
    fields = msgspec.to_builtins(content)
    return msgspec.json.encode({**fields, _SUM: _sum(fields)})


def decode_summed(data: bytes, kind: type[_Content]) -> _Content:
    """What was encoded.

    Raises:
        ValueError: it is no JSON of that kind, or its checksum is missing or is that of something else.
    """
    return convert_fields(summed_fields(data), kind)


def summed_fields(data: bytes) -> dict[str, Any]:
    """The fields of what was encoded, but its checksum, which fits.

    Raises:
        ValueError: it is no JSON object, or its checksum is missing or is that of something else.
    """
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
        if _SUM not in fields:
            raise ValueError(f"it has no checksum, {_SUM}")
        if fields[_SUM] != _sum(fields):
            raise ValueError("its checksum is that of another content")
    except (RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from error
    del fields[_SUM]
    return fields


def convert_fields(fields: dict[str, Any], kind: type[_Content]) -> _Content:
    """Fields as what they were encoded from.

    Raises:
        ValueError: they are no such thing.
    """
    try:
        return msgspec.convert(fields, kind)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _sum(fields: dict[str, Any]) -> int:
    return checksum(msgspec.json.encode({**fields, _SUM: 0}))


__all__ = ["convert_fields", "decode_summed", "encode_summed", "summed_fields"]
