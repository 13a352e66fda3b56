"""How many model calls were issued for a rollout, claimed or not: what a merge is compared with."""

from __future__ import annotations

import os
import threading

MOST_ISSUED = 2**53
"""No caller counts more calls than that; it is what every JSON reader can hold."""


def check_issued(issued: object) -> int:
    """A count of issued calls; None is 0, "not counted".

    Raises:
        ValueError: not a whole number from 0 on.
    """
    if issued is None:
        return 0
    if type(issued) is not int or not 0 <= issued <= MOST_ISSUED:
        raise ValueError(f"issued is a count of calls, a whole number from 0 on, and cannot be {issued!r}")
    return issued


class IssuedCalls:
    """Distinct model_call_ids that one handle and its copies in this process claimed or recorded, and what others claim
    for them."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._elsewhere = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def _own(self) -> set[str]:
        if self._pid != os.getpid():  # a forked child counts its own
            self._ids, self._elsewhere, self._lock, self._pid = set(), 0, threading.Lock(), os.getpid()
        return self._ids

    def add(self, model_call_id: str) -> bool:
        """A call is about to be made. False: it was counted before, this is another attempt."""
        ids = self._own()
        before = len(ids)
        ids.add(model_call_id)
        return len(ids) > before

    def discard(self, model_call_id: str) -> None:
        """It was not made after all."""
        self._own().discard(model_call_id)

    def add_elsewhere(self, calls: int) -> None:
        """Calls are about to be made that somebody else claims (a proxy, say)."""
        self._own()
        with self._lock:
            self._elsewhere = check_issued(self._elsewhere + check_issued(calls))

    @property
    def count(self) -> int:
        """How many."""
        return len(self._own()) + self._elsewhere
