"""The plain file store to compare with: one JSONL file a rollout, flock, append and fsync per exchange.

It is what a run without an owner does: every writer opens the rollout's file on the shared disk, locks it, appends
one line and syncs. It has no claims; its merge parses every line of the rollout and derives the records again.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

from gym_capture.model.json_text import decode_json, encode_json
from gym_capture.model.merge import RolloutEvidence, capture_value
from gym_capture.model.record import derive_fields, record_view


class FileStore:
    """JSONL files under one directory.

    Args:
        directory: where the files are; made when it is missing.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory

    def path(self, rollout_id: str) -> Path:
        """The file of one rollout."""
        return self.directory / f"{rollout_id}.capture.jsonl"

    def append(self, rollout_id: str, exchange: dict[str, Any]) -> None:
        """One durable exchange."""
        line = encode_json(exchange)[0] + b"\n"
        descriptor = os.open(self.path(rollout_id), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def merge(self, rollout_id: str, *, include_payloads: bool) -> dict[str, Any]:
        """The merged capture of one rollout, from its lines."""
        records = []
        for index, line in enumerate(self.path(rollout_id).read_bytes().splitlines()):
            exchange, _ = decode_json(line)
            payloads = {key: exchange.get(key) for key in ("request", "response", "request_raw", "response_raw")}
            records.append(record_view(derive_fields(exchange), index, payloads if include_payloads else None))
        return capture_value(RolloutEvidence(rollout_id=rollout_id, records=records), include_payloads)

    def count(self) -> int:
        """Lines in all files."""
        return sum(path.read_bytes().count(b"\n") for path in self.directory.glob("*.capture.jsonl"))
