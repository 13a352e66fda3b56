"""A worker process under load: `python -m tests.crash.load_worker DIRECTORY REGISTER WORKER TASKS SEED [PORT]`.

Runs TASKS concurrent rollouts of claims and commits until a line arrives on standard input (or it is killed), and
writes down what it was told. Prints `ready` once the load runs, and how many calls it made at the end. With PORT its
connections go to that port of this machine instead of the owner's.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import msgspec

import gym_capture
from gym_capture.model.endpoint import Endpoint
from gym_capture.reach.locators import DirectoryLocator
from tests.crash.register import Register


def digest_of(request: Any, response: Any) -> str:
    """What both sides compare of an exchange."""
    return hashlib.sha256(json.dumps([request, response]).encode()).hexdigest()


def go_through(port: int) -> None:
    """Let every connection of this process go to `port`."""
    locate = DirectoryLocator.locate

    async def detour(self: DirectoryLocator) -> Endpoint:
        return msgspec.structs.replace(await locate(self), host="127.0.0.1", port=port)

    DirectoryLocator.locate = detour  # type: ignore[method-assign]


async def rollout_task(
    capture: gym_capture.CaptureClient, register: Register, name: str, rng: random.Random, stop: asyncio.Event
) -> int:
    """One rollout after the other, a few calls each; returns how many calls were made."""
    made = 0
    while not stop.is_set():
        rollout_id = f"{name}-{made}"
        for _ in range(rng.randrange(1, 6)):
            if stop.is_set():
                break
            made += 1
            call_id = f"{name}-{made}"
            request = {"messages": [{"role": "user", "content": "x" * rng.randrange(10, 4000)}]}
            response = {"id": f"r{made}", "choices": [], "n": rng.random()}
            register.note("asked", rollout_id, call_id)
            try:
                async with capture.rollout(rollout_id).claim(dialect="chat", model_call_id=call_id) as call:
                    register.note("claimed", rollout_id, call_id)
                    await asyncio.sleep(rng.random() * 0.02)  # the model at work
                    register.note("completing", rollout_id, call_id, digest_of(request, response))
                    call.complete(request=request, response=response, status_code=200)
                register.note("told", rollout_id, call_id, str(call.outcome))
            except Exception as error:  # noqa: BLE001 - the test's claim is that no caller sees any error
                register.note("error", rollout_id, call_id, repr(error))
    return made


async def main(directory: str, register_path: str, worker: str, tasks: int, seed: int) -> None:
    """Run the load until told to stop."""
    capture = gym_capture.connect(capture_dir=directory)
    register = Register(Path(register_path))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    running = [
        asyncio.create_task(
            rollout_task(capture, register, f"w{worker}t{task}", random.Random(seed * 1000 + task), stop)
        )
        for task in range(tasks)
    ]
    print("ready", flush=True)  # noqa: T201 - the protocol with the test
    await loop.run_in_executor(None, sys.stdin.readline)
    stop.set()
    made = await asyncio.gather(*running)
    await capture.close()
    print(json.dumps({"made": sum(made)}), flush=True)  # noqa: T201


if __name__ == "__main__":
    if len(sys.argv) > 6:
        go_through(int(sys.argv[6]))
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
