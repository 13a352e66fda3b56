"""A body without the encodings that it travelled in, and whether it is JSON."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gym_capture.model.json_text import parse_json
from gym_capture.recording.body import Body
from gym_capture.recording.content_encoding import Decoder


class PlainBody(NamedTuple):
    """A body without its encodings: None where it is too large; `Decoder.trouble`; the bytes there are to search."""

    data: bytes | None
    trouble: str | None
    size: int


def plain_body(body: Body, encodings: str, limit_bytes: int) -> PlainBody:
    """What a body holds once its content encodings are undone.

    Args:
        encodings: its `Content-Encoding`; empty: none.
        limit_bytes: the most that is kept.
    """
    data = body.data
    if data is None:
        return PlainBody(None, "overflowed", 0)
    if not encodings or not data or not (decoder := Decoder(encodings, limit_bytes)).named:
        return PlainBody(data, None, len(data))
    decoded = b"".join(decoder.feed(data))
    decoder.finish()
    if decoder.trouble == "overflowed":
        return PlainBody(None, "overflowed", limit_bytes + 1)
    # What cannot be undone at all is kept as it came; of what breaks, as far as it goes.
    data = data if decoder.trouble == "unknown" else decoded
    return PlainBody(data, decoder.trouble, len(data))


def is_json(data: bytes | None) -> bool:
    """Whether a body is JSON text, also where the standard refuses it (NaN)."""
    if not data:
        return False
    try:
        if not data.isascii():
            data.decode("utf-8")
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            parse_json(data)
        except (ValueError, RecursionError):
            return False
    return True
