"""Which verifier makes the calls of a block of code: `with gym_capture.verifier("judge"): ...`."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

from gym_capture.errors import InvalidExchange
from gym_capture.model.exchange import random_call_id
from gym_capture.model.json_values import is_unicode
from gym_capture.model.verifiers import VERIFIER_KEY, VerifierInvocation

_current: ContextVar[VerifierInvocation | None] = ContextVar("gym_capture_verifier", default=None)


class _VerifierBlock:
    """Use it once, with `with`, in code with a loop or without."""

    def __init__(self, invocation: VerifierInvocation) -> None:
        self._invocation = invocation
        self._token: Token[VerifierInvocation | None] | None = None

    def __enter__(self) -> VerifierInvocation:
        if self._token is not None:
            raise RuntimeError("a verifier block is used once; make another with gym_capture.verifier()")
        self._token = _current.set(self._invocation)
        return self._invocation

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is None:
            return
        try:
            _current.reset(self._token)
        except ValueError:
            pass  # left in another context (a generator that another task closes), where it was never set


def verifier(name: str, invocation_id: str | None = None) -> _VerifierBlock:
    """Declare that the calls made inside are a verifier's: `with gym_capture.verifier("judge") as invocation: ...`.

    Every claim and record made inside (by this task, and by those that it starts there) gets the invocation, unless
    it brings one. Merges count such calls apart from the policy's. Blocks nest; the inner one wins.

    Args:
        name: the verifier's name, shown in the merged record.
        invocation_id: unique within the rollout; made up when absent. The same id again continues that invocation.

    Raises:
        InvalidExchange: one of them is no non-empty text.
    """
    for what, text in (("name", name), ("invocation_id", invocation_id)):
        if text is None and what == "invocation_id":
            continue
        if not isinstance(text, str) or not text or not is_unicode(text):
            raise InvalidExchange(f"a verifier's {what} is a non-empty text, and cannot be {text!r}")
    return _VerifierBlock(VerifierInvocation(invocation_id=invocation_id or random_call_id(), name=name))


def current_verifier() -> VerifierInvocation | None:
    """The invocation whose block this code runs in; None outside of any."""
    return _current.get()


def with_verifier(exchange: Mapping[str, Any]) -> Mapping[str, Any]:
    """An exchange that declares the current invocation, unless there is none or it declares one itself."""
    invocation = _current.get()
    if invocation is None or not isinstance(exchange, Mapping) or exchange.get(VERIFIER_KEY) is not None:
        return exchange
    return {**exchange, VERIFIER_KEY: {"invocation_id": invocation.invocation_id, "name": invocation.name}}
