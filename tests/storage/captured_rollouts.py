"""Rollouts of exchanges for tests of what is sealed, exported and imported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from gym_capture.model.captured import CapturedCall, CapturedRollout, captured_parts
from gym_capture.model.exchange import open_part, seal

HOSTILE: list[dict[str, Any]] = [
    {"request": {"n": 2**200, "f": float("nan"), "s": "\ud800", "z": -0.0, "i": float("-inf")}, "response": {"ok": 1}},
    {"request": b'{"a" :  1.50, "a": 2}', "response": b'{\n "usage": {"prompt_tokens": 99999999999999999999}}\n'},
    {"request": b"\xff\x00 not JSON", "response": None, "error_category": "connection"},
    {"request_raw": b"\xfe raw", "response_raw": "text \u2028\x1b[31m", "request": {}, "response": []},
    {"request": "", "response": b"", "status_code": 2**70, "started_at": 1.5, "unknown": {"kept": [None, True]}},
    {"request": {"messages": []}, "verifier_invocation": {"invocation_id": "v", "name": "judge"}},
]
"""Exchanges that are hard to keep, without their identity."""


def call(index: int, exchange: dict[str, Any]) -> CapturedCall:
    """An exchange as the log would hold it."""
    sealed = seal({"dialect": "chat", "model_call_id": f"call-{index}", **exchange})
    opened = [(part, open_part(part, stored)) for part, stored in zip(sealed.parts, sealed.body, strict=True)]
    return captured_parts(index, sealed.model_call_id, sealed.digest, opened)


def rollout(
    rollout_id: str, exchanges: Sequence[dict[str, Any]], generation: int = 0, **fields: Any
) -> CapturedRollout:
    """A rollout of these exchanges, its calls in a list."""
    calls = [call(index, each) for index, each in enumerate(exchanges)]
    return CapturedRollout(rollout_id, generation, calls, fields.pop("indexes", len(calls)), **fields)


def listed(found: CapturedRollout | None) -> CapturedRollout | None:
    """The same with its calls in a list."""
    return None if found is None else found._replace(calls=list(found.calls))


def conversation(turns: int, turn_bytes: int = 200) -> list[dict[str, Any]]:
    """Exchanges of a rollout that repeats its history."""
    messages: list[dict[str, Any]] = []
    exchanges = []
    for turn in range(turns):
        messages = [*messages, {"role": "user", "content": f"turn {turn} " + f"{turn * 7919:x}" * (turn_bytes // 5)}]
        answer = {"role": "assistant", "content": f"answer {turn}"}
        response = {"choices": [{"message": answer}], "usage": {"prompt_tokens": 10 * turn, "completion_tokens": 3}}
        exchanges.append({"request": {"model": "m", "messages": messages}, "response": response, "status_code": 200})
        messages = [*messages, answer]
    return exchanges


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_bodies = st.one_of(
    _json,
    _json.map(lambda value: json.dumps(value, indent=1).encode()),
    st.binary(max_size=40),
)
exchanges = st.fixed_dictionaries(
    {"request": _bodies, "response": _bodies, "extra": _json},
    optional={"request_raw": st.text() | st.binary(max_size=9), "status_code": _json, "started_at": _json},
)
"""Any exchange, without its identity."""
