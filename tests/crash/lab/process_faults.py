"""Processes and nodes that are killed or frozen, and a second owner."""

from __future__ import annotations

import asyncio
import signal
import time
from itertools import count, islice

import gym_capture
from gym_capture.errors import DirectoryHeld
from tests.crash.lab.cluster import children_of, signal_pid
from tests.crash.lab.fault_registry import fault
from tests.crash.lab.scene import HEAL_S, Scene

RAY_GIVES_UP_S = 180.0
"""Ray has given a silent node up by then, also with its own settings."""


# -- processes ---------------------------------------------------------------------------------------------------------


@fault("kill owner")
async def kill_owner(scene: Scene) -> None:
    for _ in range(scene.draw.randint(1, 3)):
        epoch = scene.epoch()
        scene.kill(scene.owner_pid(), scene.owner)
        await scene.until(lambda epoch=epoch: scene.epoch() > epoch, "another epoch")  # type: ignore[misc]
        await asyncio.sleep(scene.draw.uniform(0.0, 0.6))


@fault("kill owner after a clear")
async def kill_after_clear(scene: Scene) -> None:
    """Nothing is captured after the clears: their own rows alone say that these generations were begun."""
    assert scene.collector is not None
    rollouts = list(islice(filter(scene.mine, (f"cleared-{number}-0" for number in count())), 3))
    for _ in range(scene.draw.randint(1, 2)):
        epoch = scene.epoch()
        for rollout in rollouts:
            await scene.collector.clear(rollout)
        scene.kill(scene.owner_pid(), scene.owner)
        await scene.until(lambda epoch=epoch: scene.epoch() > epoch, "another epoch")  # type: ignore[misc]
        for rollout in rollouts:
            await scene.collector.clear(rollout)


@fault("freeze owner")
async def freeze_owner(scene: Scene) -> None:
    await scene.freeze([scene.owner_pid()], scene.draw.uniform(0.5, 1.8 * scene.plan.lease_s), scene.owner)


@fault("kill worker task")
async def kill_task(scene: Scene) -> None:
    scene.kill(await scene.busy("task"), "task")


@fault("kill worker actor")
async def kill_actor(scene: Scene) -> None:
    scene.kill(await scene.busy("actor"), "actor")


@fault("kill owner and worker")
async def kill_both(scene: Scene) -> None:
    """At once, so that the log alone knows of the worker's claims."""
    worker = await scene.busy(scene.draw.choice(["task", "actor"]))
    scene.kill(scene.owner_pid(), scene.owner)
    scene.kill(worker, "worker")


@fault("freeze worker task")
async def freeze_task(scene: Scene) -> None:
    await scene.freeze([await scene.busy("task")], scene.draw.uniform(0.3, 0.5) * scene.plan.lease_s, "task")


@fault("freeze worker past its lease")
async def freeze_past_lease(scene: Scene) -> None:
    kind = scene.draw.choice(["task", "actor"])
    await scene.freeze([await scene.busy(kind)], scene.draw.uniform(1.5, 2.2) * scene.plan.lease_s, kind)


# -- nodes -------------------------------------------------------------------------------------------------------------


@fault("kill owner's node")
async def kill_owner_node(scene: Scene) -> None:
    """The raylet and all of its processes at once, as when a machine is lost."""
    raylet = scene.cluster.raylet(scene.owner_node())
    lost = [raylet, *children_of(raylet)]
    scene.note(f"kill the node of the {scene.owner} {lost}")
    for pid in lost:
        signal_pid(pid, signal.SIGKILL)


@fault("kill owner's raylet")
async def kill_owner_raylet(scene: Scene) -> None:
    """The raylet alone: the owner lives on for as long as it takes to notice, and Ray's calls no longer reach it."""
    await _kill_raylet(scene, scene.owner_node(), f"raylet of the node of the {scene.owner}")


@fault("kill worker's node")
async def kill_worker_node(scene: Scene) -> None:
    """A node without the owner. Where there are several shards, it may have owners of others."""
    others = [node for node in scene.cluster.nodes() if node != scene.owner_node()]
    await _kill_raylet(scene, scene.draw.choice(others), "raylet of a worker's node")


async def _kill_raylet(scene: Scene, node: str, what: str) -> None:
    epochs, start = scene.epochs_on(node), time.monotonic()
    scene.kill(scene.cluster.raylet(node), what)
    if epochs and scene.plan.transport == "ray":
        await scene.until(lambda: scene.all_after(epochs), "owners elsewhere")
        await scene.until(lambda: scene.acknowledged_after(time.monotonic() - 1.0), "writes pass again")
        scene.journal.note("cut-off", start)


@fault("freeze owner's node")
async def freeze_owner_node(scene: Scene) -> None:
    """All of it, for longer than Ray waits: the owner comes back elsewhere, and the old one thaws."""
    raylet = scene.cluster.raylet(scene.owner_node())
    pids = [raylet, *children_of(raylet)]
    epochs = scene.epochs_on(scene.owner_node())
    frozen = asyncio.ensure_future(scene.freeze(pids, RAY_GIVES_UP_S, f"the node of the {scene.owner}"))
    try:
        await scene.until(lambda: scene.all_after(epochs), "owners elsewhere", RAY_GIVES_UP_S - 5.0)
        await asyncio.sleep(scene.draw.uniform(0.0, 2.0))
    finally:
        frozen.cancel()
        scene.thaw()


NODE_FAULTS = ("kill owner's node", "kill owner's raylet", "kill worker's node", "freeze owner's node")
"""They cost a raylet, which is replaced afterwards."""


# -- two owners --------------------------------------------------------------------------------------------------------


@fault("second owner takes over from a frozen one")
async def take_over(scene: Scene) -> None:
    """Another actor's, as of another cluster that sees the directory. It is refused while the first one beats.

    Of several shards one owner is frozen; the others are there when they are taken over from.
    """
    config = scene.config()
    config["capture"]["name"] = scene.another_name()
    first = scene.epoch()
    try:
        await asyncio.to_thread(gym_capture.start, config)
    except DirectoryHeld:
        pass
    else:
        raise AssertionError("a second owner began while the first one was there")
    frozen = asyncio.ensure_future(scene.freeze([scene.owner_pid()], HEAL_S, scene.owner))
    try:
        await asyncio.sleep(0)
        await asyncio.to_thread(gym_capture.start, config, takeover=True)
        assert scene.epoch() > first
        scene.name = config["capture"]["name"]
        await asyncio.sleep(scene.draw.uniform(0.0, 0.3))
    finally:
        frozen.cancel()
        scene.thaw()
