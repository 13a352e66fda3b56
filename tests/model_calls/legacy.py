"""NeMo Gym capture directories as the cases describe them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from gym_capture.model.ids import rollout_id_from_record
from gym_capture.storage.names import nemo_gym_file, nemo_gym_incomplete_file


def write_case(directory: Path, case: dict[str, Any]) -> str:
    """Write one case's capture file and marker; returns its rollout id."""
    rollout_id = rollout_id_from_record(case["record"])
    assert rollout_id is not None
    if case["lines"] is not None:
        data = b"".join(base64.b64decode(line) + b"\n" for line in case["lines"])
        (directory / nemo_gym_file(rollout_id)).write_bytes(data)
    if case["incomplete"]:
        (directory / nemo_gym_incomplete_file(rollout_id)).touch()
    return rollout_id
