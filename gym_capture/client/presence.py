"""Whether the owner is there, since when it is not, and whether calls should still wait for it. Pure."""

from __future__ import annotations

from gym_capture.errors import GymCaptureError, HandshakeRefused, MissingRunMarker, OwnerNotFound

REFUSALS = (HandshakeRefused, MissingRunMarker, OwnerNotFound)
"""Errors that another attempt alone does not mend."""

_REFUSED_AFTER = 3


class Presence:
    """What the client knows of its owner's being there.

    Args:
        patience_s: how long calls wait for an owner that is away, in all.

    Attributes:
        ready: the owner has welcomed the link that is open.
        away_since: when the owner was last known to work (loop time); None while it does. A welcome alone does not
            end an absence: an owner that greets and breaks off again and again is away.
        unanswered_since: since when it has answered none of the batches that it was sent; None while none is under way.
            An owner whose disk hangs is there, beats and all, and calls must not wait for it any longer than for one
            that is away.
        trouble: why it could not be reached last.
        ended: why it never will be again.
        stopped: a caller of this process has ended it.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.ready = False
        self.away_since: float | None = None
        self.unanswered_since: float | None = None
        self.trouble: GymCaptureError | None = None
        self.ended: GymCaptureError | None = None
        self.stopped = False
        self._refusals = 0

    def lost(self, now: float) -> None:
        """The owner is looked for, or its link broke."""
        self.ready = False
        if self.away_since is None:
            self.away_since = now

    def failed(self, error: GymCaptureError) -> None:
        """An attempt to reach it failed."""
        self.trouble = error
        self._refusals = self._refusals + 1 if isinstance(error, REFUSALS) else 0

    def welcomed(self) -> None:
        """It accepted the link."""
        self.ready = True
        self.stopped = False
        self._refusals = 0

    def works(self) -> None:
        """It answered something."""
        self.away_since = None
        self.trouble = None

    @property
    def refused(self) -> bool:
        """It refuses, or is not to be found, again and again: waiting will hardly help."""
        return self._refusals >= _REFUSED_AFTER or self.ended is not None

    @property
    def ended_cleanly(self) -> bool:
        """Somebody has stopped it, as far as is known: that it is not there is no failure."""
        return self.stopped or (self.trouble is not None and bool(self.trouble.fields.get("stopped")))

    @property
    def waiting_since(self) -> float | None:
        """Since when calls wait for it in vain; None while they do not."""
        if self.away_since is None or self.unanswered_since is None:
            return self.unanswered_since if self.away_since is None else self.away_since
        return min(self.away_since, self.unanswered_since)

    def patience_over(self, now: float) -> bool:
        """Whether calls should go on without it."""
        since = self.waiting_since
        return (self.refused and not self.ready) or (since is not None and now - since >= self.patience_s)
