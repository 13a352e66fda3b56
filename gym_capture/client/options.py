"""How a client behaves; made from the run's configuration by `api`, or given by hand."""

from __future__ import annotations

from dataclasses import dataclass

from gym_capture.model.redaction import Redaction, redaction_of
from gym_capture.model.redaction_rules import RedactionRules


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """A client's limits and times. What the owner's Welcome says about sizes and the lease wins over these.

    Args:
        run: the run's uuid (hex), or empty for whichever run the owner serves.
        patience_s: how long calls wait for an owner that is away, in all (counted from when it was last heard).
        drain_timeout_s: how long merge awaits quiescence, and how long clear, merge and stats wait for an owner
            that is away.
        lease_s: how long silence means that the owner is gone.
        max_exchange_bytes: larger exchanges (before compression) are refused.
        max_batch_bytes: bytes that are sent at once; one exchange always fits.
        client_buffer_bytes: exchanges held in memory, queued or unanswered.
        batches_under_way: unanswered batches at most; while there are fewer, a row leaves at once.
        pack_inline_bytes: larger exchanges are compressed in a thread beside the client's loop.
        connect_timeout_s: how long one attempt to reach the owner may take.
        backoff_first_s, backoff_last_s: pause between attempts, doubled from the first to the last, with jitter.
        backoff_refused_s: pause between attempts once the owner refuses or cannot be found.
        history: messages that a rollout's requests repeat are sent once.
        redact: what is taken out of exchanges before they leave the process; None: nothing.
    """

    run: str = ""
    patience_s: float = 120.0
    drain_timeout_s: float = 10.0
    lease_s: float = 6.0
    max_exchange_bytes: int = 64 << 20
    max_batch_bytes: int = 4 << 20
    client_buffer_bytes: int = 256 << 20
    batches_under_way: int = 3
    pack_inline_bytes: int = 256 << 10
    connect_timeout_s: float = 30.0
    backoff_first_s: float = 0.05
    backoff_last_s: float = 1.0
    backoff_refused_s: float = 5.0
    history: bool = True
    redact: RedactionRules | None = None

    @property
    def redaction(self) -> Redaction | None:
        """The rules, compiled.

        Raises:
            ValueError: one cannot be compiled here.
        """
        return None if self.redact is None else redaction_of(self.redact)
