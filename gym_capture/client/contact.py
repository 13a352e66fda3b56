"""Since when the owner cannot have taken this client's claims for lost. Pure."""

from __future__ import annotations

from math import inf


class Contact:
    """What the owner's answers prove: it heard what they answer no sooner than that was sent, and a lease began there.

    While each such moment follows the one before it within a lease, no lease of this client can have ended in between,
    under whichever owner: so a claim that was sent in that time is open. After a gap it may have been lost, although
    its answer, late or told again, says that it was opened.
    """

    def __init__(self) -> None:
        self._since = inf
        self._last = -inf

    def proved(self, sent_at: float, lease_s: float) -> None:
        """The owner has answered something that was sent at `sent_at`, seconds."""
        if sent_at - self._last >= lease_s:
            self._since = sent_at
        self._last = max(self._last, sent_at)

    def unbroken(self, since: float, now: float, lease_s: float) -> bool:
        """Whether no lease can have ended from `since` until `now`."""
        return self._since <= since and now - self._last < lease_s
