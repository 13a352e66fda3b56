"""Rollout ids and the tokens that carry a generation along with one.

An id is a path segment of `/ng-rollout/<id>/...` and a part of file names, so it is letters, digits, `.`, `_` and
`-`, starts with a letter or digit, and is at most `MAX_ROLLOUT_ID_BYTES` long. A token, `<id>~<generation>`, also
says which generation of the id its holder works for; `~` can't be part of an id, so a token splits in one way only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

from gym_capture.errors import InvalidRolloutId

ROLLOUT_ID_KEY = "_ng_rollout_id"
TASK_INDEX_KEY = "_ng_task_index"
ROLLOUT_INDEX_KEY = "_ng_rollout_index"
ATTEMPT_INDEX_KEY = "_ng_attempt_index"

MAX_ROLLOUT_ID_BYTES = 200
"""Longest id, so that an id and a suffix always fit a file name (255 bytes on every file system that matters)."""

MAX_GENERATION = 2**63 - 1

GENERATION_SEPARATOR = "~"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_INTEGER_TEXT = re.compile(r"[+-]?[0-9]{1,18}")
_GENERATION_TEXT = re.compile(r"0|[1-9][0-9]{0,18}")

_ALLOWED = (
    f"an id is 1 to {MAX_ROLLOUT_ID_BYTES} letters, digits, '.', '_' or '-' (ASCII), starting with a letter or digit"
)


def _shown(value: object) -> str:
    """`value` for an error message: bounded, and never raising whatever its type."""
    if isinstance(value, str):
        return repr(value[:80]) + ("..." if len(value) > 80 else "")
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, int | float):
        return repr(value)
    return f"a value of type {type(value).__name__}"


def is_rollout_id(text: str) -> bool:
    """Whether a text is a rollout id."""
    return len(text) <= MAX_ROLLOUT_ID_BYTES and _ID.fullmatch(text) is not None


def validate_rollout_id(value: object) -> str:
    """Return `value` when it is a rollout id.

    Raises:
        InvalidRolloutId: it is not; the message says what is allowed.
    """
    if isinstance(value, str) and is_rollout_id(value):
        return value
    if isinstance(value, str) and len(value) > MAX_ROLLOUT_ID_BYTES:
        raise InvalidRolloutId(
            f"rollout id {_shown(value)} has {len(value)} characters: {_ALLOWED}. Shorten it.", length=len(value)
        )
    raise InvalidRolloutId(f"{_shown(value)} is not a rollout id: {_ALLOWED}.")


def rollout_id_from_record(record: Mapping[str, Any]) -> str | None:
    """The id that a rollout record captures under.

    `_ng_rollout_id` when present, else `{_ng_task_index}-{_ng_rollout_index}`; an `_ng_attempt_index` above 0 appends
    `-a{n}`. The rule is NeMo Gym's (`cases/rollout_ids.jsonl`).

    Args:
        record: a rollout record (or the body that dispatched it); anything that isn't a mapping has no id.

    Returns:
        The id, or None when the record names none (no explicit id and not both indices).

    Raises:
        InvalidRolloutId: an explicit or resulting id, or the attempt index, is not valid.
    """
    if not isinstance(record, Mapping):
        return None
    explicit = record.get(ROLLOUT_ID_KEY)
    if explicit is not None:
        base = validate_rollout_id(explicit)
    else:
        task, rollout = record.get(TASK_INDEX_KEY), record.get(ROLLOUT_INDEX_KEY)
        if task is None or rollout is None:
            return None
        base = f"{_index_text(task, TASK_INDEX_KEY)}-{_index_text(rollout, ROLLOUT_INDEX_KEY)}"
    attempt = record.get(ATTEMPT_INDEX_KEY)
    if attempt is not None:
        number = _attempt_number(attempt)
        if number > 0:
            base = f"{base}-a{number}"
    return validate_rollout_id(base)


def _index_text(value: object, key: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() <= 64):
        return str(value)
    raise InvalidRolloutId(f"{key} is {_shown(value)}: give an integer of at most 64 bits, or a string.")


def _attempt_number(value: object) -> int:
    if isinstance(value, int) and value.bit_length() <= 63:
        return int(value)
    if isinstance(value, float) and isfinite(value) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, str) and len(value) <= 64 and _INTEGER_TEXT.fullmatch(value.strip()):
        return int(value)
    raise InvalidRolloutId(
        f"{ATTEMPT_INDEX_KEY} is {_shown(value)}: give the attempt's number, an integer of at most 18 digits."
    )


def join_rollout_token(rollout_id: str, generation: int) -> str:
    """`<rollout_id>~<generation>`: the URL prefix segment of a worker that is bound to one generation.

    Raises:
        InvalidRolloutId: the id is not valid, or the generation is not an integer from 0 to 2**63 - 1.
    """
    validate_rollout_id(rollout_id)
    if type(generation) is not int or not 0 <= generation <= MAX_GENERATION:
        raise InvalidRolloutId(
            f"generation of rollout {rollout_id!r} is {_shown(generation)}: give the number that clear() returned."
        )
    return f"{rollout_id}{GENERATION_SEPARATOR}{generation}"


def split_rollout_token(text: str) -> tuple[str, int | None]:
    """The rollout id and generation of a token; the generation is None when `text` is an id alone.

    Raises:
        InvalidRolloutId: the id is not valid, or what follows `~` is not a generation in plain decimal.
    """
    if not isinstance(text, str) or GENERATION_SEPARATOR not in text:
        return validate_rollout_id(text), None
    rollout_id, _, number = text.partition(GENERATION_SEPARATOR)
    validate_rollout_id(rollout_id)
    if not _GENERATION_TEXT.fullmatch(number) or int(number) > MAX_GENERATION:
        raise InvalidRolloutId(
            f"rollout token {_shown(text)} does not end in a generation: it is '<rollout id>~<number>', "
            "the number that clear() returned."
        )
    return rollout_id, int(number)
