"""What every client of a run goes by: told by the run's owner, so that whoever connects captures as the run does."""

from __future__ import annotations

import msgspec

from gym_capture.model.redaction_rules import RedactionRules


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The clients' share of a run's configuration; see `config.CaptureSettings` for what each means.

    Keys that an owner of an older version does not tell have their defaults.
    """

    patience_s: float = 120.0
    drain_timeout_s: float = 10.0
    lease_s: float = 6.0
    max_exchange_bytes: int = 64 << 20
    max_batch_bytes: int = 4 << 20
    client_buffer_bytes: int = 256 << 20
    history: bool = True
    redact: RedactionRules = RedactionRules()
