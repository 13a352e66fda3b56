"""A fresh process that counts what is on disk: `python -m tests.crash.count_directory DIRECTORY`.

Prints one JSON line: {rollout id: {"calls": [[model_call_id, digest]…], "incomplete": …}}.
"""

from __future__ import annotations

import json
import sys

from gym_capture.storage.store import CaptureStore
from tests.crash.load_worker import digest_of


def main(directory: str) -> None:
    """Read everything strictly and print it."""
    store = CaptureStore(directory)
    counted = {}
    for rollout_id in store.rollout_ids():
        calls = [
            [found["model_call_id"], digest_of(found["request"], found["response"])] for found in store.read(rollout_id)
        ]
        counted[rollout_id] = {"calls": calls, "incomplete": store.is_incomplete(rollout_id)}
    print(json.dumps(counted))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
