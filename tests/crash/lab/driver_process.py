"""A driver of its own: `python -m tests.crash.lab.driver_process ADDRESS DIRECTORY PLAN NAME`.

PLAN is the plan as JSON, with `config`, the configuration to start with. It starts (or finds) the owner, prints
`{"ready": pid}`, collects until a line comes on standard input, and prints `{"done": …}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any


async def _collect(plan: Any, capture: Any, directory: str, name: str, actors: list[Any]) -> None:
    from tests.crash.lab.collector import Collector
    from tests.crash.lab.journal import Journal

    collector = Collector(
        plan, capture, directory, Journal(Path(directory).parent / "journals", "driver"), actors, name
    )
    running = asyncio.ensure_future(collector.run())
    os.write(1, (json.dumps({"ready": os.getpid()}) + "\n").encode())
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    collector.stopping.set()
    await running


def main(address: str, directory: str, plan_text: str, name: str) -> None:
    """Collect until told to stop."""
    warnings.simplefilter("ignore")
    import ray

    import gym_capture
    from tests.crash.lab.cluster import join
    from tests.crash.lab.held_memory import tell_what_is_held
    from tests.crash.lab.plan import Plan
    from tests.crash.lab.workers import actor_anywhere

    given = json.loads(plan_text)
    config = given.pop("config")
    join(address)
    capture = gym_capture.start(config)
    tell_what_is_held(directory)
    actors = [actor_anywhere()]
    asyncio.run(_collect(Plan(**given), capture, directory, name, actors))
    capture.sync.close()
    os.write(1, b'{"done": true}\n')
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:5])
