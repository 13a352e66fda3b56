"""NeMo Gym's capture files: one `<rollout_id>.capture.jsonl` a rollout, one exchange a line."""

from __future__ import annotations

from typing import Any

import msgspec

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
    for index, line in enumerate(filter(None, map(bytes.strip, data.split(b"\n")))):
        exchange = _decoded(line)
        if exchange is None:
            damaged += 1
        else:
            exchanges.append((index, exchange))
    return exchanges, damaged


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        value = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
