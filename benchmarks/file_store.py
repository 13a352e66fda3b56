"""The plain file store to compare with: one JSONL file a rollout, flock, append and fsync per exchange.

It is what a run without an owner does: every writer opens the rollout's file on the shared disk, locks it, appends
one line and syncs. It has no claims; its merge parses every line of the rollout and derives the records again, and
its clear takes the files away one after the other.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.slow_sync import slowed
from gym_capture.model.json_text import decode_json, encode_json
from gym_capture.model.merge import RolloutEvidence, capture_value
from gym_capture.model.record import derive_fields, record_view


class FileStore:
    """JSONL files under one directory.

    Args:
        directory: where the files are; made when it is missing.
        slower_s: how much longer each sync takes than the disk's.
    """

    def __init__(self, directory: Path, slower_s: float = 0.0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._sync = slowed(os.fsync, slower_s)

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
            self._sync(descriptor)
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

    def clear(self, rollout_ids: Sequence[str], *, each_durable: bool) -> None:
        """Forget these rollouts.

        Args:
            each_durable: the directory is synced for each, as each append is; else once, after the last.
        """
        folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for rollout_id in rollout_ids:
                descriptor = os.open(self.path(rollout_id), os.O_WRONLY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                    self.path(rollout_id).unlink()
                    if each_durable:
                        self._sync(folder)
                finally:
                    os.close(descriptor)
            self._sync(folder)
        finally:
            os.close(folder)

    def count(self) -> int:
        """Lines in all files."""
        return sum(path.read_bytes().count(b"\n") for path in self.directory.glob("*.capture.jsonl"))

    def disk_bytes(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.directory.glob("*.capture.jsonl"))
