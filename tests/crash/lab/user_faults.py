"""What networks do, what Ray and its users do."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import ray

from tests.crash.lab.fault_registry import fault
from tests.crash.lab.network import DisturbedPath
from tests.crash.lab.scene import Scene
from tests.crash.lab.workers import filler

# -- connections -------------------------------------------------------------------------------------------------------


def _path(scene: Scene) -> DisturbedPath:
    assert scene.path is not None
    return scene.path


@fault("connections cut")
async def cut(scene: Scene) -> None:
    path = _path(scene)
    for number in range(scene.draw.randint(3, 8)):
        done = path.cuts
        path.cut_after = 1 + int(scene.draw.expovariate(1 / 30_000))
        if not number:
            scene.note(f"cut the way to the {scene.owner}")
        await scene.until(lambda done=done: path.cuts > done, "the next cut")  # type: ignore[misc]


@fault("connections delayed")
async def delay(scene: Scene) -> None:
    path = _path(scene)
    path.delay_s = scene.draw.uniform(0.05, 0.4)
    scene.note(f"delay {path.delay_s:.2f} s on the way to the {scene.owner}")
    await asyncio.sleep(scene.draw.uniform(1.0, 3.0))
    path.delay_s = 0.0


@fault("connections half-open")
async def half_open(scene: Scene) -> None:
    path = _path(scene)
    start = time.monotonic()
    path.swallow = True
    scene.note(f"swallow what goes to the {scene.owner}")
    await asyncio.sleep(scene.draw.uniform(0.2, 1.5) * scene.plan.lease_s)
    path.swallow = False
    # Clients notice by themselves, after a lease at most.
    await scene.until(lambda: scene.acknowledged_after(time.monotonic() - 1.0), "writes pass again")
    scene.journal.note("cut-off", start)


# -- Ray and its users -------------------------------------------------------------------------------------------------


@fault("ray.cancel")
async def cancel(scene: Scene) -> None:
    scene.note("cancel")
    assert scene.collector is not None
    for _ in range(scene.draw.randint(4, 10)):
        await asyncio.sleep(scene.draw.uniform(0.0, 0.2))
        running = list(scene.collector.running.items())
        if running:
            ref, kind = scene.draw.choice(running)
            force = kind == "task" and scene.draw.random() < 0.3
            await asyncio.to_thread(ray.cancel, ref, force=force)


@fault("object-store pressure")
async def fill_the_object_store(scene: Scene) -> None:
    """Twice what the nodes' stores hold: Ray spills, and stalls what needs room."""
    scene.note("fill the object store")
    held = [filler.remote(30 << 20) for _ in range(20)]
    await asyncio.wait([asyncio.ensure_future(_result(ref)) for ref in held], timeout=scene.draw.uniform(3.0, 6.0))
    del held


async def _result(ref: Any) -> None:
    await ref


@fault("fork in a worker")
async def fork(scene: Scene) -> None:
    """The workers fork all the while; here the owner dies under parents and children alike."""
    scene.kill(scene.owner_pid(), scene.owner)


@fault("two drivers race to start")
async def race(scene: Scene) -> None:
    """They have raced when the run began; here the owner dies."""
    scene.kill(scene.owner_pid(), scene.owner)


@fault("driver killed and rejoined")
async def kill_driver(scene: Scene) -> None:
    scene.note("kill the driver")
    await scene.lose_driver()
