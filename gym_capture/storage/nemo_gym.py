"""NeMo Gym's capture files: one `<rollout_id>.capture.jsonl` a rollout, one exchange a line."""

from __future__ import annotations

from typing import Any

import msgspec

from gym_capture.model.captured import CapturedCall, captured_value
from gym_capture.model.exchange import PAYLOADS, Text
from gym_capture.model.json_text import decode_json, to_json
from gym_capture.model.rows import PartFlag, PartKind

_decoder = msgspec.json.Decoder()


def read_nemo_gym_lines(data: bytes) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """Read the bytes of one capture file, damaged lines included in the count.

    Lines end at `\\n`; blank ones don't count. A line that is not standard JSON, or not an object, is damaged: it
    keeps its index, so the others keep theirs. A last line without its newline is read like any other (cut short,
    it is no JSON).

    Args:
        data: the file's content.

    Returns:
        The exchanges with their call index, in file order, and how many lines are damaged.
    """
    exchanges: list[tuple[int, dict[str, Any]]] = []
    damaged = 0
    for index, line in enumerate(split_lines(data)):
        exchange = _decoded(line)
        if exchange is None:
            damaged += 1
        else:
            exchanges.append((index, exchange))
    return exchanges, damaged


def split_lines(data: bytes) -> list[bytes]:
    """The lines that count, stripped; a line's place is its exchange's call index."""
    return list(filter(None, map(bytes.strip, data.split(b"\n"))))


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        value = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


_raw_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BODIES = ("request", "response")


def call_of_line(index: int, line: bytes, *, strict: bool = True) -> CapturedCall | None:
    """The exchange of one line, its bodies byte for byte as they stand there; None when the line is damaged.

    Args:
        strict: a line that standard JSON refuses (NaN, lone surrogates) is damaged, as NeMo Gym has it. Else it is
            read as far as its values go, and its bodies are encoded anew.
    """
    exchange = _decoded(line)
    if exchange is None:
        return None if strict else _call_of_nonstandard_line(index, line)
    texts: dict[PartKind, Text] = {}
    raw = _raw_decoder.decode(line)
    for key, kind in PAYLOADS.items():
        if exchange.get(key) is not None:
            texts[kind] = Text(bytes(raw[key]), int(PartFlag.BYTES) if key in _BODIES else 0)
    return captured_value(index, exchange, texts)


def _call_of_nonstandard_line(index: int, line: bytes) -> CapturedCall | None:
    try:
        exchange, _ = decode_json(line)
    except ValueError:
        return None
    return captured_value(index, exchange) if isinstance(exchange, dict) else None


def line_of_call(call: CapturedCall) -> tuple[bytes, bool]:
    """One exchange as a line of NeMo Gym's file, without its end, and whether strict readers refuse the line.

    A body's text stands in it byte for byte, but for line breaks between its tokens, which become blanks. What is no
    JSON stands as text under the raw key, as `CaptureStore.read` gives it.

    Raises:
        DamagedLog: the exchange has no META part.
    """
    fields: list[bytes] = []
    for key, value in call.exchange().items():
        text = call.texts.get(PAYLOADS[key]) if key in _BODIES else None
        if text is None or value is None or text.flags & PartFlag.NOT_JSON:
            encoded = to_json(value).text
        else:
            encoded = text.data.translate(_ONE_LINE).strip()
        fields.append(to_json(key).text + b":" + encoded)
    line = b"{" + b",".join(fields) + b"}"
    return line, _decoded(line) is None


_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
