"""A process that calls a model when it is told to: `python -m tests.crash.caller_process DIRECTORY ROLLOUT`.

Lines on standard input: `commit` (claim and commit one call), `claim` (and hold it), `issued`. One JSON line each.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

from gym_capture.directory.locate import owner_of
from gym_capture.reach.opening import open_client
from gym_capture.reach.source import Source, client_options


def main(directory: str, rollout_id: str) -> None:
    """Answer until the input ends."""
    owner = owner_of(directory)
    assert owner is not None
    options = replace(client_options(owner.run, owner.client), patience_s=2.0, lease_s=1.5)
    capture = open_client(Source(owner.run, directory, None, "tests", "stream", options))
    rollout = capture.sync.rollout(rollout_id)
    held: list[object] = []
    for line in sys.stdin:
        command = line.strip()
        if command == "commit":
            with rollout.claim(dialect="chat") as call:
                call.complete(request={"messages": []}, response={"id": "r"}, status_code=200)
            answer: dict[str, object] = {"outcome": str(call.outcome)}
        elif command == "claim":
            call = rollout.claim(dialect="chat")
            call.__enter__()
            held.append(call)
            answer = {"claimed": True}
        else:
            answer = {"issued": rollout.issued}
        os.write(1, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
